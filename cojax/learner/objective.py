"""The objective of a learner: a loss, an advantage and a weighting, each bound to its settings.

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
_SCORE_INPUTS = ("logprobs", "entropy", "routes_differing")
_TRACE_SHAPE = (2, 8)  # [b, T] of the trace


@dataclasses.dataclass(frozen=True, eq=False)
class BoundLoss:
    """A loss with its settings.

    `input_names` are the inputs that its signature lists, in order. `uses` are those on which the loss or one of its
    facts depends, and `loss_inputs` those on which the loss itself depends. Calling a function under `jax.jit` uses all
    of its arguments. `is_paired`: it learns from pairs. `takes_flat`: it also learns from flat groups.
    """

    name: str
    function: Loss
    settings: Mapping[str, Any]
    input_names: tuple[str, ...]
    uses: frozenset[str]
    loss_inputs: frozenset[str]
    is_paired: bool
    takes_flat: bool

    def select_inputs(self, scores: TokenScores, batch: TrainBatch) -> list[Any]:
        """The arrays that `function` is called with, in addition to its settings."""
        arrays = {**vars(batch), **scores._asdict()}
        return [arrays[name] for name in self.input_names]

    @property
    def routes(self) -> bool:
        """Whether it needs the sampler's routes."""
        return "routes_differing" in self.uses

    @property
    def needs_groups(self) -> bool:
        """Whether it compares the trajectories of a group, which must then share a micro-batch."""
        return not self.is_paired and bool(self.uses & {"groups", "tasks"})

    @property
    def entropy(self) -> str:
        """The `entropy` for `token_scores`: its value is always a metric, but only a loss needs its gradient."""
        return "gradient" if "entropy" in self.loss_inputs else "value"


def bind_loss(name: str, table: Mapping[str, Loss], settings: Mapping[str, Any]) -> BoundLoss:
    """The loss of that name with its settings.

    Raises RegistryError for an unknown loss, setting or value; ValueError for a loss with an unknown input, one that
    fails, one that returns other shapes or dtypes than a loss has, and one without a gradient.
    """
    function = find("loss", name, table)
    settings = check_settings("loss", name, function, settings)
    input_names, loss = _list_inputs(name, function), functools.partial(function, **settings)
    inputs = [jax.ShapeDtypeStruct(_TRACE_SHAPE, DTYPES.get(input_name, jnp.float32)) for input_name in input_names]

    faults: list[str] = []

    def call_loss(*arrays: jax.Array) -> Any:
        output = loss(*arrays)
        faults[:] = _find_faults(name, output)
        return () if faults else output

    try:
        loss_program = jax.make_jaxpr(call_loss)(*inputs)
    except Exception as error:  # a user's loss may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"loss {name!r} cannot be traced: {type(error).__name__}: {reason}") from error
    if faults:
        raise ValueError(faults[0])
    used_inputs, loss_inputs = (_trace_inputs(loss_program.jaxpr, input_names, count) for count in (None, 1))
    if not loss_inputs & {"logprobs", "entropy"}:
        raise ValueError(f"loss {name!r} depends on neither logprobs nor entropy, so it has no gradient")
    pairs, learns_from_flat = _read_declaration(function)
    uses_flat = not pairs and ("advantages" not in loss_inputs or bool(loss_inputs & {"reference_logprobs", "entropy"}))
    uses_flat = uses_flat or learns_from_flat(**_select_keywords(learns_from_flat, function, settings))
    return BoundLoss(name, function, settings, input_names, used_inputs, loss_inputs, pairs, uses_flat)


def _read_declaration(function: Loss) -> tuple[bool, Callable[..., bool]]:
    """The declaration of `learns_from` for a loss, or for the function that a partial calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.learns_from if hasattr(function, "learns_from") else (False, lambda **settings: False)


def _select_keywords(callee: Callable[..., bool], function: Loss, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a loss, including defaults, that are parameters of `callee`."""
    setting_values = {name: setting.default for name, setting in settings_of(function).items()} | dict(settings)
    parameters = inspect.signature(callee).parameters
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in setting_values.items() if takes_all or name in parameters}


def _list_inputs(name: str, function: Loss) -> tuple[str, ...]:
    """Names of the positional parameters. Raises ValueError for one that is not an input."""
    input_names = (*_SCORE_INPUTS, *DTYPES)
    parameters = [arg for arg in inspect.signature(function).parameters.values() if arg.kind != arg.KEYWORD_ONLY]
    for parameter in parameters:
        if parameter.name not in input_names or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(
                f"loss {name!r} reads {parameter.name!r}, which is not an input; inputs are {', '.join(input_names)}. "
                "Settings are keyword-only: write them after a *"
            )
    return tuple(arg.name for arg in parameters)


def _find_faults(name: str, output: Any) -> list[str]:
    """Says why this is not a pair of loss and facts with one float for each token in every array; [] if it is."""
    is_pair = isinstance(output, (tuple, list)) and len(output) == 2
    if not is_pair or not isinstance(output[1], dict) or not all(isinstance(fact_name, str) for fact_name in output[1]):
        return [
            f"loss {name!r} returns {_outline(output)[:100]}; expected a pair, the loss of each token and a dict of "
            "facts: return per_token, {}"
        ]
    per_token, facts = output
    arrays = {"its loss": per_token, **{f"its fact {fact_name!r}": array for fact_name, array in facts.items()}}
    return [
        f"loss {name!r}: {label} is {_outline(array)} of arrays {list(_TRACE_SHAPE)}; expected one float for each token"
        for label, array in arrays.items()
        if getattr(array, "shape", None) != _TRACE_SHAPE or not jnp.issubdtype(array.dtype, jnp.floating)
    ]


def _outline(output: Any) -> str:
    """Describes a loss's result in few words: float32[2, 8], (float32[2, 8], dict), NoneType."""
    if isinstance(output, jax.Array):
        return f"{output.dtype}{list(output.shape)}"
    if isinstance(output, (tuple, list)):
        return f"({', '.join(map(_outline, output[:4]))}{', …' if len(output) > 4 else ''})"
    return type(output).__name__


def _trace_inputs(jaxpr: Jaxpr, input_names: Sequence[str], output_count: int | None) -> frozenset[str]:
    """The inputs on which the first `output_count` outputs of a loss depend; None means the loss and all facts."""
    variables = {output for output in jaxpr.outvars[:output_count] if not isinstance(output, Literal)}
    for equation in reversed(jaxpr.eqns):
        if variables & set(equation.outvars):
            variables |= {operand for operand in equation.invars if not isinstance(operand, Literal)}
    return frozenset(name for variable, name in zip(jaxpr.invars, input_names, strict=True) if variable in variables)


DEFAULT_ADVANTAGE, DEFAULT_WEIGHTING = "group_relative", "group_token_mean"


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """Loss, advantage and weighting; a step's groups are split over `splits` batches."""

    loss: BoundLoss
    advantage: Callable[..., Any]
    weighting: Callable[..., Any]
    splits: int = 1

    def pack_batches(
        self, groups: Sequence[Group], seed: tuple[int, int], shape: RowShape, group_sizes: Sequence[int] = ()
    ) -> tuple[list[TrainBatch], dict[str, float]]:
        """Packs the batches of a step, and counts what went into all of them; `seed` is (seed, step).

        `group_sizes` are the sizes of all groups that a step may have; () means those of `groups`. They fix the number
        of rows. Raises what `pack` raises.
        """
        results = []
        row_count = self.rows(group_sizes or [len(group.trajectories) for group in groups], shape)
        for split_groups in self._deal_groups(groups, seed):
            if self.loss.is_paired:
                batch, counts = packing.pack_pairs(split_groups, seed, shape, row_count)
            else:
                batch, counts = packing.pack(
                    split_groups, self.advantage, shape, weighting=self.weighting, skip_flat=not self.loss.takes_flat,
                    keep_together=self.loss.needs_groups, row_count=row_count,
                )  # fmt: skip
            results.append((batch, counts | packing.measure_staleness(batch, version=seed[1])))
        return [batch for batch, _ in results], _sum_counts([counts for _, counts in results], shape.length)

    def rows(self, group_sizes: Sequence[int], shape: RowShape) -> int:
        """The number of rows of each batch of a step whose groups have `group_sizes` trajectories."""
        groups_per_batch = -(-len(group_sizes) // self.splits)
        if self.loss.needs_groups:
            return shape.rows_for(groups_per_batch, max(group_sizes, default=1))
        max_trajectories = sum(sorted(group_sizes, reverse=True)[:groups_per_batch])
        return shape.rows_for(max_trajectories, 2) if self.loss.is_paired else shape.round_up(max_trajectories)

    def _deal_groups(self, groups: Sequence[Group], seed: tuple[int, int]) -> list[list[Group]]:
        """Deals whole groups to the splits; if there is more than one, the seed draws which."""
        if self.splits == 1:
            return [list(groups)]
        group_order = list(range(len(groups)))
        random.Random(repr((*seed, "parts"))).shuffle(group_order)
        return [[groups[index] for index in sorted(group_order[split :: self.splits])] for split in range(self.splits)]


def objective(
    loss: BoundLoss,
    advantage: str,
    advantage_settings: Mapping[str, Any],
    weighting: str,
    weighting_settings: Mapping[str, Any],
    split_count: int,
) -> Objective:
    """The objective of this loss, and of the advantage and the weighting of these names.

    Raises ValueError for an unknown name or setting, and for an advantage or a weighting beside a loss of pairs.
    """
    if loss.is_paired and (advantage != DEFAULT_ADVANTAGE or advantage_settings):
        raise ValueError(
            f"loss {loss.name!r} learns from pairs, whose advantages are 1 and -1; remove advantage={advantage!r} and "
            "its settings"
        )
    if loss.is_paired and (weighting != DEFAULT_WEIGHTING or weighting_settings):
        raise ValueError(
            f"loss {loss.name!r} gives every pair the same weight; remove weighting={weighting!r} and its settings"
        )
    return Objective(
        loss, _bind_settings("advantage", advantage, ADVANTAGES, advantage_settings),
        _bind_settings("weighting", weighting, WEIGHTINGS, weighting_settings), split_count,
    )  # fmt: skip


def _bind_settings(kind: str, name: str, table: Mapping[str, Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """The table's entry of that name, with its settings bound."""
    function = find(kind, name, table)
    return functools.partial(function, **check_settings(kind, name, function, settings))


def _sum_counts(parts: Sequence[Mapping[str, float]], row_length: int) -> dict[str, float]:
    """Adds up counts over the parts of a step; `staleness` is the mean over tokens, `fill` the mean over live rows."""
    if len(parts) == 1:
        return dict(parts[0])
    names = dict.fromkeys(name for part in parts for name in part if name not in ("fill", "staleness", "staleness_max"))
    sums = {name: sum(part[name] for part in parts) for name in names}
    sums["fill"] = sums["tokens_processed"] / (sums["rows"] * row_length) if sums["rows"] else 0.0
    stale_counts = [part for part in parts if "staleness" in part]
    if stale_counts:
        token_count = sum(part["tokens_trained"] for part in stale_counts)
        sums["staleness"] = sum(part["staleness"] * part["tokens_trained"] for part in stale_counts) / token_count
        sums["staleness_max"] = max(part["staleness_max"] for part in stale_counts)
    return sums


@dataclasses.dataclass(frozen=True)
class HardNegatives:
    """Adds `weight` · DPO of pairs of a success and a hard negative of the same group to a step's loss.

    A hard negative is a failure whose partial reward is at least `min_partial`. DPO's β is `beta`; its reference is
    the policy before the step.
    """

    weight: float
    beta: float = 0.1
    min_partial: float = 0.6

    @functools.cached_property
    def loss(self) -> BoundLoss:
        return bind_loss("dpo", LOSSES, {"beta": self.beta})

    def rows(self, group_sizes: Sequence[int], shape: RowShape) -> int:
        """The number of rows of this batch in a step whose groups have `group_sizes` trajectories."""
        return shape.rows_for(sum(group_sizes), 2)

    def pack(
        self, groups: Sequence[Group], seed: tuple[int, int], shape: RowShape, group_sizes: Sequence[int] = ()
    ) -> tuple[TrainBatch, dict[str, float]]:
        """Packs a step's pairs, and counts failures, hard negatives and pairs.

        `group_sizes` are as in `Objective.pack_batches`.
        """
        trajectory_pairs = [pair for group in groups for pair in packing.draw_pairs(group, seed, self.min_partial)]
        pairs = [Pair(better, worse, self.weight) for better, worse in trajectory_pairs]
        failures = [failure for group in groups for failure in group.valid if failure.reward < 1.0]
        counts = {
            "failures": float(len(failures)),
            "hard_negatives": float(sum(trajectory.partial >= self.min_partial for trajectory in failures)),
            "hard_pairs": float(len(pairs)),
        }
        row_count = self.rows(group_sizes or [len(group.trajectories) for group in groups], shape)
        return packing.pack_examples(pairs, shape, row_count), counts
