"""A run's evaluations on the held-out split, before training and after it, and summary.json of a finished run."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from ml_collections import ConfigDict

from cojax import signals
from cojax.evaluation.scores import held_out_score
from cojax.host.stopwatch import Stopwatch
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.preference import KINDS
from cojax.report.console import CONSOLE
from cojax.report.run import verdicts_of
from cojax.run.parts import Parts
from cojax.run.trained import origin_of
from cojax.storage.files import read_json
from cojax.storage.run_directory import RunDirectory
from cojax.types import Status


def summarise(
    steps: int,
    directory: RunDirectory,
    zero_shot: float | None,
    final: Mapping[str, Any],
    clock: Stopwatch,
    similarities: Mapping[str, float],
) -> dict[str, Any]:
    """summary.json: the result, the counts of what happened, and the seconds of each part.

    `final` is as in final.json. `trials` are the successes after each trial, where failed tasks are tried again.
    `final_by` is the final success for each kind of task, where evaluation.by names a key of kinds.
    `similarities` are as cojax/run/parts.py records them. `origin` is as in cojax/run/trained.py.
    """
    records = list(directory.metrics.read())
    evolutions = [record["evolution"] for record in records if "evolution" in record]
    trained = sum(record["tokens_trained"] for record in records)
    compared = [record for record in records if "logprob_mismatch" in record]
    mismatch = sum(record["logprob_mismatch"] * record["tokens_trained"] for record in compared)
    tasks = sum(1 for _ in directory.tasks.read())
    added = _sum(evolution["added"] for evolution in evolutions)
    return {
        "origin": origin_of(directory.folder, steps),
        "zero_shot": zero_shot,
        "final": final["success"],
        **({"final_by": final["by"]} if final.get("by") else {}),
        **({"trials": [trial["success"] for trial in final["trials"]]} if "trials" in final else {}),
        **similarities,
        "steps": steps,
        "tasks_initial": tasks - sum(added.values()),
        "tasks_final": tasks,
        "signals": dict.fromkeys(signals.SIGNALS, 0) | _sum(record["signals"] for record in records),
        "verdicts": dict.fromkeys(get_args(Status), 0) | _sum(map(verdicts_of, evolutions)),
        "added": added,
        **_probed(evolutions),
        "initial": read_json(path) if (path := directory.folder / "initial.json").exists() else {},
        "explorer": _explored(evolutions),
        "quality": evolutions[-1].get("quality", {}) if evolutions else {},
        "outcomes": _sum(record["outcomes"] for record in records),
        "seconds": clock.summary(),
        "tokens": {"sampled": sum(record["tokens_sampled"] for record in records), "trained": int(trained)},
        "logprob_mismatch": mismatch / (sum(record["tokens_trained"] for record in compared) or 1.0),
        "hard_negatives": _hard_negatives(records),
    }


def _hard_negatives(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of the failures of all agents that are hard negatives; None where no failure was compared with anything."""
    if grpo := [record for record in records if "hard_negatives" in record]:
        if not any(record["hard_pairs"] for record in grpo):
            return None
        return sum(record["hard_negatives"] for record in grpo) / sum(record["failures"] for record in grpo)
    rounds = [record["preference"] for record in records if "preference" in record]
    if not any(one["examples"].get(kind) for one in rounds for kind in KINDS):
        return None
    agents = [one[agent] for one in rounds for agent in ("target", "second") if agent in one]
    return sum(agent["hard"] for agent in agents) / sum(agent["failures"] for agent in agents)


def _explored(evolutions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The totals of the evolutions' expeditions, and their cost where a model explored."""
    figures = [evolution["explorer"] for evolution in evolutions if "explorer" in evolution]
    costs = {name for found in figures for name in found if name != "failures"}
    return {
        "expeditions": sum(evolution["expeditions"] for evolution in evolutions),
        "explorer_failures": sum(evolution["explorer_failures"] for evolution in evolutions),
        **{name: sum(found[name] for found in figures) for name in sorted(costs)},
        **({"failures": _sum(found["failures"] for found in figures)} if figures else {}),
    }


def _probed(evolutions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The key `probe`, with what the probes before admission took; {} for a run without."""
    probes = [evolution["probe"] for evolution in evolutions if evolution.get("probe")]
    names = ("candidates", "episodes", "turns", "tokens")
    return {"probe": {name: sum(probe.get(name, 0) for probe in probes) for name in names}} if probes else {}


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def zero_shot_score(
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
    with clock("evaluation"):
        if made.evaluation:
            made.engine.load(learner.weights(state, 0))
        found, episodes = held_out_score(config, made, "zero-shot evaluation")
    directory.files.add_evaluation("zero_shot", found, episodes)
    success, count = found["success"], len(found["tasks"])
    if made.evaluation:
        CONSOLE.print(f"zero-shot: {100 * success:.1f} % on {count} {config.evaluation.split} tasks")
    return success
