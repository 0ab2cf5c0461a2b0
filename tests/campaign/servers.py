"""Faults of endpoints: the real clients against a server on loopback that dies, hangs, drips or answers nonsense.

A call must end in time with the right answer or with the client's own failure, and the key must not leak.
"""

import asyncio
import functools
import gzip
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from campaign.cases import Violation, draw
from campaign.endpoint import EndpointServer, Script, answered, completion, serving
from cojax.environment import EngineError, OutOfContext
from cojax.explorer.llm.chat_client import ChatClient
from cojax.rollout.endpoint import make_chat_endpoint
from cojax.rollout.engine import Sampling
from cojax.rollout.sglang import client as sglang_client
from cojax.settings.tree import LLMSettings
from cojax.types import Message

_TIMEOUT = 0.6
# Seconds within which a call must be over. Attempts, the pauses between them and a busy machine take their time.
_PATIENCE = 30.0
_WORD = "plum"
_KEY = "sk-campaign-0123456789abcdef"
_SAMPLED = {
    "output_ids": [7, 7, 7],
    "meta_info": {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-1.5, 7, None]] * 3,
        "weight_versions": [{"version": "boot", "start": 0, "end": 3}],
    },
}
Misdeed = Callable[[random.Random, socket.socket, EndpointServer], bytes | None]


@functools.cache
def _packed() -> bytes:
    return gzip.compress(b'{"choices": "' + b"x" * 200_000_000 + b'"}', compresslevel=1)


def _hang(rng: random.Random, connection: socket.socket, server: EndpointServer) -> bytes | None:
    """Sends no answer until the server closes."""
    server.over.wait(60.0)
    return None


def _drip(rng: random.Random, connection: socket.socket, server: EndpointServer) -> bytes | None:
    """Sends one byte every 50 ms."""
    for byte in answered(completion("x" * 10_000)):
        if server.over.wait(0.05):
            break
        connection.sendall(bytes([byte]))
    return None


def _endless(rng: random.Random, connection: socket.socket, server: EndpointServer) -> bytes | None:
    """Sends a body without end, at full speed."""
    connection.sendall(b"HTTP/1.1 200 x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(2_000):
        connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        if server.over.is_set():
            break
    return None


def _headers(rng: random.Random, connection: socket.socket, server: EndpointServer) -> bytes | None:
    """Sends headers without end."""
    connection.sendall(b"HTTP/1.1 200 x\r\n")
    for number in range(100_000):
        connection.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1_000))
    return None


def _nonsense(rng: random.Random, connection: socket.socket, server: EndpointServer) -> bytes | None:
    """Answers JSON that is no completion."""
    values: tuple[Any, ...] = (
        None, 5, [], {}, "x", {"choices": []}, {"choices": [{}]}, {"choices": {"0": 1}}, completion(5),
        completion({"a": 1}), {"choices": [{"message": None}]}, completion(None), {"error": {"message": _KEY}},
        {"output_ids": [7], "meta_info": {}}, {**_SAMPLED, "output_ids": [-1, 7, 7]}, {**_SAMPLED, "output_ids": None},
    )  # fmt: skip
    return answered(rng.choice(values))


MISDEEDS: Mapping[str, Misdeed] = {
    "hangs up": lambda rng, connection, server: None,
    "hangs": _hang,
    "drips": _drip,
    "has no end": _endless,
    "has headers without end": _headers,
    "speaks no HTTP": lambda rng, connection, server: rng.randbytes(rng.choice((1, 100, 100_000))),
    "speaks no JSON": lambda rng, connection, server: answered(rng.randbytes(500)),
    "answers nonsense": _nonsense,
    "nests deeply": lambda rng, connection, server: answered(b"[" * 100_000 + b"]" * 100_000),
    "says much": lambda rng, connection, server: answered(completion("x" * 9_000_000)),
    "lies about length": lambda rng, connection, server: answered(completion(_WORD), Content_Length="999999"),
    "is short": lambda rng, connection, server: answered(completion(_WORD), Content_Length="10"),
    "packs a bomb": lambda rng, connection, server: answered(_packed(), Content_Encoding="gzip"),
    "fails": lambda rng, connection, server: answered(
        {"error": {"message": f"no {_KEY}"}}, rng.choice((400, 401, 403, 404, 408, 409, 413, 429, 500, 502, 503))
    ),
    "fails at length": lambda rng, connection, server: answered(b"x" * 5_000_000, 500),
    "asks for patience": lambda rng, connection, server: answered(
        {}, 429, Retry_After=rng.choice(("1e9", "nan", "-5", "x", "Wed, 21 Oct 2099 07:28:00 GMT"))
    ),
    "sends elsewhere": lambda rng, connection, server: answered(
        {}, rng.choice((301, 302, 307, 308)), Location=rng.choice((f"{server.url}/elsewhere", "file:///etc/passwd", ""))
    ),
}


def inject(id: str, seed: int) -> list[Violation]:
    """Runs one client against one misdeed, at every request or at the first alone."""
    rng = draw(seed, id)
    name, client = rng.choice(sorted(MISDEEDS)), rng.choice(sorted(_CLIENTS))
    once = rng.random() < 0.4
    found: list[Violation] = []
    os.environ["OPENAI_API_KEY"] = _KEY
    with serving(_script(rng, name, once, holder := [])) as server:
        holder.append(server)
        began = time.monotonic()
        answer: list[str] = []
        worker = threading.Thread(target=lambda: answer.append(_CLIENTS[client](server)), daemon=True)
        worker.start()
        worker.join(_PATIENCE)
        took = time.monotonic() - began
    about = f"{client}, a server that {name}{' once' if once else ''}"
    if not answer:
        reason = f"no end within {_PATIENCE:.0f} s" if took >= _PATIENCE else "an exception that is no failure"
        found.append(Violation("lost", id, f"{about}: {reason}"))
    elif answer[0].startswith("raised"):
        found.append(Violation("lost", id, f"{about}: {answer[0]}"))
    elif answer[0].startswith("wrong"):
        found.append(Violation("forged", id, f"{about}: {answer[0]}"))
    if any("/elsewhere" in head.partition("\n")[0] and _KEY in head for head in server.heads):
        found.append(Violation("lost", id, f"{about}: the key was taken elsewhere"))
    return found


def _script(rng: random.Random, name: str, once: bool, holder: list[EndpointServer]) -> Script:
    def script(path: str, body: Any, before: int, connection: socket.socket) -> bytes | None:
        if once and before:
            return answered(_SAMPLED if path == "/generate" else completion(_WORD))
        return MISDEEDS[name](rng, connection, holder[0])

    return script


def _ending(call: Callable[[], str], *failures: type[BaseException]) -> str:
    """How the call ended: `right`, `wrong: …`, `failed`, or `raised …`."""
    try:
        said = call()
    except failures as failure:
        return "wrong: the failure holds the key" if _KEY in str(failure) else "failed"
    except BaseException as error:
        return f"raised {type(error).__name__}: {error}"[:300]
    return "right" if said == _WORD or set(said) <= {"x"} else f"wrong: {said[:100]!r}"


def _explore(server: EndpointServer) -> str:
    settings = LLMSettings(f"{server.url}/v1", "m", timeout=_TIMEOUT, max_tokens=100, deadline=20.0)
    client = ChatClient(settings, attempts=2)
    budget = client.begin("x")
    message = (Message("user", "say plum"),)
    return _ending(lambda: client.reply(message, budget=budget, seed=0, place="x").text, EngineError)


def _evaluate(server: EndpointServer) -> str:
    endpoint = make_chat_endpoint(f"{server.url}/v1", "m", timeout_s=3.0, max_attempts=2)
    never = threading.Event()
    said = [{"role": "user", "content": "say plum"}]
    return _ending(lambda: endpoint(said, (), never)[0], EngineError, OutOfContext)


def _sample(server: EndpointServer) -> str:
    async def ask() -> str:
        pool = sglang_client.Connections()
        try:
            endpoint = sglang_client.ServerClient(server.url, pool)
            async with asyncio.timeout(3.0):
                reply = await endpoint.generate([1, 2], Sampling(1.0, 8, (9,)), 8, 100, "r", 1)
            return _WORD if reply.tokens == (7, 7, 7) else json.dumps(reply.tokens)
        finally:
            await pool.aclose()

    failures = (sglang_client.RequestFailed, sglang_client.RequestRefused, TimeoutError)
    ending = _ending(lambda: asyncio.run(ask()), *failures)
    # This client has no key: one that its failure quotes came from the server.
    return "failed" if ending.endswith("holds the key") else ending


_CLIENTS: Mapping[str, Callable[[EndpointServer], str]] = {
    "explorer's client": _explore, "evaluation's client": _evaluate, "SGLang's client": _sample,
}  # fmt: skip
