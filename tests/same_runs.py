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
        turns = [{k: v for k, v in turn.items() if not k.endswith("_seconds")} for turn in record["turns"]]
        return {**{k: v for k, v in record.items() if not k.endswith("_seconds")}, "turns": turns}

    return {
        path.name: [clean(json.loads(line)) for line in gzip.open(path)]
        for path in sorted((workdir / "episodes").iterdir())
    }


def arrays(workdir: Path) -> list[np.ndarray]:
    """Parameters and optimiser state of the last checkpoint, whichever devices wrote it."""
    import jax

    last = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name)) / "arrays"
    files = ocp.PyTreeCheckpointer()
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), files.metadata(last).item_metadata.tree)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(files.restore(last, restore_args=as_numpy))]


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "tasks.jsonl", "signals.jsonl", "drafts.jsonl", "memory.jsonl"):
        assert untimed(one / name) == untimed(other / name), name
    assert episodes(one) == episodes(other)
    for name in (ZERO_SHOT_EPISODES, FINAL_EPISODES):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    pairs = list(zip(arrays(one), arrays(other), strict=True))
    assert len(pairs) > 10
    for left, right in pairs:
        assert left.tobytes() == right.tobytes()
    for key in ("zero_shot", "final", "tasks_final", "signals", "verdicts", "outcomes", "tokens", "logprob_mismatch"):
        summaries = [json.loads((workdir / "summary.json").read_text()) for workdir in (one, other)]
        assert summaries[0][key] == summaries[1][key], key
