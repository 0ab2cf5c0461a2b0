"""One request to an endpoint that refuses it, at any length and with the key in its text, or replies without end."""

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

import pytest
from chat_server import Answer, Endless, in_turn, serving, soon
from patience import patience

from cojax import openai_api as client
from cojax.host.background import run_on_thread
from cojax.openai_api import ApiClient, CallFailed

KEY = "sk-very-secret-0123456789"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def at(url: str) -> ApiClient:
    return ApiClient(url, "m", "llm.base_url", "llm.model")


def refused(url: str, seconds: float = 5.0) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        at(url).chat(BODY, seconds, lambda reply: reply)
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind"), [(307, "unauthorised"), (400, "refused"), (404, "unauthorised"), (429, "rate"), (500, "server")]
)
def test_a_refusal_without_end_is_read_no_further(status: int, kind: str) -> None:
    endpoint = Endless(status, b"x" * 2**16, 0.0)
    with endpoint.serving() as url:
        began = time.monotonic()
        found = refused(url)
        assert time.monotonic() - began < patience(3)
        assert (found.kind, found.may_charge) == (kind, False)
        assert status == 307 or "its body is longer than 65,536 bytes" in found.reason
        assert endpoint.left.wait(patience(3))  # as the connection was closed
        # What fits into the buffers of both ends.
        assert endpoint.sent < 32 * 2**20
        soon(lambda: not any(thread.name == "openai" for thread in threading.enumerate()))


def test_a_reply_that_is_late_is_late_whoever_notices_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def and_wait(name: str, work: Callable[[], bytes]) -> Future[bytes]:
        wait([future := run_on_thread(name, work)])
        return future

    monkeypatch.setattr(client, "run_on_thread", and_wait)
    with Endless(200, b"x", 30.0).serving() as url:
        assert refused(url, 0.2).kind == "timeout"


def test_a_refusal_that_is_late_is_late_whoever_notices_first() -> None:
    # As in `chat`, where no other thread gives up on it meanwhile.
    with Endless(500, b"x", 0.02).serving() as url, pytest.raises(Exception) as caught:  # noqa: PT011
        client._read_reply(at(url)._client.chat.completions, BODY, time.monotonic() + 0.2, 2**20)
    found = caught.value if isinstance(caught.value, CallFailed) else caught.value.__cause__
    assert isinstance(found, CallFailed)
    assert (found.kind, found.may_charge) == ("timeout", True)


@pytest.mark.parametrize("status", [400, 401, 500])
def test_no_part_of_the_key_is_told_wherever_it_stands(status: int) -> None:
    keys = (KEY, f"{KEY[:9]}\n{KEY[9:]}", f"{KEY[:12]} \r\n {KEY[12:20]}\n{KEY[20:]}")
    places = [(before, gap) for before in (0, 270, 285, 299, 8_000, 65_536 - 10) for gap in ("x", " ")]
    texts = [gap * before + key + " is wrong" for key in keys for before, gap in places]
    answers = [Answer(text, status=status) for text in texts]
    answers += [Answer(raw=text.encode(), status=status) for text in texts]
    with serving(in_turn(*answers)) as server:
        api = at(server.url)
        for _ in answers:
            with pytest.raises(CallFailed) as caught:
                api.chat(BODY, 5.0, lambda reply: reply)
            reason = "".join(caught.value.reason.split())
            assert not any(KEY[at : at + 6] in reason for at in range(len(KEY) - 5)), reason


def test_no_part_of_the_key_is_told_of_where_an_endpoint_sends() -> None:
    elsewhere = Answer("", status=302, headers={"Location": f"http://other/{'x' * 275}{KEY}"})
    with serving(in_turn(elsewhere)) as server:
        assert KEY[:6] not in refused(server.url).reason


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"error": {"message": "no  such\\nmodel"}}', "no such model"),
        (b'{"error": "no such model"}', "no such model"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": [{"loc": 1}]}', '{"detail": [{"loc": 1}]}'),
        (b"<html>busy</html>", "<html>busy</html>"),
        (b"", "it says nothing"),
        (b"[" * 5_000, "[" * 300),
        (b'{"message": "half \\ud800 a pair"}', "half ? a pair"),
    ],
)
def test_what_an_endpoint_says_of_a_refusal_is_told(raw: bytes, said: str) -> None:
    with serving(in_turn(Answer(raw=raw, status=500))) as server:
        assert refused(server.url).reason == f"HTTP 500: {said}"


def test_a_status_counts_whatever_becomes_of_the_words_that_come_with_it() -> None:
    def short(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as peer:
            peer.recv(2**16)
            peer.sendall(b"HTTP/1.1 401 X\r\nContent-Length: 1000\r\n\r\nno such key!")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=short, args=(listener,), daemon=True).start()
        found = refused(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    assert (found.kind, found.status) == ("unauthorised", 401)
    assert "Check OPENAI_API_KEY" in found.reason


def test_a_key_that_json_spells_in_escapes_is_struck_out() -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    body = f'{{"detail": "{escaped}"}}'.encode()

    def echo(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as peer:
            peer.recv(2**16)
            peer.sendall(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        found = refused(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    assert found.reason == 'HTTP 400: {"detail": "[key]"}'


@pytest.mark.parametrize("status", [200, 500])
def test_a_packed_body_that_holds_nothing_is_given_up_and_leaves_no_thread(status: int) -> None:
    empty = gzip.compress(b"")[:10]
    endpoint = Endless(status, b"\x00\x00\x00\xff\xff", 0.02)
    endpoint.head = b"HTTP/1.1 %d X\r\nContent-Encoding: gzip\r\n\r\n" % status + empty
    with endpoint.serving() as url:
        assert refused(url, 0.2).kind == "timeout"
        assert endpoint.left.wait(3)
        soon(lambda: not any(thread.name == "openai" for thread in threading.enumerate()))


def test_cookies_are_not_kept() -> None:
    with serving(in_turn(Answer("hi", headers={"Set-Cookie": "a=b"}))) as server:
        api = at(server.url)
        for _ in range(2):
            api.chat(BODY, 5.0, lambda reply: reply)
        assert not any("cookie" in sent for sent in server.headers)
        assert server.headers[1]["accept-encoding"] == "identity"


def test_no_line_of_a_log_is_forged() -> None:
    with serving(in_turn(Answer("no\x1b[2J\u2028 such\x00model", status=400))) as server:
        assert refused(server.url).reason == "HTTP 400: no [2J such model"
