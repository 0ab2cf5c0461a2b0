"""experiments/study/rounding.py, without a run."""

import pytest

from experiments.study.rounding import copies, describe, main, spread_of


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
        (["--copies=0"], "--copies=0; expected at least 1 perturbed run beside the run itself"),
        (["--config.nosuch=1"], "nosuch is not a setting; python -m experiments.reference lists them all"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_runs(tmp_path, capsys, arguments, why):
    assert main([*arguments, f"--runs={tmp_path / 'runs'}"]) == 2
    assert capsys.readouterr().err == f"error: {why}\n"
    assert not (tmp_path / "runs").exists()
