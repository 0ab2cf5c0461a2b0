"""The interface of every rollout engine: weights and tokens in, tokens and log-probabilities out.

Engines know nothing of JAX trees. Weights travel as one `Weights` value: the local engine reads its arrays, a server
its path. Every completion carries the version of the weights that sampled it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from cojax.environment import OutOfContext


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy. There is no top-k, top-p or penalty, so log-probs are the policy's."""

    temperature: float = 1.0
    max_tokens: int = 64
    stop_tokens: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Completion:
    """Sampled tokens (a stop token included) and their log-probs under logits / temperature.

    `weights_version` is that of the last token. If weights changed during the completion, `spans` holds (version,
    number of tokens) for each stretch, oldest first; the numbers add up to all tokens. It is empty if one version
    sampled them all. `routes` is empty, or the experts that tokens went through, as text (`cojax.policy.routes`). It
    covers the tokens of the conversation that no earlier completion of the session reported, except the last token,
    which was never fed.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    weights_version: int
    finish_reason: Literal["stop", "length"]
    spans: tuple[tuple[int, int], ...] = ()
    routes: str = ""


@dataclasses.dataclass(frozen=True)
class Weights:
    """One version of the policy: `arrays()` yields (HF name, array) lazily, in the parameter table's order.

    `path()`, if given, is a model folder in HF format that holds the same weights; a server reads it instead.
    `fingerprint()`, if given, is equal for equal arrays: an engine that already serves them does not load them again.
    `save(folder, dtype)`, if given, has all processes that hold the arrays write them together, each its own part, as
    `cojax.storage.array_files.save_params` does. It raises ValueError for arrays that are not finite.
    """

    version: int
    arrays: Callable[[], Iterator[tuple[str, np.ndarray]]]
    path: Callable[[], str] | None = None
    fingerprint: Callable[[], str] | None = None
    save: Callable[[str, str], None] | None = None


def check_request(prompt: Sequence[int], sampling: Sampling, vocabulary: int, length: int) -> None:
    """Raises ValueError for a request that no engine can serve, OutOfContext for a prompt as long as `length`."""
    if not prompt:
        raise ValueError("the prompt is empty; give at least one token")
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        raise ValueError(f"prompt tokens span {min(prompt)}–{max(prompt)}; the vocabulary has 0–{vocabulary - 1}")
    if sampling.max_tokens < 1 or sampling.temperature < 0:
        raise ValueError(f"{sampling}: max_tokens must be at least 1 and temperature at least 0")
    if len(prompt) + 1 > length:
        raise OutOfContext(f"prompt of {len(prompt)} tokens leaves no room; the engine holds {length}")


@runtime_checkable
class Routed(Protocol):
    """An engine that can report which experts tokens went through."""

    @property
    def tells_routes(self) -> bool:
        """Whether its completions report routes."""


class Engine(Protocol):
    """Samples from the policy. `generate` blocks until done; any number of threads may call it.

    Calls with the same `session` belong to one growing conversation, whose cache the engine may keep until `release`.
    Random numbers depend on `seed` only. Raises `cojax.environment.EngineError` if no completion can be obtained and
    `cojax.environment.OutOfContext` if the prompt leaves no room.
    """

    @property
    def busy_seconds(self) -> float:
        """Wall time spent generating since the engine was made."""

    def load(self, weights: Weights) -> None: ...

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]
    ) -> Completion: ...

    def release(self, session: str) -> None: ...

    def rest(self) -> None:
        """Announces that no completion is wanted until the next `load`.

        An engine that shares accelerators with the learner may release its memory until then.
        """

    def close(self) -> None: ...
