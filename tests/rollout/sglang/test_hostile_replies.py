"""Servers of SGLang that answer without end, packed, with cookies, or with numbers that no sampling gives."""

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from chat_server import Answer, Endless, in_turn, serving

from cojax.rollout.engine import Sampling
from cojax.rollout.sglang.client import (
    Connections,
    RequestFailed,
    RequestRefused,
    ServerClient,
    ServerFailed,
    read_reply,
)


def asked(url: str, times: int = 1) -> Exception:
    """What becomes of the last of so many completions, which is none."""

    async def ask() -> None:
        connections = Connections()
        client = ServerClient(url, connections)
        try:
            for left in range(times - 1, -1, -1):
                try:
                    await client.generate([1, 2], Sampling(1.0, 8, (9,)), 8, 100, "r", 1)
                except (RequestFailed, RequestRefused):
                    if not left:
                        raise
        finally:
            await connections.aclose()

    with pytest.raises((RequestFailed, RequestRefused)) as caught:
        asyncio.run(asyncio.wait_for(ask(), 4))
    return caught.value


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_end_is_read_no_further(status: int) -> None:
    endpoint = Endless(status, b" " * 2**16, 0.0)
    with endpoint.serving() as url:
        found = asked(url)
        assert isinstance(found, ServerFailed)
        assert str(found).endswith("answered with more than 8,390,656 bytes")
        assert endpoint.left.wait(3)  # as the connection was closed
        assert endpoint.sent < 40 * 2**20  # what fits into the buffers of both ends


@pytest.mark.parametrize("status", [200, 500])
def test_what_is_packed_is_not_unpacked(status: int) -> None:
    bomb = gzip.compress(gzip.compress(b" " * 2**20))
    packed = Answer(raw=bomb, status=status, headers={"Content-Encoding": "gzip, gzip"})
    with serving(in_turn(packed)) as server:
        assert len(str(asked(server.url))) < 1_000
        assert server.headers[0]["accept-encoding"] == "identity"


def test_cookies_are_not_kept() -> None:
    with serving(in_turn(Answer(headers={"Set-Cookie": "a=b"}))) as server:
        asked(server.url, times=2)
        assert server.requests == 2
        assert not any("cookie" in sent for sent in server.headers)


def test_a_reason_is_one_line_that_can_be_written() -> None:
    raw = json.dumps({"error": {"message": "no \ud800\x1b[31m\nERROR forged"}}).encode()
    with serving(in_turn(Answer(raw=raw, status=400))) as server:
        assert str(asked(server.url)).endswith("answered 400: no ? [31m ERROR forged")


@pytest.mark.parametrize("url", ["http://[::1", "http://a\x00b", f"http://127.0.0.1/{'x' * 70_000}"])
def test_an_address_that_is_none_is_a_fault_of_the_server(url: str) -> None:
    assert isinstance(asked(url), ServerFailed)


@pytest.mark.parametrize("answer", [[], None, {"workers": None}, {"workers": [1]}])
def test_a_router_that_names_no_servers_is_a_fault_of_the_router(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(*_: Any, **__: Any) -> Any:
        return answer

    monkeypatch.setattr(Connections, "call", call)
    with pytest.raises(ServerFailed, match="answered without"):
        asyncio.run(ServerClient("http://r", Connections()).remove_server("http://a"))


def completion(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> dict[str, Any]:
    about: dict[str, Any] = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-1.5, token, None] for token in (7, 8, 9)],
        "weight_versions": [{"version": "v", "start": 0, "end": 3}],
    }
    answer = {"output_ids": [7, 8, 9], "meta_info": about}
    change(answer, about)
    return answer


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), 0.5, True, -201.0, -3e38])
def test_a_log_prob_that_no_sampled_token_has_is_refused(logprob: float) -> None:
    odd = completion(lambda answer, about: about["output_token_logprobs"][1].__setitem__(0, logprob))
    with pytest.raises(ValueError, match="which no sampled token has"):
        read_reply(odd, 8, 100)


def test_tokens_end_where_one_ends_them() -> None:
    plain = completion(lambda answer, about: None)
    assert read_reply(plain, 8, 100, (9,)).tokens == (7, 8, 9)
    with pytest.raises(ValueError, match="it goes on after a token that ends it"):
        read_reply(plain, 8, 100, (8, 9))


def test_what_a_reply_names_is_cut() -> None:
    named = completion(lambda answer, about: about["weight_versions"][0].update(version="v" * 10**6))
    assert len(read_reply(named, 8, 100).spans[0][0]) == 200
    ended = completion(lambda answer, about: about.update(finish_reason={"type": "x" * 10**6}))
    with pytest.raises(ValueError, match="it ended by") as caught:
        read_reply(ended, 8, 100)
    assert len(str(caught.value)) < 300
