"""What a loss reads. Its signature says what it may read, a trace of it what it does read under its settings."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from cojax.learner.batch import DTYPES, TrainBatch
from cojax.policy.logprobs import TokenScores
from cojax.registry import check_settings, find
from cojax.registry import settings as settings_of

Facts = dict[str, jax.Array]
Loss = Callable[..., tuple[jax.Array, Facts]]

# What the policy says of each token; everything else is a column of the batch.
_SCORES = ("logprobs", "entropy", "routes_differing")
_SHAPE = (2, 8)


@dataclasses.dataclass(frozen=True)
class LearnsFrom:
    """What a loss declares beside its parameters: `flat_groups` by its settings; see `learns_from`."""

    pairs: bool = False
    flat_groups: Callable[..., bool] = lambda **settings: False


def learns_from(*, pairs: bool = False, flat_groups: bool | Callable[..., bool] = False) -> Callable[[Loss], Loss]:
    """Declares that a loss learns from pairs of a success and a failure instead of from groups, or from groups whose
    advantages are all 0 too, always or by its settings.

    The latter goes without saying for a loss that uses no advantages, and for one that uses reference log-probs or the
    entropy, whose terms act whatever the advantage is.
    """
    when = flat_groups if callable(flat_groups) else (lambda **settings: bool(flat_groups))

    def declared(loss: Loss) -> Loss:
        vars(loss)["learns_from"] = LearnsFrom(pairs, when)
        return loss

    return declared


@dataclasses.dataclass(frozen=True, eq=False)
class BoundLoss:
    """A loss with its settings. Of what it reads, all that it returns depends on `uses`, and the loss itself, without
    its facts, on `learns`."""

    name: str
    function: Loss
    settings: Mapping[str, Any]
    reads: tuple[str, ...]
    uses: frozenset[str]
    learns: frozenset[str]
    pairs: bool
    flat_groups: bool

    def __call__(self, scores: TokenScores, batch: TrainBatch) -> tuple[jax.Array, Facts]:
        given = scores._asdict()
        return self.function(
            *(given[name] if name in given else vars(batch)[name] for name in self.reads), **self.settings
        )

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
        """What it needs of the entropy, for `token_scores`: the metric is told of the value alone."""
        return "gradient" if "entropy" in self.learns else "value"


def bind(name: str, table: Mapping[str, Loss], settings: Mapping[str, Any]) -> BoundLoss:
    """The loss of that name with its settings.

    Raises RegistryError for an unknown loss, setting or value; ValueError for a loss that reads what there is not, that
    fails, that returns other than it should, and for one without a gradient.
    """
    function = find("loss", name, table)
    settings = check_settings("loss", name, function, settings)
    reads = _reads(name, function)
    uses, learns = _uses(name, function, settings, reads)
    if not learns & {"logprobs", "entropy"}:
        raise ValueError(f"loss {name!r} depends on neither logprobs nor entropy, so that nothing could be learned")
    declared = _declared(function)
    flat = not declared.pairs and ("advantages" not in learns or bool(learns & {"reference_logprobs", "entropy"}))
    flat = flat or declared.flat_groups(**_asked(declared.flat_groups, function, settings))
    return BoundLoss(name, function, settings, reads, uses, learns, declared.pairs, flat)


def _declared(function: Loss) -> LearnsFrom:
    """What `learns_from` noted of a loss, or of the one that a partial calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.learns_from if hasattr(function, "learns_from") else LearnsFrom()


def _asked(asks: Callable[..., bool], function: Loss, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a loss's settings, defaults included, that `asks` takes."""
    whole = {name: setting.default for name, setting in settings_of(function).items()} | dict(given)
    parameters = inspect.signature(asks).parameters
    everything = any(one.kind == one.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in whole.items() if everything or name in parameters}


def _reads(name: str, function: Loss) -> tuple[str, ...]:
    """Names of the positional parameters."""
    there = (*_SCORES, *DTYPES)
    given = [one for one in inspect.signature(function).parameters.values() if one.kind != one.KEYWORD_ONLY]
    for one in given:
        if one.name not in there or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise ValueError(
                f"loss {name!r} reads {one.name!r}, which there is not; there are {', '.join(there)}. "
                "Settings are keyword-only: they stand after a *"
            )
    return tuple(one.name for one in given)


def _uses(
    name: str, function: Loss, settings: Mapping[str, Any], reads: tuple[str, ...]
) -> tuple[frozenset[str], frozenset[str]]:
    """Which of its inputs all that a loss returns depends on, and which the loss alone."""
    inputs = [jax.ShapeDtypeStruct(_SHAPE, DTYPES.get(read, jnp.float32)) for read in reads]
    try:
        traced, made = jax.make_jaxpr(lambda *arrays: function(*arrays, **settings), return_shape=True)(*inputs)
        per_token, facts = made
        shapes = {"its loss": per_token, **{f"its fact {fact!r}": array for fact, array in facts.items()}}
    except Exception as error:  # whatever a loss does when it is called
        told = " ".join(str(error).split())[:300]
        raise ValueError(f"loss {name!r} cannot be traced: {type(error).__name__}: {told}") from error
    for what, array in shapes.items():
        if array.shape != _SHAPE or not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(
                f"loss {name!r}: {what} is {array.dtype}{list(array.shape)} of arrays {list(_SHAPE)}; expected one "
                "float for each token"
            )
    inputs_read = dict(zip(traced.jaxpr.invars, reads, strict=True))

    def behind(results: Sequence[Any]) -> frozenset[str]:
        needed = {out for out in results if not isinstance(out, Literal)}
        for equation in reversed(traced.jaxpr.eqns):
            if needed & set(equation.outvars):
                needed |= {one for one in equation.invars if not isinstance(one, Literal)}
        return frozenset(read for variable, read in inputs_read.items() if variable in needed)

    return behind(traced.jaxpr.outvars), behind(traced.jaxpr.outvars[:1])
