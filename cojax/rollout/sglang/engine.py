"""Rollouts from SGLang servers: token ids in, token ids and sampled log-probs out, weights by way of the disk.

One thread runs an event loop with pooled HTTP connections; `generate` may be called from hundreds of others. Every
reply says which weights sampled it: what comes from weights that were not asked for is thrown away and sampled anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tenacity

from cojax.environment import EngineError
from cojax.policy.config import ModelConfig
from cojax.rollout.engine import Completion, Sampling, Weights, check_request
from cojax.rollout.export import check_weights
from cojax.rollout.sglang.experts import Asked, shape_asked
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.loop_thread import LoopThread
from cojax.rollout.sglang.process import Launch, ServerProcess
from cojax.rollout.sglang.server import Patience, Server, Target
from cojax.rollout.sglang.server_client import Clients, Lost, RequestRefused, ServerReply, Unreachable
from cojax.rollout.sglang.sleep import NOTES, Notes
from cojax.rollout.sglang.weights import WeightsFolder


@dataclasses.dataclass
class Served:
    """What servers have answered: completions, tokens of their prompts, and how many of those a prefix cache held."""

    completions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class SGLangEngine:
    """Samples from the policy of shape `config` on SGLang servers: those at `urls`, or `servers` that `launch` starts.

    With a `router`, an address in front of `urls`, completions are asked of it, and all else of the servers.

    A conversation takes up to `max_length` tokens. Weights are written to `folder`/weights/VERSION/, a path that every
    server must see, as `dtype` ("": the parameters' own); servers that `follow` that folder take them by themselves
    (`python -m experiments.serve`), the others are told to. One `generate` takes at most `deadline` seconds and
    `attempts` tries, on any server. With `mixed`, a completion during which weights changed is kept, with its spans;
    without, it is sampled anew. With `routes` completions tell which experts tokens went through. `busy_seconds` is the
    wall time with at least one completion under way.

    At temperature 0 the most likely token is taken, and log-probabilities are those at temperature 1. `seed` decides
    the random numbers only where servers run with --enable-deterministic-inference.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        folder: Path,
        max_length: int,
        urls: Sequence[str] = (),
        launch: Launch | None = None,
        servers: int = 1,
        patience: Patience | None = None,
        deadline: float = 600.0,
        attempts: int = 6,
        dtype: str = "",
        mixed: bool = False,
        follow: bool = False,
        router: str = "",
        release_memory: bool = False,
        routes: bool = False,
    ) -> None:
        if max_length > config.max_position_embeddings:
            raise ValueError(
                f"max_length {max_length} exceeds the model's max_position_embeddings {config.max_position_embeddings}"
            )
        if bool(urls) == (launch is not None):
            raise ValueError("give either urls of running servers or launch, which says how to start some")
        if follow and release_memory:
            raise ValueError(
                "servers that follow take weights at any time; they cannot give their memory back. Unset sglang.follow "
                "or sglang.release_memory"
            )
        if min(servers, attempts, max_length - 1) < 1:
            raise ValueError("servers and attempts must be at least 1, max_length at least 2")
        self._shape = shape_asked(config, routes, mixed)
        self._config, self._length = config, max_length
        self._deadline, self._attempts, self._dtype = deadline, attempts, dtype
        self._mixed, self._follow, self._router, self._release_memory = mixed, follow, router, release_memory
        self._nonce = uuid.uuid4().hex[:8]  # labels of two runs must differ on a server that both use
        self._versions: dict[str, int] = {}  # label → version
        self._folders: list[Path] = []
        self._loaded: tuple[int, str] | None = None  # version and fingerprint of the weights loaded last
        self._loading = threading.Lock()
        self._store = WeightsFolder(folder)
        # The event loop's own.
        self.served = Served()
        self._busy, self._active, self._since = 0.0, 0, 0.0
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._told: dict[str, int] = {}  # tokens of a session whose routes were told
        self._clients = Clients()
        processes = [ServerProcess(launch, index) for index in range(servers)] if launch else []
        attached = [url.rstrip("/") for url in urls]
        self._fleet = Fleet(
            self._clients,
            attached,
            processes,
            patience or Patience(),
            follow=follow,
            router=router,
            release_memory=release_memory,
            notes=Notes(folder / NOTES),
            routes=routes,
        )
        self._loop = LoopThread("SGLangEngine", "the engine was closed")

    # --- called from any thread ---

    @property
    def busy_seconds(self) -> float:
        return self._busy + (time.monotonic() - self._since if self._active else 0.0)

    @property
    def tells_routes(self) -> bool:
        return self._shape is not None

    @property
    def fleet(self) -> Fleet:
        """The servers, for a look; their state belongs to the event loop."""
        return self._fleet

    def load(self, weights: Weights) -> None:
        """Writes `weights` down, has the servers take them, and returns once those that are up serve them.

        New completions wait; those under way go on under the new weights. A server that cannot take them gets no
        request until it has. Weights whose version and fingerprint are those loaded last are not sent again. Raises
        ValueError for arrays that do not fit or are not finite and for a damaged folder, OSError when the disk refuses
        or a folder is missing, EngineError when no server takes them.
        """
        with self._loading:
            self._loop.raise_if_closed()
            asked = (weights.version, weights.fingerprint()) if weights.fingerprint is not None else None
            target = self._fleet.target
            if target is None or asked is None or asked != self._loaded:
                self._loaded = None
                target = self._written(weights)
            elif self._fleet.serving:
                return
            self._loop.call(self._fleet.sync(target))
            self._loaded = asked
            # The one before stays, for a server that was left behind, and what others are still reading.
            self._folders = [*self._folders, target.folder][-2:]
            self._store.prune([*self._folders, *self._fleet.reading()])

    def _written(self, weights: Weights) -> Target:
        """The weights on disk under a label of their own."""
        label = f"{self._nonce}-{len(self._versions)}-{weights.version}"
        # Known before the folder is there: who follows may sample from it at once.
        self._versions[label] = weights.version
        if weights.path is not None and not self._follow:
            target = Target(Path(weights.path()).absolute(), label)
            check_weights(target.folder)
        else:
            target = self._store.write(weights, self._config, self._dtype, label)
        return target

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far.

        Raises OutOfContext when it leaves no room for a token, ValueError for a mistake of the caller, EngineError when
        no server gives a completion in time, or the session is released.
        """
        tokens = [int(token) for token in prompt]
        # A token outside the vocabulary would end a server.
        check_request(tokens, sampling, self._config.vocab_size, self._length)
        self._loop.raise_if_closed()
        if self._fleet.target is None:
            raise EngineError("the engine has no weights; call load first")
        room = min(sampling.max_tokens, self._length - len(tokens))
        digest = hashlib.sha256(repr(tuple(int(part) for part in seed)).encode()).digest()
        number = int.from_bytes(digest[:8], "little") >> 1
        call = self._generate(tokens, sampling, room, session, number)
        return self._loop.call(call, f"session {session!r} was released while generating")

    def release(self, session: str) -> None:
        """Forgets the session; a call of it still running raises EngineError. Unknown is fine."""
        self._loop.soon(self._forget, session)

    def rest(self) -> None:
        """With `release_memory`, has the servers give back the memory of weights and cache until the next `load`."""
        with self._loading:
            self._loop.raise_if_closed()
            if self._release_memory and self._fleet.target is not None:
                self._loop.call(self._fleet.rest())

    def close(self) -> None:
        """Ends the servers that are ours; whoever waits gets EngineError. May be called twice."""
        if self._loop.close(self._shut):
            self._store.close()

    # --- the event loop ---

    async def _generate(self, tokens: list[int], sampling: Sampling, room: int, session: str, seed: int) -> Completion:
        """One completion, within the deadline and the number of tries."""
        if session in self._tasks:
            raise ValueError(f"session {session!r} is still generating; one call at a time")
        task = asyncio.current_task()
        assert task is not None
        self._tasks[session] = task
        if not self._active:
            self._since = time.monotonic()
        self._active += 1
        tries = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=10.0),
            retry=tenacity.retry_if_exception_type(Lost),
            reraise=True,
        )
        try:
            async with asyncio.timeout(self._deadline):
                return await tries(self._attempt, tokens, sampling, room, session, seed)
        except TimeoutError as error:
            faults = self._fleet.faults()
            raise EngineError(
                f"no completion within {self._deadline:g} s" + (f"; servers left out: {faults}" if faults else "")
            ) from error
        except Lost as error:
            raise EngineError(f"no completion in {self._attempts} attempts, the last: {error}") from error
        except RequestRefused as error:
            raise EngineError(str(error)) from error
        finally:
            del self._tasks[session]
            self._active -= 1
            if not self._active:
                self._busy += time.monotonic() - self._since

    async def _attempt(self, tokens: list[int], sampling: Sampling, room: int, session: str, seed: int) -> Completion:
        """One request to one server. Raises Lost where another may succeed."""
        server = await self._fleet.route(session)
        assert self._fleet.target is not None
        asked, rid = self._fleet.target.label, uuid.uuid4().hex
        key = hashlib.sha256(f"{self._nonce}-{session}".encode()).hexdigest()[:32] if self._router else ""
        wanted = None if self._shape is None else Asked(self._shape, self._told.get(session, 0))
        request = asyncio.create_task(
            server.endpoint.generate(tokens, sampling, room, self._config.vocab_size, rid, seed, key, wanted)
        )
        server.requests.add(request)
        try:
            reply = await request
            server.replies += 1
            self.served.completions += 1
            self.served.prompt_tokens += len(tokens)
            self.served.cached_tokens += reply.cached
            completion = self._completion(reply, server, asked, sampling)
            if wanted is not None:
                self._told[session] = len(tokens) + len(reply.tokens) - 1
            return completion
        except Unreachable as error:
            self._fleet.routes.suspect(server, str(error))
            raise
        except asyncio.CancelledError:
            request.cancel()
            self._loop.send(self._fleet.routes.abort(server, rid))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Lost(f"a server was left out: {server.fault or self._fleet.faults()}") from None
        finally:
            server.requests.discard(request)

    def _completion(self, reply: ServerReply, server: Server, asked: str, sampling: Sampling) -> Completion:
        """The reply, once its weights are those that were asked for. Raises Lost where they are not."""
        assert self._fleet.target is not None
        labels = [label for label, _ in reply.spans]
        if strange := [label for label in labels if label not in self._versions]:
            self._fleet.routes.suspect(server, f"it sampled from weights {strange[0]!r}, which are not of this run")
            raise Lost(f"{server.name} sampled from weights {strange[0]!r}, which are not of this run")
        # However mixed, it must end in current ones: behind a router a server that is left out is still asked.
        stale = labels[-1] not in (asked, self._fleet.target.label)
        if stale or (len(labels) > 1 and not self._mixed):
            raise Lost(f"{server.name} sampled from weights {' and '.join(labels)}, asked for {asked}")
        spans: list[tuple[int, int]] = []
        for label, count in reply.spans:
            version = self._versions[label]
            if spans and spans[-1][0] == version:
                spans[-1] = version, spans[-1][1] + count
            else:
                spans.append((version, count))
        stopped = reply.stopped or reply.tokens[-1] in sampling.stop_tokens
        return Completion(
            reply.tokens,
            reply.logprobs,
            spans[-1][0],
            "stop" if stopped else "length",
            tuple(spans) if len(spans) > 1 else (),
            reply.routes,
        )

    def _forget(self, session: str) -> None:
        if session in self._tasks:
            self._tasks[session].cancel()
        self._told.pop(session, None)
        self._fleet.routes.forget(session)

    async def _shut(self) -> None:
        await self._fleet.close()
        await self._clients.aclose()
