"""What each agent learns in a round: the target from experts and failures, the failure agent from failures alone."""

import dataclasses
import random
from collections.abc import Mapping, Sequence

from cojax.learner.batch import Pair
from cojax.learner.learner import Learner, learn_round
from cojax.learner.update import Metrics, TrainState
from cojax.preference import Preference
from cojax.preference.experts import distinct_successes
from cojax.preference.failures import Failure, failure_pairs, failures_of, unsampled
from cojax.types import Group, Trajectory

Seed = tuple[int | str, ...]


def learn_failures(
    learner: Learner,
    state: TrainState,
    own: Sequence[Failure],
    other: Sequence[Failure],
    settings: Preference,
    seed: Seed,
) -> tuple[TrainState, Metrics]:
    """The failure agent's part of a round: DPO on pairs of failures, the one with more partial reward preferred.

    `own` are its failures, `other` those of the target. `state` is donated. Raises what `learn_round` raises.
    """
    theirs = {failure.trajectory.episode for failure in other}
    pairs = failure_pairs(
        [*other, *own],
        settings.margin,
        (*seed, "second"),
        played_by_other=lambda trajectory: trajectory.episode in theirs,
    )
    state, metrics = learn_round(learner, state, pairs, settings.epochs, settings.batch_size, (*seed, "second"))
    return state, {**metrics, "pairs": float(len(pairs))}


def agent_pairs(
    settings: Preference,
    experts: Mapping[str, Sequence[Trajectory]],
    own: Sequence[Group],
    other: Sequence[Group],
    seed: Seed,
) -> dict[str, list[Pair]]:
    """Kind (one of KINDS) → the pairs from which one agent learns. It played the groups `own`, the other agent `other`.

    `experts` maps the id of a task to its experts. Each expert pair takes one of them, drawn by `seed` and the failure.
    An expert that this agent did not play must be marked by `unsampled`. A kind of weight 0 has no pairs.
    """
    mine, theirs = failures_of(own), failures_of(other)
    names = {failure.trajectory.episode for failure in theirs}
    weights = {kind: settings.dpo * weight for kind, weight in settings.kinds.items()}
    pairs: dict[str, list[Pair]] = {kind: [] for kind in weights}
    for kind, failures in (("own", mine), ("other", theirs)):
        for failure in failures if weights[kind] else ():
            worse = failure.trajectory if kind == "own" else unsampled(failure.trajectory)
            if known := experts.get(worse.task.id):
                better = random.Random(repr((*seed, worse.task.id, worse.episode))).choice(known)
                # Without its turns beyond `extra_turns` more than the expert has.
                cut = dataclasses.replace(worse, turns=worse.turns[: len(better.turns) + settings.extra_turns])
                pairs[kind].append(Pair(better, cut, weights[kind]))
    if weights["failures"]:
        pairs["failures"] = failure_pairs(
            [*mine, *theirs], settings.margin, seed, weights["failures"], played_by_other=lambda t: t.episode in names
        )
    return pairs


def experts_by_task(
    settings: Preference, solutions: Mapping[str, Trajectory], own: Sequence[Group], other: Sequence[Group]
) -> dict[str, list[Trajectory]]:
    """Task id → what counts as its experts by `settings.experts`, as seen by the agent that played `own`."""
    found = {task: [trajectory] for task, trajectory in solutions.items()} if settings.experts != "successes" else {}
    if settings.experts == "solutions":
        return found
    solved: dict[str, list[Trajectory]] = {}
    for trajectory in (*distinct_successes(own), *map(unsampled, distinct_successes(other))):
        solved.setdefault(trajectory.task.id, []).append(trajectory)
    return {**solved, **found}
