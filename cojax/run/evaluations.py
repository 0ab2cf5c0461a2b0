"""A run's evaluations on the held-out split, before training and after it, and what is stored of them."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from cojax.evaluation.scores import HeldOut, held_out_score
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.metrics import Stopwatch
from cojax.report.console import CONSOLE
from cojax.run.parts import Parts
from cojax.storage.files import read_json
from cojax.storage.run_directory import RunDirectory


def zero_shot(
    config: ConfigDict, made: Parts, learner: Learner, state: TrainState, clock: Stopwatch, directory: RunDirectory
) -> float | None:
    """Held-out success before training, measured once a run; None where there is nothing to evaluate on."""
    path = directory.folder / "zero_shot.json"
    if directory.files.has_zero_shot:
        try:
            success = read_json(path)["success"]
            return float(success) if made.evaluation else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read ({error}). Delete it: it is measured again.") from error
    if not made.evaluation:
        directory.files.add_zero_shot(record(None), ())
        return None
    with clock("evaluation"):
        made.engine.load(learner.weights(state, 0))
        found = held_out_score(config, made, "zero-shot evaluation")
    directory.files.add_zero_shot(record(found), found.episodes)
    score = found.score
    CONSOLE.print(f"zero-shot: {100 * score.success:.1f} % on {score.tasks} {config.evaluation.split} tasks")
    return score.success


def record(found: HeldOut | None) -> dict[str, Any]:
    """zero_shot.json and final.json. Scores by task show which tasks were kept, recovered and lost.

    Where there is nothing to evaluate on, the success is null, and there are no tasks.
    """
    if found is None:
        return {"success": None, "tasks": {}}
    score = found.score
    record = {
        "success": score.success,
        "error": score.error,
        "partial": score.partial,
        "lost": score.lost,
        "bounds": list(score.bounds),
        "by": found.by,
        "by_tool": found.by_tool,
        "tasks": found.tasks,
    }
    trials = [dataclasses.asdict(trial) for trial in found.trials]
    return {**record, "trials": trials, "tasks_at_last": found.tasks_at_last} if trials else record
