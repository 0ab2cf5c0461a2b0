"""experiments/study/rounding.py, without a run."""

import threading

import pytest
from study_records import record

from cojax.storage.files import read_json, write_json
from experiments.study import rounding
from experiments.study.rounding import copies, describe, main, measure, spread_of


def test_the_copies_differ_in_the_perturbation_alone():
    runs = copies("feedback", 21, 2, {"steps": 60})
    assert [run.name for run in runs] == ["feedback-copy-0-21", "feedback-copy-1-21", "feedback-copy-2-21"]
    assert [run.config["perturbation"] for run in runs] == [0, 1, 2]
    assert [run.config["evaluation"]["split"] for run in runs] == ["dev", "dev", "dev"]
    rest = [{name: value for name, value in run.config.items() if name != "perturbation"} for run in runs]
    assert rest[0] == rest[1] == rest[2]


def test_the_spread_is_over_runs():
    spread = spread_of([0.50, 0.52, 0.57])
    assert spread == pytest.approx({"runs": 3, "mean": 0.53, "deviation": 0.0360555, "least": 0.50, "most": 0.57})
    assert describe(spread) == (
        "3 runs that differ in rounding alone: mean 53.0 %, standard deviation 3.6 points, from 50.0 to 57.0 %"
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--seed=201"], "--seed=201 is no development seed; expected one of 21, 22, 23, 24, 25, 26"),
        (["--deadline=0"], "--deadline=0; expected seconds above 0"),
        (["--copies=0"], "--copies=0; expected 1 to 1000 perturbed runs beside the run itself"),
        (["--copies=1000000000"], "--copies=1000000000; expected 1 to 1000 perturbed runs beside the run itself"),
        (["--config.nosuch=1"], "nosuch is not a setting; python -m experiments.reference lists them all"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_runs(tmp_path, capsys, arguments, why):
    assert main([*arguments, f"--runs={tmp_path / 'runs'}"]) == 2
    assert capsys.readouterr().err == f"error: {why}\n"
    assert not (tmp_path / "runs").exists()


def test_an_entry_that_does_not_exist_is_named_before_anything_runs(tmp_path, capsys):
    assert main(["--config.synthesis.admit=prob", f"--runs={tmp_path / 'runs'}"]) == 2
    assert capsys.readouterr().err.startswith("error: admission 'prob' not found; available: all, probe")
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def ended(monkeypatch):
    """Every run ends at once."""

    def end_all(runs, folder, cores, deadline, stop, on_end):
        for run in runs:
            on_end(run, "", 1.0)

    monkeypatch.setattr(rounding.schedule, "run_all", end_all)
    return copies("feedback", 21, 1, {})


def test_a_damaged_run_does_not_end_the_others(tmp_path, capsys, ended):
    for run in ended:
        for name in ("summary", "config", "zero_shot", "final"):
            write_json(tmp_path / run.name / f"{name}.json", {})
    assert measure(ended, tmp_path, [None], 1.0, threading.Event()) == 1
    assert capsys.readouterr().out.count("holds a damaged run (KeyError('config')); delete it") == 2
    write_json(tmp_path / ended[0].name / "config.json", {"config": -1})
    assert measure(ended[:1], tmp_path, [None], 1.0, threading.Event()) == 1
    assert "holds a damaged run (AttributeError" in capsys.readouterr().out


def test_runs_without_evaluation_tasks_have_no_spread(tmp_path, capsys, monkeypatch, ended):
    bare = {**record("feedback", 21, 0.5), "zero_shot": None, "final": None}
    monkeypatch.setattr(rounding, "record_or_reason", lambda *given: (bare, ""))
    assert measure(ended, tmp_path, [None], 1.0, threading.Event()) == 0
    assert "feedback-copy-1-21: – → – % in 1.0 s" in capsys.readouterr().out
    assert read_json(tmp_path / "rounding.json")["spread"] is None
