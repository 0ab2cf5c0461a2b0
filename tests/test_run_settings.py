"""The command on settings that it refuses, on presets, and on configurations that are not there."""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest
from commands import ROOT
from desk_runs import Runs


@pytest.fixture(scope="module")
def runs(commands, shared_cache) -> Runs:
    return Runs(commands, shared_cache)


# Settings that are refused, and what is said of them.
REFUSED = (
    (("nonsense=1",), "nonsense is not a setting; python -m experiments.reference lists them all"),
    (("step=3",), "step is not a setting; did you mean steps or "),
    (("learner.batch_size=3",), "learner.batch_size is not a setting; did you mean batch_size or "),
    (("evolve=sideways",), "evolve 'sideways' not found; available: none, random"),
    (("signals=boredom",), "signal 'boredom' not found; available: forgetting"),
    (
        ("environment.name=atlantis",),
        "environment 'atlantis' not found; available: alfworld, appworld, bfcl, desk, mcp, openenv, "
        "scienceworld, tau2, verifiers",
    ),
    (("engine.name=warp",), "engine 'warp' not found; available: local"),
    (("learner.loss=hope",), "loss 'hope' not found; available: grpo"),
    (("model.path=/nowhere",), "model.path '/nowhere' is not a folder"),
    (("policy=huge",), "policy 'huge' not found; available: qwen3-4b, qwen2.5-7b, qwen3-30b-a3b, smollm2, tiny"),
    (("model.tokenizer=runes",), "model.tokenizer is 'runes'; expected one of 'words', 'bytes'"),
    (
        ("warm_start.split=seed", "evaluation.split=seed", "warm_start.demonstrations=32"),
        "what was learned by heart cannot be evaluated",
    ),
    (("group_size=1",), "group_size is 1; expected a whole number at least 2"),
    (("quorum=0.25",), "quorum is 0.25 of a group of 4; expected a share, at most 1, of at least 2 episodes"),
    (("limits.concurrency=0",), "limits.concurrency is 0; expected a whole number at least 1"),
    (("staleness=-1",), "staleness is -1; expected a whole number at least 0"),
    (("sampling.temperature=0.0",), "sampling.temperature is 0.0; expected a number above 0"),
    (("batch_size=0",), "batch_size is 0"),
    (("warm_start.noise_low=0.5",), "warm_start.noise_low is 0.5, above noise_high, 0.3"),
    (("warm_start.epochs=True",), "an epoch takes all demonstrations from the first batch on; set --config.warm_start"),
    (
        ("warm_start.lora.rank=4",),
        "model.path names no model folder for them to adapt; set --config.warm_start.lora.rank=0",
    ),
    (("warm_start.pretrained_learning_rate=0.1",), "a policy from scratch is taught by warm_start.learning_rate; set"),
    (
        ("model.path=environments", "warm_start.learning_rate=0.1"),
        "a model folder is taught by warm_start.pretrained_learning_rate; set",
    ),
    (
        ("model.path=environments", "warm_start.learning_rate=0.003", "warm_start.steps=0", "warm_start.lora.rank=4"),
        "warm_start.lora.rank is 4, but warm_start.steps is 0",
    ),
    (("learner.row_length=100",), "a row must hold the longest episode"),
    (("workdir=/proc/cojax",), "Choose another --config.workdir"),
    (("mesh=2",), "mesh is a section, given 2; set what stands in it: --config.mesh.NAME=VALUE"),
    (("steps=1" + "0" * 400,), "steps is a whole number of very many digits; expected a whole number at least 0"),
    (("explorer.width=x",), "explorer.width is 'x'; expected a whole number at least 1 or None"),
    (("explorer.width=None", "stepz=1"), "stepz is not a setting"),
    (("=3",), "'' is not a setting"),
    (("STEPS=3",), "STEPS is not a setting; did you mean steps or "),
    (("learner.loss_settings.kl_coeficient=1",), "did you mean learner.loss_settings.kl_coefficient? it has "),
    (("learner.loss_setings.kl_coefficient=1",), "did you mean learner.loss_settings.kl_coefficient or "),
    (("signal_settings.rare.percnt=1",), "did you mean signal_settings.rare.percent? it has "),
    (("environment.isolted=1",), "did you mean environment.isolated? it has "),
    (("environment.isolated",), "--config.environment.isolated has no value; give it as"),
    (("mesh.data=x",), "mesh.data is 'x'; expected a whole number at least 1 or -1"),
)


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_bad_settings_are_named_with_the_fix(settings, said, runs, tmp_path):
    done = runs(tmp_path / "run", *settings)
    assert done.returncode == 1
    assert said in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.real
def test_a_preset_is_stored_resolved_and_the_same_command_goes_on(runs, tmp_path):
    """A policy from scratch, bytes for tokens, random at the start: nothing in it needs a demonstrator."""
    workdir = tmp_path / "run"
    chosen = (
        "policy=tiny", "model.tools=none", "model.shape.hidden_size=32", "model.shape.num_hidden_layers=1",
        "model.vocabulary=300", "engine.max_length=320", "learner.row_length=320", "sampling.max_tokens=16",
        "limits.max_turns=3", "evaluation.tasks=8", "evaluation.dev_tasks=20", "warm_start.steps=0",
        f"workdir={workdir}",
    )  # fmt: skip

    def preset(*settings: str) -> subprocess.CompletedProcess[str]:
        given = [f"--config.{setting}" for setting in (*chosen, *settings)]
        return runs.command("experiments.run", "--config=experiments/desk.py", *given)

    first = preset("steps=1")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "tools: the policy is shown no documentation" in first.stdout
    assert "policy: from scratch, shown no demonstrations (warm_start.steps=0)" in first.stdout
    began = json.loads((workdir / "config.json").read_text())
    stored, desk = began["config"], ROOT / "experiments/desk.py"
    assert began["file"]["path"] == str(desk)
    assert began["file"]["hash"] == hashlib.sha256(desk.read_bytes()).hexdigest()
    assert (stored["policy"], stored["group_size"], stored["model"]["tokenizer"]) == ("tiny", 4, "bytes")
    assert (stored["model"]["tools"], stored["model"]["shape"]["hidden_size"]) == ("none", 32)  # flags win
    longer = preset("steps=2")
    assert longer.returncode == 0, longer.stdout + longer.stderr
    assert "resumed at step 1" in longer.stdout
    alone = runs.continued(workdir, "steps=3")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert "resumed at step 2" in alone.stdout
    continued = json.loads((workdir / "config.json").read_text())
    assert (continued["config"], continued["file"]) == ({**stored, "steps": 3}, began["file"])
    other = preset("steps=4", "model.tools=brief")
    assert other.returncode == 1
    assert "holds a run with other settings: model.tools (model.tools was 'none', now 'brief')" in other.stdout


@pytest.mark.parametrize("override", [(), ("--config.steps=3",)])
def test_a_missing_config_file_is_named(override, runs):
    done = runs.command("experiments.run", "--config=experiments/deks.py", *override)
    assert done.returncode == 1
    said = "error: --config=experiments/deks.py: there is no such file; did you mean experiments/desk.py?\n"
    assert done.stdout == said
    assert "Traceback" not in done.stderr


def test_two_run_directories_are_refused(runs, tmp_path):
    done = runs.continued(tmp_path / "one", f"workdir={tmp_path / 'two'}")
    assert done.returncode == 1
    assert f"--workdir={tmp_path}/one and --config.workdir={tmp_path}/two name two run directories" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workdir",), "--workdir has no value; give it as --workdir=VALUE"),
        (("--workdir", "--config.steps=3"), "--workdir has no value"),
        (("--workdir=x", "--config"), "--config has no value"),
        (("--workdir=x", "--config="), "--config is empty; expected a file with get_config()"),
        (("--workdir=" + "x" * 300,), "File name too long"),
        (
            ("--config=experiments/desk.py", "config.steps=3"),
            "unexpected argument 'config.steps=3'; settings are given",
        ),
        (("--config=experiments/desk.py", "--noconfig.validate=1"), "--noconfig.validate=1 does not take an argument"),
        (("--config=experiments/desk.py", "--stpes=3"), "--stpes is not a flag; did you mean --config.steps?"),
        (("--cofnig=experiments/desk.py",), "error: --cofnig is not a flag; did you mean --config? "),
        (("-wrokdir", "runs/desk"), "error: --wrokdir is not a flag; did you mean --workdir? "),
        (
            ("--cofnig=experiments/desk.py", "--workdir=no-such-run"),
            "error: --cofnig is not a flag; did you mean --config? ",
        ),
        (("experiments/desk.py",), "an experiment is named by --config=experiments/desk.py"),
        (("--work-dir=runs/desk",), "error: --work-dir is not a flag; did you mean --workdir? "),
        (("--cofnig.steps=3",), "error: --cofnig.steps is not a flag; did you mean --config.steps? "),
        (("--chekc",), "error: --chekc is not a flag; did you mean --check? "),
        (("--config.stpes=3",), "error: stpes is not a setting; did you mean steps or "),
    ],
)
def test_a_flag_without_a_value_and_a_name_of_no_folder(arguments, said, runs):
    done = runs.command("experiments.run", *arguments)
    assert done.returncode == 1
    assert said in done.stdout
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


def test_a_model_that_is_not_there_is_said_before_anything_is_written(runs, tmp_path):
    done = runs(tmp_path / "run", "model.path=/nowhere")
    assert "model.path '/nowhere' is not a folder" in done.stdout
    assert not list(tmp_path.iterdir())


def test_without_an_experiment_or_a_run_the_fix_is_named(runs, tmp_path):
    neither = runs.command("experiments.run", "--config.steps=3")
    assert neither.returncode == 1
    assert "name an experiment, --config=experiments/desk.py, or the folder of a run" in neither.stdout
    empty = runs.continued(tmp_path)
    assert empty.returncode == 1
    assert f"{tmp_path} holds no run to go on with (no config.json there); to begin one" in empty.stdout
    assert len(empty.stdout.splitlines()) == 1
