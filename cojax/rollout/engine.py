"""The interface of every rollout engine: weights and tokens in, tokens and log-probabilities out.

Engines know nothing of JAX trees. Weights travel as one `Weights` value: the local engine reads its arrays, a server
its path. Every completion carries the version of the weights that sampled it.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from cojax.environment import OutOfContext

_MIN_T = 1e-6  # a temperature above 0


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy. There is no top-k, top-p or penalty, so log-probs are the policy's.

    Raises ValueError for values that no engine can sample by: a batch holds the requests of all callers, and a NaN in
    it would end the engine for all.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    stop_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        value = self.temperature
        # Outside this range logits / temperature leave float32, and servers take smaller values for 0.
        if isinstance(value, bool) or not isinstance(value, Real) or not (value == 0 or _MIN_T <= value <= 1 / _MIN_T):
            raise ValueError(f"temperature must be 0, or a number from {_MIN_T} to {1 / _MIN_T:,.0f}; found {value!r}")
        if _name_wrong_types([self.max_tokens]) or self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, a whole number; found {self.max_tokens!r}")
        if wrong_types := _name_wrong_types(self.stop_tokens):
            raise ValueError(f"stop_tokens hold {wrong_types}; expected tokens, which are whole numbers")


@dataclasses.dataclass(frozen=True)
class Completion:
    """Sampled tokens (a stop token included) and their log-probs under logits / temperature.

    `weights_version` is that of the last token. If weights changed during the completion, `spans` holds (version,
    number of tokens) for each stretch, oldest first; the numbers add up to all tokens. It is empty if one version
    sampled them all. `routes` is empty, or the experts that tokens went through, as text (`cojax.policy.moe`). It
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
    `cojax.policy.saved_params.save_params` does. It raises ValueError for arrays that are not finite.
    `params()`, if given, is the same policy as the learner holds it, spread over its devices.
    """

    version: int
    arrays: Callable[[], Iterator[tuple[str, np.ndarray]]]
    path: Callable[[], str] | None = None
    fingerprint: Callable[[], str] | None = None
    save: Callable[[str, str], None] | None = None
    params: Callable[[], Any] | None = None


def check_length(max_length: int, position_count: int) -> None:
    """Raises ValueError for conversations longer than the model's positions."""
    if max_length > position_count:
        raise ValueError(f"max_length {max_length} exceeds the model's max_position_embeddings {position_count}")


def check_prompt(prompt: Iterable[int], vocabulary_size: int, context_length: int) -> list[int]:
    """The tokens of a prompt.

    Raises ValueError for a prompt that no engine can continue, OutOfContext for one as long as `context_length`.
    """
    prompt_tokens = list(prompt)
    if wrong_types := _name_wrong_types(prompt_tokens):
        raise ValueError(f"the prompt holds {wrong_types}; expected tokens, which are whole numbers")
    tokens = list(map(int, prompt_tokens))
    if not tokens:
        raise ValueError("the prompt is empty; give at least one token")
    if min(tokens) < 0 or max(tokens) >= vocabulary_size:
        raise ValueError(f"prompt tokens span {min(tokens)}–{max(tokens)}; the vocabulary has 0–{vocabulary_size - 1}")
    if len(tokens) + 1 > context_length:
        raise OutOfContext(f"prompt of {len(tokens)} tokens leaves no room; the engine holds {context_length}")
    return tokens


def _name_wrong_types(values: Iterable[object]) -> str:
    """Names of the types of values that are not whole numbers; a conversion would take 2.7 for token 2, True for 1."""
    types = set(map(type, values))
    return ", ".join(sorted(cls.__name__ for cls in types if cls is bool or not issubclass(cls, (int, np.integer))))


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


class BusyTime:
    """Wall time during which at least one `with` block of this object runs, in seconds; any thread may run a block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running_blocks, self._busy_since, self._total_seconds = 0, 0.0, 0.0

    @property
    def total_seconds(self) -> float:
        with self._lock:
            return self._total_seconds + (time.perf_counter() - self._busy_since if self._running_blocks else 0.0)

    def __enter__(self) -> None:
        with self._lock:
            if not self._running_blocks:
                self._busy_since = time.perf_counter()
            self._running_blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running_blocks -= 1
            if not self._running_blocks:
                self._total_seconds += time.perf_counter() - self._busy_since
