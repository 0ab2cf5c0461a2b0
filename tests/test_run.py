"""The command itself, in processes of its own: resume after a kill, equal runs, overrides, signals, bad input."""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from desk_runs import SMALL, Runs, before_its_last_checkpoint, flags
from patience import patience
from same_runs import assert_same_run, episodes, lines

from cojax.report.lineage import find_task_id
from cojax.report.page import build_contents
from cojax.report.run import read_run
from cojax.run.changes import Change
from cojax.run.fork import make_fork, read_parent

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def runs(commands, shared_cache) -> Runs:
    return Runs(commands, shared_cache)


@pytest.fixture(scope="module")
def reference(runs, tmp_path_factory) -> Path:
    """An uninterrupted run, by the command as a user types it."""
    workdir = tmp_path_factory.mktemp("reference") / "run"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", *flags(workdir)],
        cwd=ROOT, env=runs.environment, capture_output=True, text=True, timeout=patience(300), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return workdir


OVERLAPPED = ("staleness=1", "signals=rare", "validate=false")


@pytest.fixture(scope="module")
def overlapped(runs, tmp_path_factory) -> Path:
    """The same with rollouts one step ahead of the updates, and without two kinds of signals and validation."""
    workdir = tmp_path_factory.mktemp("overlapped") / "run"
    done = runs(workdir, *OVERLAPPED)
    assert done.returncode == 0, done.stdout + done.stderr
    return workdir


@pytest.fixture(scope="module")
def begun(runs, tmp_path_factory) -> Path:
    """A run of no steps, whose first two starts were mistyped: refused at once, and once its folder was there."""
    workdir = tmp_path_factory.mktemp("begun") / "run"
    assert runs(workdir, "evolve=sideways").returncode == 1
    learned_by_heart = ("warm_start.split=seed", "evaluation.split=seed", "warm_start.demonstrations=32")
    assert runs(workdir, *learned_by_heart).returncode == 1
    assert (workdir / "config.json").exists()
    done = runs(workdir, "steps=0")
    assert done.returncode == 0, done.stdout + done.stderr
    return workdir


@pytest.fixture(scope="module")
def interrupted(begun, runs, tmp_path_factory) -> tuple[Path, str]:
    """The run of no steps extended to four, and what it said when it was stopped in its third. It was then killed in
    the evolution of its fourth, and the newest checkpoint damaged."""
    workdir = shutil.copytree(begun, tmp_path_factory.mktemp("interrupted") / "run")
    status, said = runs.signalled(workdir, lambda: in_rollout(workdir), signal.SIGTERM, "steps=4")
    assert status == 128 + signal.SIGTERM, said
    status, printed = runs.signalled(workdir, lambda: in_evolution(workdir), signal.SIGKILL, "steps=4")
    assert status == -signal.SIGKILL, printed
    assert "resumed at step 3" in printed
    damaged = next(p for p in (workdir / "checkpoints/3/arrays").rglob("*") if p.is_file() and p.stat().st_size > 1000)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    done = runs.continued(workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at step 2" in done.stdout
    return workdir, said


@pytest.mark.real
def test_the_desk_in_workers_gives_the_same_run(reference, runs, tmp_path):
    done = runs(tmp_path / "run", "environment.isolated=True")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_run(reference, tmp_path / "run")


def test_the_summary_has_its_keys_and_the_time_adds_up(reference):
    summary = json.loads((reference / "summary.json").read_text())
    assert summary.keys() >= {
        "zero_shot", "final", "steps", "tasks_initial", "tasks_final", "signals", "verdicts", "outcomes", "seconds",
        "tokens", "logprob_mismatch",
    }  # fmt: skip
    seconds = summary["seconds"]
    parts = sum(spent for part, spent in seconds.items() if part not in ("total", "warm_start"))
    assert abs(parts - seconds["total"]) <= 0.02 * seconds["total"]
    assert summary["steps"] == 6
    assert summary["tasks_initial"] == 12
    assert summary["tasks_final"] == len(lines(reference / "tasks.jsonl")) > 12
    assert summary["outcomes"].keys() <= {"finished", "truncated"}
    assert summary["logprob_mismatch"] < 1e-4
    last = [record["evolution"] for record in lines(reference / "metrics.jsonl") if "evolution" in record][-1]
    assert summary["quality"] == last["quality"]
    assert last["quality"]["tasks"] == summary["tasks_final"]
    assert last["quality"]["initial"]["tasks"] == 12
    assert last["quality"].keys() >= {"sr_at_k", "ed_rel", "max_similarity", "turns", "synthesized"}
    pairs = build_contents(read_run(reference))["pairs"]
    assert len(pairs) == 24
    solved = sum(pair["after"]["reward"] == 1.0 for pair in pairs) / 24
    assert solved == pytest.approx(summary["final"])
    assert (reference / "report.html").stat().st_size > 10_000


@pytest.mark.skipif(platform.machine() != "x86_64", reason="same_bits sets variables on x86-64 alone")
def test_its_process_has_the_variables_of_equal_bits(reference):
    variables = json.loads((reference / "config.json").read_text())["hardware"]["environment"]
    assert "--xla_cpu_max_isa=AVX2" in variables["XLA_FLAGS"].split()
    assert variables["NPROC"] == "2"


def test_the_evaluation_of_its_last_checkpoint_is_the_runs_own(reference, runs, tmp_path):
    given = [f"--config.{setting}" for setting in SMALL]
    done = runs.command(
        "experiments.evaluate", "--config=experiments/desk.py", *given, f"--checkpoint={reference}", f"--out={tmp_path}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["policy"]["checkpoint"] == 6
    assert result["splits"]["eval"]["success"] == json.loads((reference / "summary.json").read_text())["final"]
    assert result["splits"]["eval"]["tasks"] == 24


def test_the_policy_learns_on_policy(reference):
    records = lines(reference / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(record["ratio_max"] == 1.0 for record in records if record["updates"])
    assert any(record["updates"] for record in records)


def in_rollout(workdir: Path) -> bool:
    """Just after the checkpoint of step 2: the rollout of step 3 is under way."""
    host = workdir / "checkpoints/2/host.json"
    return host.exists() and time.time() - host.stat().st_mtime > 0.02


def in_evolution(workdir: Path) -> bool:
    """Step 4 has stored its episodes; its evolution comes next."""
    return (workdir / "episodes/000004.jsonl.gz").exists()


def in_checkpoint(workdir: Path) -> bool:
    """The checkpoint of step 4 is being written."""
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(re.fullmatch(r"\.4\.\d+\.tmp", path.name) for path in folder.iterdir())


def in_the_last_evaluation(workdir: Path) -> bool:
    return (workdir / "checkpoints/6/host.json").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("moment", [in_rollout, in_evolution, in_checkpoint, in_the_last_evaluation])
def test_a_killed_run_goes_on_to_the_identical_result(moment, reference, runs, tmp_path):
    workdir = tmp_path / "run"
    status, _ = runs.signalled(workdir, lambda: moment(workdir), signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert not (workdir / "summary.json").exists()
    done = runs(workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"resumed at step [246]\b", (workdir / "run.log").read_text())
    assert_same_run(workdir, reference)


# Ten moments in the order of a run: a step has stored its episodes, a checkpoint is being written, the run evaluates.
MOMENTS = ("episodes/000001*", "episodes/000002*", "checkpoints/.2.*", "episodes/000003*", "episodes/000004*",
           "checkpoints/.4.*", "episodes/000005*", "episodes/000006*", "checkpoints/.6.*", "checkpoints/6")  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_a_run_killed_at_ten_moments_goes_on_to_the_identical_result(staleness, runs, tmp_path):
    straight, killed, setting = tmp_path / "straight", tmp_path / "killed", f"staleness={staleness}"
    done = runs(straight, setting)
    assert done.returncode == 0, done.stdout + done.stderr
    for step, found in enumerate(episodes(straight).values(), 1):
        versions = {turn["weights_version"] for episode in found for turn in episode["turns"]}
        assert versions == {max(0, step - 1 - staleness)}
    for moment in MOMENTS:
        status, printed = runs.signalled(
            killed, lambda moment=moment: any(killed.glob(moment)), signal.SIGKILL, setting
        )
        assert status == -signal.SIGKILL, printed
    done = runs(killed, setting)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_run(killed, straight)


@pytest.mark.nightly
def test_overlapped_steps_resume_with_the_groups_that_waited(overlapped, runs, tmp_path):
    """Data, order, counters, and with the local engine every bit: the groups sampled ahead are in the checkpoint."""
    workdir = tmp_path / "run"
    status, _ = runs.signalled(workdir, lambda: in_checkpoint(workdir), signal.SIGKILL, *OVERLAPPED)
    assert status == -signal.SIGKILL
    done = runs(workdir, *OVERLAPPED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"resumed at step [24]\b", (workdir / "run.log").read_text())
    assert_same_run(workdir, overlapped)


def test_overlapped_steps_are_one_update_behind(overlapped, reference):
    records = lines(overlapped / "metrics.jsonl")
    for step, found in enumerate(episodes(overlapped).values(), 1):
        assert {turn["weights_version"] for episode in found for turn in episode["turns"]} == {max(0, step - 2)}
    learned = [record for record in records[1:] if record["groups_live"]]
    assert learned
    assert all(record["staleness"] == record["staleness_max"] == 1.0 for record in learned)
    # The first step has nothing to run ahead of: it is the step of any run.
    for key in ("success", "tokens_sampled", "groups_live"):
        assert records[0][key] == lines(reference / "metrics.jsonl")[0][key]
    # Step 3 was sampled while step 2 trained: its tasks are from before the evolution that ended step 2.
    known = {record["id"] for record in lines(overlapped / "tasks.jsonl") if not record["lineage"]["step"]}
    assert {episode["episode"].split("-")[1] for episode in episodes(overlapped)["000003.jsonl.gz"]} <= known
    seconds = json.loads((overlapped / "summary.json").read_text())["seconds"]
    parts = sum(spent for part, spent in seconds.items() if part not in ("total", "warm_start"))
    # Six steps are over in five seconds: what threads take to begin and to end is more than a fiftieth of that.
    assert abs(parts - seconds["total"]) <= max(0.02 * seconds["total"], 0.2)


@pytest.mark.parametrize("settings", [(), pytest.param(("staleness=1",), marks=pytest.mark.nightly)])
def test_steps_that_sample_until_a_batch_is_live_resume_to_the_identical_result(settings, runs, tmp_path):
    chosen = ("dynamic_sampling=8", "steps=4", "curriculum=learnability", "evaluation.every=0", *settings)
    straight = tmp_path / "straight"
    done = runs(straight, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    killed = before_its_last_checkpoint(straight, tmp_path / "killed")
    done = runs(killed, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at step 2" in done.stdout
    assert_same_run(killed, straight)
    records = lines(straight / "metrics.jsonl")
    played = {len(found) for found in episodes(straight).values()}
    assert max(played) > 4 * 4  # some step took more than its batch
    for record, found in zip(records, episodes(straight).values(), strict=True):
        assert sum(record["outcomes"].values()) == len(found) == 4 * record["groups_sampled"]
        assert record["groups_live"] == record["groups"] <= 4
        assert record["groups_live"] == 4 or record["groups_sampled"] == 8
        # With weights one update old or none, whether a task was of the first batch or not.
        assert len({turn["weights_version"] for episode in found for turn in episode["turns"]}) == 1


@pytest.mark.nightly
def test_retention_keeps_what_a_resume_looks_back_to(runs, tmp_path):
    """Killed in step 5, resumed at 4: the evolution of step 6 needs episodes that the killed run saw as old."""
    settings = ("evolve_every=3", "episodes_kept=1", "checkpoints_kept=1", "evolve=trajectory")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert runs(straight, *settings).returncode == 0
    moment = killed / "episodes/000005.jsonl.gz"
    runs.signalled(killed, moment.exists, signal.SIGKILL, *settings)
    done = runs(killed, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at step 4" in done.stdout
    assert_same_run(killed, straight)
    assert list(episodes(straight)) == ["000006.jsonl.gz"]


@pytest.mark.nightly
def test_two_runs_of_one_seed_are_the_same(reference, runs, tmp_path):
    """Also with another number of slots and threads: who runs beside an episode changes nothing in it."""
    done = runs(tmp_path / "run", "limits.concurrency=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.nightly
def test_an_interrupt_finishes_the_step_and_the_run_goes_on_to_the_identical_result(reference, runs, tmp_path):
    workdir = tmp_path / "run"
    status, output = runs.signalled(workdir, lambda: in_rollout(workdir), signal.SIGINT)
    assert status == 128 + signal.SIGINT, output
    done = runs.continued(workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_run(workdir, reference)


def test_a_signal_finishes_the_step_and_says_how_to_go_on(interrupted):
    workdir, said = interrupted
    assert "stopped at step 3 of 4; run the same command again to go on, or look at it by: cojax report " in said
    log = (workdir / "run.log").read_text()
    assert all(line in log for line in said.splitlines() if line.startswith(("step ", "D_0: ", "stopped ")))


def test_a_finished_run_of_before_some_settings_prints_its_table_and_refuses_others(interrupted, runs, tmp_path):
    """A key that config.json lacks means its default of today, by flags and from the folder alone."""
    workdir = shutil.copytree(interrupted[0], tmp_path / "run")
    record = json.loads((workdir / "config.json").read_text())
    del record["checksum"], record["config"]["quality"], record["config"]["validation"]["safe"]
    del record["config"]["llm"]["timeout"], record["config"]["staleness"], record["config"]["environment"]["isolated"]
    for again in (lambda: runs.continued(workdir), lambda: runs(workdir, "steps=4")):
        (workdir / "config.json").write_text(json.dumps(record))
        done = again()
        assert done.returncode == 0, done.stdout + done.stderr
        assert "zero-shot" in done.stdout
        assert "step " not in done.stdout
    (workdir / "config.json").write_text(json.dumps(record))
    other = runs.continued(workdir, "quality.k=7", "staleness=1")
    assert other.returncode == 1
    assert "other settings: quality.k, staleness (quality.k was 5, now 7)" in other.stdout


def test_stopped_killed_damaged_and_extended_a_run_ends_as_one_that_never_was(interrupted, reference, runs, tmp_path):
    workdir = shutil.copytree(interrupted[0], tmp_path / "run")
    assert json.loads((workdir / "summary.json").read_text())["steps"] == 4
    done = runs.continued(workdir, "steps=6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at step 4" in done.stdout
    assert_same_run(workdir, reference)


def list_drawn(run: Path, step: int) -> set[str]:
    """The tasks that a step drew."""
    return {find_task_id(episode) for episode in read_run(run).episodes.read(step)}


def test_a_fork_without_a_task_that_is_never_drawn_again_is_the_same_run(reference, runs, tmp_path):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in reference.rglob("*") if path.is_file()}
    drawn = list_drawn(reference, 5) | list_drawn(reference, 6)
    idle = next(task["id"] for task in lines(reference / "tasks.jsonl") if task["id"] not in drawn)
    fork = tmp_path / "fork"
    done = runs.command("experiments.fork", str(reference), "--at=4", f"--without=task:{idle}", f"--workdir={fork}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"up to step 6 the fork equals {reference}: no step since 4 drew what is gone" in done.stdout
    assert "One pair of runs is one draw" in " ".join(done.stdout.split())
    assert f'"fork":"fork of run at step 4 without task:{idle}"' in (fork / "report.html").read_text()
    assert_same_run(reference, fork)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in reference.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.nightly
def test_a_fork_killed_at_any_moment_and_forked_again_does_without(reference, runs, tmp_path):
    change = Change("evolution", "2")
    straight, killed, again = tmp_path / "straight", tmp_path / "killed", tmp_path / "again"
    make_fork(read_parent(reference, 2), change, straight)
    assert runs.continued(straight).returncode == 0
    make_fork(read_parent(reference, 2), change, killed)
    command = runs.commands.start("experiments.run", f"--workdir={killed}", environment=runs.environment)
    deadline = time.monotonic() + patience(200)
    while not in_evolution(killed):
        assert command.poll() is None, command.printed()
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    command.send_signal(signal.SIGKILL)
    command.wait(timeout=60)
    done = runs.continued(killed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_run(straight, killed)
    gone = {task["id"] for task in lines(straight / "tasks.jsonl") if task["lineage"]["step"] == 2}
    assert gone
    assert gone & set.union(*(list_drawn(reference, step) for step in (3, 4, 5, 6)))
    assert not gone & set.union(*(list_drawn(straight, step) for step in (3, 4, 5, 6)))
    make_fork(read_parent(straight, 4), Change("signal", "rare"), again)
    done = runs.continued(again)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list_drawn(again, 5) == list_drawn(straight, 5)
    assert {signal["step"] for signal in lines(again / "signals.jsonl") if signal["kind"] == "rare"} <= {1, 2, 3, 4}


@pytest.mark.nightly
def test_a_fork_of_overlapped_steps_drops_the_groups_sampled_ahead_of_what_is_gone(overlapped, runs, tmp_path):
    gone = sorted(list_drawn(overlapped, 5))[0]
    fork = tmp_path / "fork"
    make_fork(read_parent(overlapped, 4), Change("task", gone), fork)
    done = runs.continued(fork)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list_drawn(fork, 5) == list_drawn(overlapped, 5) - {gone}
    assert gone not in list_drawn(fork, 6)


@pytest.mark.nightly
def test_every_arm_is_one_override(reference, runs, tmp_path):
    grown = {}
    for arm in ("none", "random", "uniform", "trajectory"):
        done = runs(tmp_path / arm, f"evolve={arm}", "steps=2", "evaluation.every=0")
        assert done.returncode == 0, done.stdout + done.stderr
        tasks = lines(tmp_path / arm / "tasks.jsonl")
        grown[arm] = {task["origin"] for task in tasks[12:]}
    assert grown == {"none": set(), "random": {"unguided"}, "uniform": {"uniform"}, "trajectory": {"trajectory"}}
    assert {task["origin"] for task in lines(reference / "tasks.jsonl")[12:]} <= {"forgetting", "boundary", "rare"}


def test_ablations_switch_signals_and_validation_off(overlapped):
    assert {signal["kind"] for signal in lines(overlapped / "signals.jsonl")} == {"rare"}
    evidence = [draft["verdict"]["evidence"][-1] for draft in lines(overlapped / "drafts.jsonl")]
    assert "not validated: validation is off" in evidence


def test_every_task_has_its_lineage(reference):
    tasks = lines(reference / "tasks.jsonl")
    stored = {record["episode"] for records in episodes(reference).values() for record in records}
    ids = {task["id"] for task in tasks}
    assert len(ids) == len(tasks)
    for task in tasks[12:]:
        lineage = task["lineage"]
        assert lineage["parent"] in ids
        assert lineage["episode"] in stored
        assert lineage["verdict"] == "accepted"
        assert lineage["signal"]
        assert lineage["step"] in (2, 4, 6)


def test_a_workdir_of_another_config_is_refused_and_untouched(reference, runs, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*") if path.name != ".lock"}
    done = runs(reference, "seed=5")
    assert done.returncode == 1
    assert "holds a run with other settings: seed (seed was 0, now 5)" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*") if path.name != ".lock"} == before


def test_a_mistyped_first_start_does_not_claim_the_workdir(begun):
    summary = json.loads((begun / "summary.json").read_text())
    assert (summary["steps"], summary["tasks_initial"], summary["tasks_final"]) == (0, 12, 12)
    assert summary["zero_shot"] == summary["final"]


def test_a_second_process_in_one_workdir_is_refused(runs, tmp_path):
    workdir = tmp_path / "run"
    first = runs.start(workdir)
    try:
        deadline = time.monotonic() + patience(60)
        while not (workdir / "run.log").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = runs(workdir)
        assert second.returncode == 1
        assert "another process is running" in second.stdout
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=patience(60))


def test_preflight_tries_everything_and_trains_nothing(runs, tmp_path):
    done = runs.command("experiments.run", *flags(tmp_path / "run"), "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ok ", done.stdout, re.MULTILINE)) == 11
    assert re.search(r"^ok +configuration: .* steps on 1 × cpu, platform cpu$", done.stdout, re.MULTILINE)
    assert not (tmp_path / "run").exists()
    bad = runs.command("experiments.run", *flags(tmp_path / "run", "learner.row_length=100"), "--check")
    assert bad.returncode == 1
    assert "failed  configuration: " in bad.stdout
