"""The engine that samples on SGLang servers: token ids in, token ids and log-probs out, weights through a folder.

One thread runs an event loop with open HTTP connections; `generate` may be called from hundreds of other threads. Every
reply names the weights that sampled it. A completion from other weights than requested is discarded and sampled again.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

from cojax.environment import EngineError
from cojax.policy.config import ModelConfig
from cojax.rollout.engine import Completion, Sampling, Weights, checked_prompt
from cojax.rollout.export import check_weights
from cojax.rollout.sglang.client import RELEASED_MEMORY, Connections, ReleasedMemoryFile, route_shape
from cojax.rollout.sglang.completions import Completions, LoopThread
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.process import LaunchSettings, ServerProcess
from cojax.rollout.sglang.server import LabelledWeights, ServerLimits
from cojax.rollout.sglang.supervisor import FleetSettings
from cojax.rollout.sglang.weights import WeightsFolder
from cojax.settings.tree import SGLangSettings


class SGLangEngine:
    """Samples from the policy of shape `config` on SGLang servers: those at `urls`, or `servers` that `launch` starts.

    With a `router`, an address in front of `urls`, completion requests go to the router; all other requests go to the
    servers. Without `urls` the servers are those behind the router at any time.

    A conversation has at most `max_length` tokens. Weights are written as `dtype` ("": the parameters' own) to
    `folder`/weights/VERSION/, a path that every server must see. With `follow`, servers watch that folder and load new
    weights by themselves (`python -m experiments.serve`); otherwise they are sent a request to load them. With `sync`
    "orbax", all processes of the trainer write a version together, each its part, where it can be saved so. One
    `generate` takes at most `deadline` seconds and `attempts` requests, to any servers. If weights change during a
    completion, it is kept with `mixed`, with its spans, and sampled again without. With `routes`, completions report
    which experts tokens went through. `busy_seconds` is the wall time with at least one completion running, `served`
    counts the servers' answers.

    At temperature 0 the most likely token is chosen, and log-probabilities are those at temperature 1. `seed` decides
    the random numbers only if servers run with --enable-deterministic-inference.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        folder: Path,
        max_length: int,
        urls: Sequence[str] = (),
        launch: LaunchSettings | None = None,
        servers: int = SGLangSettings.servers,
        limits: ServerLimits | None = None,
        deadline: float = 600.0,
        attempts: int = SGLangSettings.attempts,
        dtype: str = SGLangSettings.dtype,
        mixed: bool = SGLangSettings.mixed,
        follow: bool = SGLangSettings.follow,
        sync: str = "folder",
        router: str = SGLangSettings.router,
        release_memory: bool = SGLangSettings.release_memory,
        routes: bool = False,
    ) -> None:
        if bool(urls or router) == (launch is not None):
            raise ValueError("give urls of running servers, or a router, or launch, which says how to start some")
        if follow and release_memory:
            raise ValueError(
                "servers that follow take weights at any time; they cannot give their memory back. Unset sglang.follow "
                "or sglang.release_memory"
            )
        if sync == "orbax" and not follow:
            raise ValueError(
                "what all processes save together is restored on the rollout host by `python -m experiments.serve`; "
                "set sglang.follow=True here and there, or sglang.sync=folder"
            )
        _check_sizes(config, max_length, servers, attempts)
        shape = route_shape(config, routes, mixed)
        self._config, self._length, self._dtype, self._follow = config, max_length, dtype, follow
        self._sync = sync
        self._release_memory, self.tells_routes = release_memory, shape is not None
        self._run = uuid.uuid4().hex[:8]  # part of every label, so that labels of two runs on one server differ
        self._versions: dict[str, int] = {}  # label → version
        self._folders: list[Path] = []
        self._loaded: tuple[int, str] | None = None  # version and fingerprint of the last loaded weights
        self._loading = threading.Lock()
        self._store = WeightsFolder(folder)
        self._connections = Connections()
        self._fleet = Fleet(
            self._connections,
            [url.rstrip("/") for url in urls],
            [ServerProcess(launch, index) for index in range(servers)] if launch else [],
            FleetSettings(limits or ServerLimits(), follow=follow, release_memory=release_memory, routes=routes),
            router=router,
            released=ReleasedMemoryFile(folder / RELEASED_MEMORY),
        )
        self._loop = LoopThread("SGLangEngine", "the engine was closed")
        prefix = self._run if router else ""
        self._completions = Completions(
            self._fleet, self._loop, self._versions, config.vocab_size, deadline, attempts, mixed, prefix, shape
        )
        self.served = self._completions.served

    @property
    def busy_seconds(self) -> float:
        return self._completions.busy.seconds

    @property
    def fleet(self) -> Fleet:
        """The servers. Their state belongs to the event loop: other threads may read it, not change it."""
        return self._fleet

    def load(self, weights: Weights) -> None:
        """Writes `weights` to disk, has the servers load them, and returns once every server that is up serves them.

        New completions wait meanwhile; running ones continue with the new weights. A server that fails to load them
        gets no request until it has loaded them. Weights with the version and fingerprint of the last load are not
        loaded again. Raises ValueError for arrays that do not fit or are not finite and for a damaged folder, OSError
        if writing fails or a folder is missing, EngineError if no server loads them.
        """
        with self._loading:
            self._loop.raise_if_closed()
            given = (weights.version, weights.fingerprint()) if weights.fingerprint is not None else None
            target = self._fleet.target
            if target is None or given is None or given != self._loaded:
                self._loaded = None
                target = self._write(weights)
            elif self._fleet.serving:
                return
            self._loop.call(self._fleet.sync(target))
            self._loaded = given
            # Kept: the previous version, for a server that was left out, and folders that servers are still reading.
            self._folders = [*self._folders, target.folder][-2:]
            self._store.prune([*self._folders, *self._fleet.reading()])

    def _write(self, weights: Weights) -> LabelledWeights:
        """Writes the weights to disk under a unique label."""
        label = f"{self._run}-{len(self._versions)}-{weights.version}"
        # Registered before the folder exists: a server that follows may sample from it immediately.
        self._versions[label] = weights.version
        if self._sync == "orbax" and weights.save is not None:
            return self._store.save(weights.version, weights.save, self._config, self._dtype, label)
        if weights.path is None or self._follow:
            return self._store.write(weights, self._config, self._dtype, label)
        folder = Path(weights.path()).absolute()
        check_weights(folder)
        return LabelledWeights(folder, label)

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """Continues `prompt`, the whole conversation so far.

        Raises OutOfContext if the prompt leaves no room for a token, ValueError for a wrong argument, EngineError if no
        server completes it in time or the session is released.
        """
        # A token outside the vocabulary would crash a server.
        tokens = checked_prompt(prompt, self._config.vocab_size, self._length)
        self._loop.raise_if_closed()
        if self._fleet.target is None:
            raise EngineError("the engine has no weights; call load first")
        room = min(sampling.max_tokens, self._length - len(tokens))
        digest = hashlib.sha256(repr(tuple(int(part) for part in seed)).encode()).digest()
        number = int.from_bytes(digest[:8], "little") >> 1
        call = self._completions.generate(tokens, sampling, room, session, number)
        return self._loop.call(call, f"session {session!r} was released while generating")

    def release(self, session: str) -> None:
        """Forgets the session, if known. A running call of the session raises EngineError."""
        self._loop.call_soon(self._completions.forget, session)

    def rest(self) -> None:
        """With `release_memory`, has the servers release the memory of weights and cache until the next `load`."""
        with self._loading:
            self._loop.raise_if_closed()
            if self._release_memory and self._fleet.target is not None:
                self._loop.call(self._fleet.rest())

    def close(self) -> None:
        """Ends the servers that this engine started; waiting callers get EngineError. May be called twice."""
        if self._loop.close(self._close):
            self._store.close()

    async def _close(self) -> None:
        await self._fleet.close()
        await self._connections.aclose()


def _check_sizes(config: ModelConfig, max_length: int, servers: int, attempts: int) -> None:
    if max_length > config.max_position_embeddings:
        raise ValueError(
            f"max_length {max_length} exceeds the model's max_position_embeddings {config.max_position_embeddings}"
        )
    if min(servers, attempts, max_length - 1) < 1:
        raise ValueError("servers and attempts must be at least 1, max_length at least 2")
