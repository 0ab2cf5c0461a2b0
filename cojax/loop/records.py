"""The end of a step: the evolution that is due, the step's record in metrics.jsonl, and its checkpoint."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cojax import signals
from cojax.loop import Loop, State
from cojax.loop.evolution import Evolutions, make_evolution_record
from cojax.rollout.collect import count_outcomes
from cojax.synthesis import Interrupted, Synthesis
from cojax.types import Group, Signal

if TYPE_CHECKING:
    from cojax.storage.run_directory import RunDirectory


def end_step(
    evolutions: Evolutions, state: State, record: Mapping[str, Any], observe: Callable[[dict[str, Any]], None]
) -> State:
    """Ends a step and returns the new state: runs the evolution that is due, writes the record and the checkpoint.

    If the evolution is stopped, the checkpoint keeps the record so far, with the seconds that the step took. The
    evolution then starts again when the run is resumed.
    """
    loop = evolutions.loop
    try:
        state, record = evolutions.run_at_end(state, record)
    except Interrupted:
        state = dataclasses.replace(state, record={**record, "seconds": loop.clock.lap()})
        return _save_drained(evolutions, state)
    observe(add_scores(evolutions, state, record))
    state = dataclasses.replace(state, record=None)
    is_last = state.step == loop.steps
    if state.step % loop.checkpoint_every == 0 or is_last or evolutions.is_due_beside(state) or evolutions.stop():
        return _save_drained(evolutions, state)
    return state


def _save_drained(evolutions: Evolutions, state: State) -> State:
    """Checkpoints the state with the groups of all steps ordered: their weights are older, and stored nowhere."""
    state = dataclasses.replace(state, waiting=evolutions.drain())
    save(evolutions.loop, state, evolutions.directory)
    return state


def make_step_record(
    loop: Loop,
    state: State,
    groups: Sequence[Group],
    new_signals: Sequence[Signal],
    metrics: Mapping[str, float],
    syntheses: Sequence[Synthesis],
) -> dict[str, Any]:
    """The record of the state's step.

    It is made from the step's `groups`, the signals in them, the learner's `metrics`, and the `syntheses` of
    evolutions that ran in parallel with the step. It depends only on the seed, and holds no times.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    record: dict[str, Any] = {
        "step": state.step,
        **_average_figures(loop, groups, metrics),
        "tokens_sampled": sum(len(turn.action_tokens) for trajectory in trajectories for turn in trajectory.turns),
        "tasks": len(state.pool),
        **({"groups_sampled": len(groups)} if loop.dynamic_sampling else {}),
        "outcomes": count_outcomes(trajectories),
        "origins": _count_by_origin(groups),
        **({"replayed": _count_replayed(groups)} if "prefixes" in loop.detectors else {}),
        "signals": {kind: sum(s.kind == kind for s in new_signals) for kind in signals.list_names(loop.kinds)},
        **metrics,
    }
    for synthesis in syntheses:
        record |= make_evolution_record(synthesis, state.last_evolution)
    return record


def _average_figures(loop: Loop, groups: Sequence[Group], metrics: Mapping[str, float]) -> dict[str, float]:
    """Means over the groups' valid episodes, and the share of live groups; empty if no episode is valid.

    Zeros would make the policy look as if it had forgotten everything once the run's episodes are used up.
    """
    valid_episodes = [episode for group in groups for episode in group.valid]
    if not valid_episodes:
        return {}
    return {
        "success": sum(episode.reward >= 1.0 for episode in valid_episodes) / len(valid_episodes),
        "reward": sum(episode.reward for episode in valid_episodes) / len(valid_episodes),
        "partial": sum(episode.partial for episode in valid_episodes) / len(valid_episodes),
        "turns": sum(len(episode.turns) for episode in valid_episodes) / len(valid_episodes),
        "live_groups": metrics["groups_live"] / max(1.0, len(groups) if loop.dynamic_sampling else metrics["groups"]),
    }


def _count_by_origin(groups: Sequence[Group]) -> dict[str, dict[str, int]]:
    """Counts, for each origin of tasks, the groups with at least two valid episodes, and the live groups."""
    counts_by_origin: dict[str, dict[str, int]] = {}
    for group in groups:
        if len(group.valid) > 1:
            origin_counts = counts_by_origin.setdefault(group.task.origin, {"groups": 0, "live": 0})
            origin_counts["groups"] += 1
            origin_counts["live"] += group.live
    return dict(sorted(counts_by_origin.items()))


def _count_replayed(groups: Sequence[Group]) -> dict[str, float]:
    """The number of groups whose episodes began with replayed actions, and the mean number of these actions."""
    prefix_lengths = [prefix_length for group in groups if group.valid and (prefix_length := group.valid[0].replayed)]
    return {"groups": len(prefix_lengths), "actions": sum(prefix_lengths) / max(1, len(prefix_lengths))}


def add_scores(evolutions: Evolutions, state: State, record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the step's development score, if it has one, and the pool's quality after an evolution."""
    loop, full_record = evolutions.loop, dict(record)
    with loop.clock("evaluation"):
        if loop.score_every and state.step % loop.score_every == 0:
            evolutions.drain()
            full_record["dev"] = loop.score(state.step)
        if "evolution" in full_record and (quality := loop.quality(state.pool)):
            full_record["evolution"] = {**full_record["evolution"], "quality": quality}
    return full_record


def save(loop: Loop, state: State, directory: "RunDirectory") -> None:
    """Checkpoints the state."""
    with loop.clock("checkpoint"):
        host_state = {
            "evolved": state.last_evolution,
            "fresh": len(state.pool.fresh),
            "clock": loop.clock.state(),
            "record": state.record,
        }
        directory.save(state.step, state.arrays, host_state, state.waiting)
