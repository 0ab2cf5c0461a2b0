"""`TrainBatch`, whose columns a loss may read, and `bind`, which binds a loss to its settings.

A batch is rows of tokens with what the loss reads of each, and the loss's normalisation as weights. A loss's signature
lists the inputs that it may read; a trace shows which it uses.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal

from cojax.registry import check_settings, find
from cojax.registry import settings as settings_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
    """B rows of T tokens, NumPy on the host and JAX arrays inside jit. Any leading axes are allowed.

    tokens: int32[B, T], 0 at padding.
    segment_ids: int32[B, T], 1, 2, … for the sequences of a row; 0 at padding, which is only at the end of a row.
    positions: int32[B, T], the index of a token in its own sequence.
    advantages: float32[B, T], as the advantage gave them; in a batch of pairs 1 for the better, -1 for the worse.
    sampler_logprobs: float32[B, T], log π of the sampler for the tokens that it sampled, 0 elsewhere.
    versions: int32[B, T], the version of the weights that sampled the token; -1 for tokens that were not sampled.
    reference_logprobs, old_logprobs: float32[B, T], filled by the learner where the loss needs them.
    weights: float32[B, T], > 0 exactly at the tokens that are learned from; loss = Σ weights · per-token loss.
    sequences, tasks, groups: int32[B, T], the number of the token's trajectory, task and group in the batch, from 0 on;
        -1 at padding. In a batch of pairs a group is a pair.
    turns: int32[B, T], the number of the token's turn in its sequence, from 0 on; -1 at padding.
    lengths: int32[B, T], number of learned tokens in the token's sequence.
    group_sizes: int32[B, T], number of trajectories in the token's group.
    rewards: float32[B, T], reward of the token's trajectory.
    routes: int8 or int16[B, T, L, k], the experts that the token went through in the sampler, -1 where they are not
        known; None for a learner that does not read them.
    """

    tokens: Any
    segment_ids: Any
    positions: Any
    advantages: Any
    sampler_logprobs: Any
    versions: Any
    reference_logprobs: Any
    old_logprobs: Any
    weights: Any
    sequences: Any
    tasks: Any
    groups: Any
    turns: Any
    lengths: Any
    group_sizes: Any
    rewards: Any
    routes: Any = None


_INTEGERS = ("tokens", "segment_ids", "positions", "versions", "sequences", "tasks", "groups", "turns", "lengths",
             "group_sizes")  # fmt: skip
IDS = ("versions", "sequences", "tasks", "groups", "turns")  # -1 where a token has none
DTYPES = {
    field.name: np.dtype(np.int32 if field.name in _INTEGERS else np.float32)
    for field in dataclasses.fields(TrainBatch)
    if field.name != "routes"
}


if TYPE_CHECKING:
    from cojax.policy.logprobs import TokenScores

Facts = dict[str, jax.Array]
Loss = Callable[..., tuple[jax.Array, Facts]]

# Inputs that are the policy's scores of each token; every other input is a column of the batch.
_SCORES = ("logprobs", "entropy", "routes_differing")
_SHAPE = (2, 8)  # [b, T] of the trace


@dataclasses.dataclass(frozen=True)
class LearnsFrom:
    """What `learns_from` declares of a loss; `flat_groups` is a function of its settings."""

    pairs: bool = False
    flat_groups: Callable[..., bool] = lambda **settings: False


def learns_from(*, pairs: bool = False, flat_groups: bool | Callable[..., bool] = False) -> Callable[[Loss], Loss]:
    """Declares what a loss learns from, where that is not groups with advantages other than 0.

    `pairs`: it learns from pairs of a success and a failure instead of groups. `flat_groups`: it also learns from
    groups whose advantages are all 0, always or as a function of its settings says. The latter need not be declared for
    a loss that uses no advantages, or one that uses reference log-probs or the entropy: their terms do not depend on
    advantages.
    """
    by_settings = flat_groups if callable(flat_groups) else (lambda **settings: bool(flat_groups))

    def declare(loss: Loss) -> Loss:
        vars(loss)["learns_from"] = LearnsFrom(pairs, by_settings)
        return loss

    return declare


@dataclasses.dataclass(frozen=True, eq=False)
class BoundLoss:
    """A loss with its settings.

    `reads` are the inputs that its signature lists, in order. `uses` are those on which the loss or one of its facts
    depends, and `learns` those on which the loss itself depends.
    """

    name: str
    function: Loss
    settings: Mapping[str, Any]
    reads: tuple[str, ...]
    uses: frozenset[str]
    learns: frozenset[str]
    pairs: bool
    flat_groups: bool

    def inputs(self, scores: "TokenScores", batch: TrainBatch) -> list[Any]:
        """What `function` is called with, beside its settings."""
        found = {**vars(batch), **scores._asdict()}
        return [found[name] for name in self.reads]

    @property
    def routes(self) -> bool:
        """Whether it needs the sampler's routes."""
        return "routes_differing" in self.uses

    @property
    def together(self) -> bool:
        """Whether it compares the trajectories of a group, which must then share a micro-batch."""
        return not self.pairs and bool(self.uses & {"groups", "tasks"})

    @property
    def entropy(self) -> str:
        """The `entropy` asked of `token_scores`: its value is always a metric, but only a loss needs its gradient."""
        return "gradient" if "entropy" in self.learns else "value"


def bind(name: str, table: Mapping[str, Loss], settings: Mapping[str, Any]) -> BoundLoss:
    """The loss of that name with its settings.

    Raises RegistryError for an unknown loss, setting or value; ValueError for a loss with an unknown input, one that
    fails, one that returns other shapes or dtypes than a loss has, and one without a gradient.
    """
    function = find("loss", name, table)
    settings = check_settings("loss", name, function, settings)
    reads, bound = _inputs(name, function), functools.partial(function, **settings)
    inputs = [jax.ShapeDtypeStruct(_SHAPE, DTYPES.get(read, jnp.float32)) for read in reads]

    def checked(*arrays: jax.Array) -> Any:
        _check_returned(name, returned := bound(*arrays))
        return returned

    try:
        traced = jax.make_jaxpr(checked)(*inputs)
    except _NoLoss:
        raise
    except Exception as error:  # a user's loss may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"loss {name!r} cannot be traced: {type(error).__name__}: {reason}") from error
    uses, learns = (_inputs_of(traced.jaxpr, reads, results) for results in (None, 1))
    if not learns & {"logprobs", "entropy"}:
        raise ValueError(f"loss {name!r} depends on neither logprobs nor entropy, so it has no gradient")
    declared = _declaration(function)
    flat = not declared.pairs and ("advantages" not in learns or bool(learns & {"reference_logprobs", "entropy"}))
    flat = flat or declared.flat_groups(**_settings_for(declared.flat_groups, function, settings))
    return BoundLoss(name, function, settings, reads, uses, learns, declared.pairs, flat)


def _declaration(function: Loss) -> LearnsFrom:
    """What `learns_from` declared of a loss, or of the function that a partial calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.learns_from if hasattr(function, "learns_from") else LearnsFrom()


def _settings_for(condition: Callable[..., bool], function: Loss, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a loss, defaults included, that are parameters of `condition`."""
    whole = {name: setting.default for name, setting in settings_of(function).items()} | dict(given)
    parameters = inspect.signature(condition).parameters
    everything = any(one.kind == one.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in whole.items() if everything or name in parameters}


def _inputs(name: str, function: Loss) -> tuple[str, ...]:
    """Names of the positional parameters. Raises ValueError for one that is no input."""
    known = (*_SCORES, *DTYPES)
    given = [one for one in inspect.signature(function).parameters.values() if one.kind != one.KEYWORD_ONLY]
    for one in given:
        if one.name not in known or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise ValueError(
                f"loss {name!r} reads {one.name!r}, which is no input; inputs are {', '.join(known)}. "
                "Settings are keyword-only: write them after a *"
            )
    return tuple(one.name for one in given)


class _NoLoss(ValueError):
    """What a function returned is not what a loss returns."""


def _check_returned(name: str, returned: Any) -> None:
    """Raises _NoLoss unless it is a pair, loss and facts, with one float for each token in each of its arrays."""
    pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    if not pair or not isinstance(returned[1], dict) or not all(isinstance(fact, str) for fact in returned[1]):
        raise _NoLoss(
            f"loss {name!r} returns {_outline(returned)[:100]}; expected a pair, the loss of each token and a dict of "
            "facts: return per_token, {}"
        )
    per_token, facts = returned
    arrays = {"its loss": per_token, **{f"its fact {fact!r}": array for fact, array in facts.items()}}
    for what, array in arrays.items():
        if getattr(array, "shape", None) != _SHAPE or not jnp.issubdtype(array.dtype, jnp.floating):
            raise _NoLoss(
                f"loss {name!r}: {what} is {_outline(array)} of arrays {list(_SHAPE)}; expected one float for each "
                "token"
            )


def _outline(returned: Any) -> str:
    """What a loss returned, in few words: float32[2, 8], (float32[2, 8], dict), NoneType."""
    if isinstance(returned, jax.Array):
        return f"{returned.dtype}{list(returned.shape)}"
    if isinstance(returned, (tuple, list)):
        return f"({', '.join(map(_outline, returned[:4]))}{', …' if len(returned) > 4 else ''})"
    return type(returned).__name__


def _inputs_of(traced: Jaxpr, reads: Sequence[str], results: int | None) -> frozenset[str]:
    """The inputs that the first `results` of a traced loss depend on, or all of them: the loss, then its facts."""
    needed = {out for out in traced.outvars[:results] if not isinstance(out, Literal)}
    for equation in reversed(traced.eqns):
        if needed & set(equation.outvars):
            needed |= {one for one in equation.invars if not isinstance(one, Literal)}
    return frozenset(read for variable, read in zip(traced.invars, reads, strict=True) if variable in needed)
