"""What every rollout engine offers: weights in, tokens in, tokens and log-probabilities out.

Engines know nothing of JAX trees. Weights travel as one `Weights` value; the local engine reads its arrays, a server
reads its path; the version comes back on every completion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from cojax.environment import OutOfContext


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy; no top-k, top-p or penalty, so that log-probs are the policy's own."""

    temperature: float = 1.0
    max_tokens: int = 64
    stop_tokens: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Completion:
    """Sampled tokens (a stop token included) and their log-probs under logits / temperature.

    `weights_version` is that of the last token. Where weights changed on the way, `spans` holds (version, tokens) of
    each stretch, oldest first, whose counts add up to all tokens; it is empty where one version sampled them all.
    `routes` are those that the engine was asked to tell, as text (`cojax.policy.routes`): of the conversation's tokens
    up to the last one sampled, which was never fed, without those that an earlier completion of the session told.
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

    `path()`, where there is one, is a model folder in HF format that holds the same; a server reads that instead.
    `fingerprint()`, where there is one, names what the arrays hold: an engine that serves these already does nothing.
    """

    version: int
    arrays: Callable[[], Iterator[tuple[str, np.ndarray]]]
    path: Callable[[], str] | None = None
    fingerprint: Callable[[], str] | None = None


def check_request(prompt: Sequence[int], sampling: Sampling, vocabulary: int, length: int) -> None:
    """Raises ValueError for what no engine can continue, OutOfContext for a prompt that leaves no room in `length`."""
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
    """An engine that can tell which experts tokens went through."""

    @property
    def tells_routes(self) -> bool:
        """Whether its completions do."""


class Engine(Protocol):
    """Samples from the policy. `generate` may be called from many threads at once and blocks until done.

    Calls that share a `session` belong to one growing conversation, whose cache the engine may keep until `release`.
    `seed` alone decides the random numbers. Raises `cojax.environment.EngineError` when no completion can be had and
    `cojax.environment.OutOfContext` when the prompt leaves no room.
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
        """No completion is wanted until the next `load`: an engine that shares accelerators with the learner may give
        its memory back until then."""

    def close(self) -> None: ...
