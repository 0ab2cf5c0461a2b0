"""The explorer's model, embeddings, evaluations, simulated customers: the same bounds, whatever an endpoint does."""

import email.utils
import threading
import time
from collections.abc import Callable

import pytest
from chat_server import Answer, Endless, in_turn, serving, soon
from patience import patience

from cojax import openai_api as calls
from cojax.environment import EngineError, EnvironmentFailure
from cojax.explorer.llm.chat_client import ChatClient
from cojax.quality import EmbeddingError, endpoint_embedding
from cojax.rollout.endpoint import make_chat_endpoint
from cojax.settings.tree import LLMSettings
from cojax.types import Message
from environments.tau2 import dialogue

KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.01)


def explorer(url: str, seconds: float = 20.0, attempts: int = 2) -> object:
    model = ChatClient(LLMSettings(url, "m", timeout=seconds, deadline=seconds, max_tokens=50), attempts=attempts)
    return model.reply((Message("user", "hello"),), budget=model.begin(), seed=0, place="p")


def embedding(url: str, seconds: float = 20.0, attempts: int = 2) -> object:
    return endpoint_embedding(url, "m", timeout_s=seconds, call_timeout_s=seconds, max_attempts=attempts)(["hello"])


def evaluation(url: str, seconds: float = 20.0, attempts: int = 2) -> object:
    endpoint = make_chat_endpoint(url, "m", timeout_s=seconds, max_attempts=attempts)
    return endpoint([{"role": "user", "content": "hello"}], (), threading.Event())


def customer(url: str, seconds: float = 20.0, attempts: int = 2) -> object:
    return dialogue.make_customer(url, "m", seconds, attempts=attempts)("You want a refund.", [("agent", "hello")], 0)


USERS = {
    explorer: "llm.base_url",
    embedding: "quality.base_url",
    evaluation: "--endpoint",
    customer: "environment.user_url",
}
Call = Callable[..., object]


@pytest.fixture(params=USERS, ids=lambda user: user.__name__)
def user(request: pytest.FixtureRequest) -> Call:
    return request.param


def failed(user: Call, url: str, seconds: float = 20.0, attempts: int = 2) -> str:
    with pytest.raises((EngineError, EmbeddingError, EnvironmentFailure)) as caught:
        user(url, seconds, attempts)
    return str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_neither_key_nor_text_goes_where_an_endpoint_points_to(user: Call, status: int) -> None:
    with serving(in_turn(Answer("hi"))) as other:
        answer = Answer("", status=status, headers={"Location": f"{other.url}/chat/completions"})
        with serving(in_turn(answer)) as server:
            said = failed(user, server.url)
            assert server.requests == 1
    assert other.requests == 0
    assert f"HTTP {status}: the endpoint is elsewhere: {other.url}/chat/completions. Set {USERS[user]} to that" in said


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_body_that_drips_is_given_up_in_time(user: Call, status: int) -> None:
    endpoint = Endless(status, b" ", 0.02)
    with endpoint.serving() as url:
        began = time.monotonic()
        assert "no reply within" in (said := failed(user, url, 0.2)) or "did not end in time" in said
        assert time.monotonic() - began < patience(3)
        assert endpoint.left.wait(patience(3))  # as the connection was closed
        soon(lambda: not any(thread.name == "openai" for thread in threading.enumerate()))


@pytest.mark.parametrize("status", [200, 307, 400])
def test_a_body_without_end_is_read_no_further(user: Call, status: int) -> None:
    endpoint = Endless(status, b"x" * 2**16, 0.0)
    with endpoint.serving() as url:
        failed(user, url, attempts=1)
        assert endpoint.left.wait(patience(5))
        # The most of a reply, and what fits into the buffers of both ends.
        assert endpoint.sent < (96 if status == 200 else 32) * 2**20
        soon(lambda: not any(thread.name == "openai" for thread in threading.enumerate()))


@pytest.mark.parametrize("status", [400, 401, 500])
def test_no_error_text_holds_the_key(user: Call, status: int) -> None:
    for text in (KEY, f"{KEY[:9]} {KEY[9:]}", "x" * 290 + KEY):
        with serving(in_turn(Answer(text, status=status))) as server:
            said = "".join(failed(user, server.url).split())
        assert not any(KEY[at : at + 6] in said for at in range(len(KEY) - 5))


@pytest.mark.parametrize("asked", ["3600", "inf", email.utils.formatdate(4e9)])
def test_an_endpoint_that_asks_for_too_much_patience_is_given_up(user: Call, asked: str) -> None:
    with serving(in_turn(Answer("later", status=503, headers={"Retry-After": asked}))) as server:
        assert "HTTP 503: later" in failed(user, server.url)
        assert server.requests == 1


def test_a_key_that_cannot_be_sent_is_refused(user: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\x01control-0123")
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds characters"):
        user("http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:pass@host/v1", "holds credentials or a query"),
        ("http://host/v1?key=pass@", "holds credentials or a query"),
        ("http://[pass@/v1", "is no address"),
        ("ftp://host/v1", "expected an address like http://HOST:PORT/v1"),
        ("host/v1", "expected an address like http://HOST:PORT/v1"),
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(user: Call, url: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{USERS[user]}.*{message}") as caught:
        user(url)
    assert "pass@" not in str(caught.value)
