"""What a learner optimises: a loss, an advantage and a weighting, each bound to its settings.

A loss's signature lists the inputs that it may read; a trace shows which it uses. The objective packs the batches of a
step accordingly.
"""

import dataclasses
import functools
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal

from cojax.learner import batch as packing
from cojax.learner.advantages import ADVANTAGES
from cojax.learner.batch import DTYPES, Pair, RowShape, TrainBatch
from cojax.learner.losses import LOSSES, Loss
from cojax.learner.weightings import WEIGHTINGS
from cojax.policy.logprobs import TokenScores
from cojax.registry import check_settings, find
from cojax.registry import settings as settings_of
from cojax.types import Group

# Inputs that are the policy's scores of each token; every other input is a column of the batch.
_SCORES = ("logprobs", "entropy", "routes_differing")
_SHAPE = (2, 8)  # [b, T] of the trace


@dataclasses.dataclass(frozen=True, eq=False)
class BoundLoss:
    """A loss with its settings.

    `reads` are the inputs that its signature lists, in order. `uses` are those on which the loss or one of its facts
    depends, and `learns` those on which the loss itself depends. All arguments of a helper under `jax.jit` count.
    """

    name: str
    function: Loss
    settings: Mapping[str, Any]
    reads: tuple[str, ...]
    uses: frozenset[str]
    learns: frozenset[str]
    pairs: bool
    flat_groups: bool

    def inputs(self, scores: TokenScores, batch: TrainBatch) -> list[Any]:
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

    faults: list[str] = []

    def checked(*arrays: jax.Array) -> Any:
        returned = bound(*arrays)
        faults[:] = _faults(name, returned)
        return () if faults else returned

    try:
        traced = jax.make_jaxpr(checked)(*inputs)
    except Exception as error:  # a user's loss may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"loss {name!r} cannot be traced: {type(error).__name__}: {reason}") from error
    if faults:
        raise ValueError(faults[0])
    uses, learns = (_inputs_of(traced.jaxpr, reads, results) for results in (None, 1))
    if not learns & {"logprobs", "entropy"}:
        raise ValueError(f"loss {name!r} depends on neither logprobs nor entropy, so it has no gradient")
    pairs, flat_groups = _declared(function)
    flat = not pairs and ("advantages" not in learns or bool(learns & {"reference_logprobs", "entropy"}))
    flat = flat or flat_groups(**_settings_for(flat_groups, function, settings))
    return BoundLoss(name, function, settings, reads, uses, learns, pairs, flat)


def _declared(function: Loss) -> tuple[bool, Callable[..., bool]]:
    """What `learns_from` declared of a loss, or of the function that a partial calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.learns_from if hasattr(function, "learns_from") else (False, lambda **settings: False)


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


def _faults(name: str, returned: Any) -> list[str]:
    """Why this is no pair, loss and facts, with one float for each token in each of its arrays; nothing where it is."""
    pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    if not pair or not isinstance(returned[1], dict) or not all(isinstance(fact, str) for fact in returned[1]):
        return [
            f"loss {name!r} returns {_outline(returned)[:100]}; expected a pair, the loss of each token and a dict of "
            "facts: return per_token, {}"
        ]
    per_token, facts = returned
    arrays = {"its loss": per_token, **{f"its fact {fact!r}": array for fact, array in facts.items()}}
    return [
        f"loss {name!r}: {what} is {_outline(array)} of arrays {list(_SHAPE)}; expected one float for each token"
        for what, array in arrays.items()
        if getattr(array, "shape", None) != _SHAPE or not jnp.issubdtype(array.dtype, jnp.floating)
    ]


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


ADVANTAGE, WEIGHTING = "group_relative", "group_token_mean"


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """Loss, advantage and weighting; the groups of a step are split over `splits` batches."""

    loss: BoundLoss
    advantage: Callable[..., Any]
    weighting: Callable[..., Any]
    splits: int = 1

    def batches(
        self, groups: Sequence[Group], seed: tuple[int, int], shape: RowShape, sizes: Sequence[int] = ()
    ) -> tuple[list[TrainBatch], dict[str, float]]:
        """Packs the batches of a step, and counts what went into all of them; `seed` is (seed, step).

        `sizes` are the group sizes of the largest batch that a step may have; () takes those of `groups`. They fix the
        number of rows. Raises what `pack` raises.
        """
        packed = []
        rows = self.rows(sizes or [len(group.trajectories) for group in groups], shape)
        for part in self._deal(groups, seed):
            if self.loss.pairs:
                batch, facts = packing.pack_pairs(part, seed, shape, rows)
            else:
                batch, facts = packing.pack(
                    part, self.advantage, shape, weighting=self.weighting, skip_flat=not self.loss.flat_groups,
                    together=self.loss.together, rows=rows,
                )  # fmt: skip
            packed.append((batch, facts | packing.staleness(batch, version=seed[1])))
        return [batch for batch, _ in packed], _sum_facts([facts for _, facts in packed], shape.length)

    def rows(self, sizes: Sequence[int], shape: RowShape) -> int:
        """Rows of each batch of a step whose groups have `sizes` trajectories."""
        each = -(-len(sizes) // self.splits)
        if self.loss.together:
            return shape.holding(each, max(sizes, default=1))
        most = sum(sorted(sizes, reverse=True)[:each])
        return shape.holding(most, 2) if self.loss.pairs else shape.whole(most)

    def _deal(self, groups: Sequence[Group], seed: tuple[int, int]) -> list[list[Group]]:
        """Splits the groups over the splits: whole groups, drawn by the seed where there is more than one."""
        if self.splits == 1:
            return [list(groups)]
        order = list(range(len(groups)))
        random.Random(repr((*seed, "parts"))).shuffle(order)
        return [[groups[index] for index in sorted(order[part :: self.splits])] for part in range(self.splits)]


def objective(
    loss: BoundLoss,
    advantage: str,
    advantage_settings: Mapping[str, Any],
    weighting: str,
    weighting_settings: Mapping[str, Any],
    splits: int,
) -> Objective:
    """The objective of a loss, and of an advantage and a weighting by name.

    Raises ValueError for an unknown name or setting, and for an advantage or a weighting beside a loss of pairs.
    """
    if loss.pairs and (advantage != ADVANTAGE or advantage_settings):
        raise ValueError(
            f"loss {loss.name!r} learns from pairs, whose advantages are 1 and -1; remove advantage={advantage!r} and "
            "its settings"
        )
    if loss.pairs and (weighting != WEIGHTING or weighting_settings):
        raise ValueError(
            f"loss {loss.name!r} gives every pair the same weight; remove weighting={weighting!r} and its settings"
        )
    return Objective(
        loss,
        _bind_settings("advantage", advantage, ADVANTAGES, advantage_settings),
        _bind_settings("weighting", weighting, WEIGHTINGS, weighting_settings),
        splits,
    )


def _bind_settings(kind: str, name: str, table: Mapping[str, Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """The table's entry of that name, with its settings bound."""
    function = find(kind, name, table)
    return functools.partial(function, **check_settings(kind, name, function, settings))


def _sum_facts(facts: Sequence[Mapping[str, float]], row_length: int) -> dict[str, float]:
    """Adds up counts over the parts of a step; `staleness` is the mean over tokens, `fill` that of all live rows."""
    if len(facts) == 1:
        return dict(facts[0])
    names = dict.fromkeys(name for one in facts for name in one if name not in ("fill", "staleness", "staleness_max"))
    total = {name: sum(one[name] for one in facts) for name in names}
    total["fill"] = total["tokens_processed"] / (total["rows"] * row_length) if total["rows"] else 0.0
    behind = [one for one in facts if "staleness" in one]
    if behind:
        tokens = sum(one["tokens_trained"] for one in behind)
        total["staleness"] = sum(one["staleness"] * one["tokens_trained"] for one in behind) / tokens
        total["staleness_max"] = max(one["staleness_max"] for one in behind)
    return total


@dataclasses.dataclass(frozen=True)
class HardNegatives:
    """Adds `weight` · DPO of pairs of a success and a hard negative of the same group to a step's loss.

    A hard negative is a failure whose partial reward is at least `least`. The reference of DPO, whose β is `beta`, is
    the policy before the step.
    """

    weight: float
    beta: float = 0.1
    least: float = 0.6

    @functools.cached_property
    def loss(self) -> BoundLoss:
        return bind("dpo", LOSSES, {"beta": self.beta})

    def rows(self, sizes: Sequence[int], shape: RowShape) -> int:
        """Rows of the batch of a step whose groups have `sizes` trajectories."""
        return shape.holding(sum(sizes), 2)

    def pack(
        self, groups: Sequence[Group], seed: tuple[int, int], shape: RowShape, sizes: Sequence[int] = ()
    ) -> tuple[TrainBatch, dict[str, float]]:
        """The pairs of a step as a batch, with the numbers of failures, of hard negatives, and of pairs of these.

        `sizes` are as in `Objective.batches`.
        """
        drawn = [pair for group in groups for pair in packing.draw_pairs(group, seed, self.least)]
        pairs = [Pair(better, worse, self.weight) for better, worse in drawn]
        failures = [t for group in groups for t in group.valid if t.reward < 1.0]
        facts = {
            "failures": float(len(failures)),
            "hard_negatives": float(sum(trajectory.partial >= self.least for trajectory in failures)),
            "hard_pairs": float(len(pairs)),
        }
        rows = self.rows(sizes or [len(group.trajectories) for group in groups], shape)
        return packing.pack_examples(pairs, shape, rows), facts
