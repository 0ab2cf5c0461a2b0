"""What is said of a policy: what it began as, what it was shown, how it was trained since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trained_runs import config

from cojax.report.page import write_report
from cojax.report.run import describe_origin, read_run
from cojax.run.trained import make_origin, read_origin

TAUGHT = {"shown": 272, "epochs": 1.0, "lora_rank": 0}
RECORD = {
    "key": {"settings": {"batch_size": 32, "lora": {"rank": 4}}},
    "checks": [{"step": 100, "loss": 0.5, "success": 0.1}, {"step": 200, "loss": 0.2, "success": 0.25}],
    "demonstrations": 2_000, "dropped": 3, "shown": 678,
}  # fmt: skip


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (
            {"folder": "/m/SmolLM2-135M-Instruct", **TAUGHT, "steps": 24, "evolve": "feedback"},
            "pretrained from SmolLM2-135M-Instruct, shown 272 demonstrations once each, learned by all weights, "
            "then co-evolved for 24 steps",
        ),
        (
            {"folder": "/m/Qwen3-4B/", **TAUGHT, "epochs": 2.5, "lora_rank": 16, "steps": 1_000, "evolve": "none"},
            "pretrained from Qwen3-4B, shown 272 demonstrations 2.5 times each on average, learned by LoRA of rank 16, "
            "then trained for 1,000 steps (evolve=none)",
        ),
        (
            {"folder": "", **TAUGHT, "shown": 6_780, "epochs": 9.44},
            "from scratch, shown 6,780 demonstrations 9.44 times each on average, learned by all weights",
        ),
        ({"folder": "", "shown": 0, "steps": 0, "evolve": "feedback"}, "from scratch, shown no demonstrations"),
        ({"folder": "models/Qwen3-4B"}, "the model folder Qwen3-4B as it is"),
        ({"folder": ""}, "from scratch, shown an unknown number of demonstrations"),
    ],
)
def test_the_line(origin: dict, line: str) -> None:
    assert describe_origin(origin) == line


def test_a_warm_start_from_scratch_is_counted_without_its_scores() -> None:
    assert make_origin("", "", RECORD) == {
        "folder": "", "demonstrations": 2_000, "dropped": 3, "shown": 678, "batches": 200, "epochs": 9.44,
        "lora_rank": 0,
    }  # fmt: skip
    of_folder = make_origin("/m", "ab", RECORD)
    assert (of_folder["weights"], of_folder["lora_rank"], of_folder["checks"]) == ("ab", 4, RECORD["checks"])


def workdir_of(folder: Path, origin: dict | None, **settings: object) -> Path:
    plain = json.loads(json.dumps(config(**settings).to_dict()))
    (folder / "config.json").write_text(json.dumps({"config": plain}))
    if origin is not None:
        (folder / "model.json").write_text(json.dumps({"config": {}, "origin": origin}))
    return folder


def test_of_a_run_after_its_steps(tmp_path: Path) -> None:
    workdir = workdir_of(tmp_path, {"folder": "", **TAUGHT}, evolve="uniform")
    assert read_origin(workdir) == {"folder": "", **TAUGHT}
    assert read_origin(workdir, 6) == {"folder": "", **TAUGHT, "steps": 6, "evolve": "uniform"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warm_start__steps": 0}, {"folder": "", "shown": 0}),
        ({"warm_start__steps": 9}, {"folder": ""}),
        ({"warm_start__steps": 0, "model__path": "/m"}, {"folder": "/m", "shown": 0}),
    ],
)
def test_of_a_run_that_is_older_than_the_record(settings: dict, expected: dict, tmp_path: Path) -> None:
    assert read_origin(workdir_of(tmp_path, {}, **settings)) == expected
    (tmp_path / "model.json").unlink()
    assert read_origin(tmp_path) == expected


def test_the_report_says_it_also_of_a_run_that_has_not_ended(tmp_path: Path) -> None:
    workdir = workdir_of(tmp_path, {"folder": "/m/SmolLM2</script>", **TAUGHT})
    line = "pretrained from script>, shown 272 demonstrations once each, learned by all weights"
    assert read_run(workdir).origin["shown"] == 272
    assert line.replace(">", "\\u003e") in write_report(workdir).read_text()
    (workdir / "summary.json").write_text(json.dumps({"origin": {"folder": "", "shown": 0}}))
    assert "from scratch, shown no demonstrations" in write_report(workdir).read_text()
