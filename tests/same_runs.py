"""Whether two run directories hold the same run, to the bit, times left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def untimed(path: Path) -> list[dict]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in lines(path)]


def episodes(workdir: Path) -> dict[str, list[dict]]:
    """Every stored episode without its times."""

    def clean(record: dict) -> dict:
        turns = [
            {key: value for key, value in turn.items() if not key.endswith("_seconds")} for turn in record["turns"]
        ]
        return {**{key: value for key, value in record.items() if not key.endswith("_seconds")}, "turns": turns}

    return {
        path.name: [clean(json.loads(line)) for line in gzip.open(path)]
        for path in sorted((workdir / "episodes").iterdir())
    }


def arrays(workdir: Path) -> list[np.ndarray]:
    """Parameters and optimiser state of the last checkpoint, whichever devices wrote it."""
    import jax

    arrays_folder = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name)) / "arrays"
    checkpointer = ocp.PyTreeCheckpointer()
    as_numpy = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), checkpointer.metadata(arrays_folder).item_metadata.tree
    )
    return [np.asarray(leaf) for leaf in jax.tree.leaves(checkpointer.restore(arrays_folder, restore_args=as_numpy))]


def assert_same_run(folder: Path, other_folder: Path) -> None:
    for file_name in ("metrics.jsonl", "tasks.jsonl", "signals.jsonl", "drafts.jsonl", "memory.jsonl"):
        assert untimed(folder / file_name) == untimed(other_folder / file_name), file_name
    assert episodes(folder) == episodes(other_folder)
    for file_name in (ZERO_SHOT_EPISODES, FINAL_EPISODES):
        assert (folder / file_name).read_bytes() == (other_folder / file_name).read_bytes(), file_name
    pairs = list(zip(arrays(folder), arrays(other_folder), strict=True))
    assert len(pairs) > 10
    for left, right in pairs:
        assert left.tobytes() == right.tobytes()
    for key in ("zero_shot", "final", "tasks_final", "signals", "verdicts", "outcomes", "tokens", "logprob_mismatch"):
        summaries = [json.loads((workdir / "summary.json").read_text()) for workdir in (folder, other_folder)]
        assert summaries[0][key] == summaries[1][key], key
