"""What a policy began as, what it was shown before its first step, and how it was trained since.

`origin` in model.json, summary.json and result.json has these keys:

    folder           the model folder it began as, "" for a policy from scratch
    weights          SHA-256 of that folder's weights, where demonstrations were shown
    shown            how many different demonstrations it learned from; missing in runs of older releases
    demonstrations   how many were played, and how many of these were `dropped` because they are longer than a row
    batches, epochs  batches of demonstrations, and how often each one that was shown was learned on average
    lora_rank        rank of the adapters that learned them, 0 where all weights did
    checks           the scores on the way, of a policy from a model folder
    steps, evolve    steps of training since, and how the task set grew; in summary.json and result.json
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.run.trained import settings_of
from cojax.storage.files import read_json

_COUNTS = ("demonstrations", "dropped", "shown")


def taught(folder: str, weights: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The origin of a policy with a warm start, from `warm_start.read_record`; `folder` is "" from scratch."""
    section, checks = record["key"]["settings"], record["checks"]
    batches = checks[-1]["step"]
    return {
        "folder": folder,
        **({"weights": weights} if folder else {}),
        **{name: record[name] for name in _COUNTS},
        "batches": batches,
        "epochs": round(batches * section["batch_size"] / record["shown"], 2),
        "lora_rank": section["lora"]["rank"] if folder else 0,
        **({"checks": checks} if folder else {}),
    }


def origin_of(workdir: Path, step: int | None = None) -> dict[str, Any]:
    """The origin of the policy of a run: before its first step, or after `step` steps. Raises OSError or ValueError."""
    settings, path = settings_of(workdir), workdir / "model.json"
    origin = read_json(path).get("origin", {}) if path.exists() else {}
    if not origin:
        # A run of an older release: a model folder was recorded only where it was shown demonstrations.
        untaught = settings["model"]["path"] or not settings["warm_start"]["steps"]
        origin = {"folder": settings["model"]["path"], **({"shown": 0} if untaught else {})}
    return origin if step is None else {**origin, "steps": step, "evolve": settings["evolve"]}
