"""The study: its figures by hand, its tables, which run starts when, and a small table from end to end."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cojax.storage.files import write_json
from cojax.storage.run_directory import locked
from cojax.types import content_hash
from environments import load
from experiments.checks import check
from experiments.study import figures, schedule
from experiments.study.__main__ import _parser, load_record, main, plan_tables, record_path, select_arms, settings_of
from experiments.study.breakdown import breakdowns, prior_mastery
from experiments.study.launch import THREADS
from experiments.study.markdown import render_page
from experiments.study.panels import colours
from experiments.study.record import (
    NotFinished,
    budget,
    cross_table,
    differing_parts,
    evolutions,
    learning,
    mismatch,
    record_of,
    refusal_counts,
    solved_tasks,
)
from experiments.study.schedule import Queue
from experiments.study.statistics import SeedEstimate, estimate, paired_difference
from experiments.study.summary import summarise
from experiments.study.tables import (
    ARMS,
    COMMON,
    DEVELOPMENT_SEEDS,
    EVALUATION_SEEDS,
    LOSS_SEEDS,
    ON_DEVELOPMENT_TASKS,
    TABLES,
    StudyRun,
    Table,
    configuration_of,
    jobs,
)  # fmt: skip
from experiments.study.tasks import describe_tasks, least_popular

ROOT = Path(__file__).parents[2]


def test_means_have_students_interval():
    found = estimate([1.0, 2.0, 3.0, 4.0])  # s = 1.29099, t(3) = 3.18245: half = 3.18245 · 1.29099 / 2
    assert (found.mean, found.count) == (2.5, 4)
    assert (found.low, found.high) == pytest.approx((0.44574, 4.55426), abs=1e-5)
    assert estimate([0.3]) == SeedEstimate(0.3, None, None, 1)
    with pytest.raises(ValueError, match="no value"):
        estimate([])


def test_differences_are_paired_by_the_seeds_that_both_have():
    found = paired_difference(
        {1: 0.5, 2: 0.6, 3: 0.7}, {2: 0.4, 3: 0.6, 9: 1.0}
    )  # 0.2 and 0.1: s = 0.0707, t(1) = 12.7062
    assert found.count == 2
    assert (found.mean, found.low, found.high) == pytest.approx((0.15, -0.48531, 0.78531), abs=1e-5)
    # What the seeds share cancels out: far apart from each other, one point apart in each pair.
    assert paired_difference({1: 0.1, 2: 0.5, 3: 0.9}, {1: 0.0, 2: 0.4, 3: 0.8}).low == pytest.approx(0.1)
    assert paired_difference({1: 0.5}, {2: 0.5}) is None


@pytest.mark.parametrize("development", [False, True])
def test_every_arm_is_a_configuration_that_the_main_command_takes(development):
    seeds = DEVELOPMENT_SEEDS if development else EVALUATION_SEEDS
    made = jobs(list(ARMS), seeds, development)
    assert len(made) == len(ARMS) * len(seeds)
    for job in made[: len(ARMS)]:
        config = configuration_of(job.settings)
        check(config)
        assert (config.seed, config.evaluation.split) == (seeds[0], "dev" if development else "eval")
        own = dict(ON_DEVELOPMENT_TASKS) if development else {}
        assert job.settings == {**COMMON, **ARMS[job.arm].settings, **own, "seed": seeds[0]}
    assert len({json.dumps(job.config) for job in made}) == len(made)


def test_all_tables_are_planned_at_once_and_a_part_of_one_has_its_own_name():
    def names(*flags):
        return [(name, len(jobs)) for name, _, jobs in plan_tables(_parser().parse_args(flags), {})]

    assert names("--name=all", "--seeds=2") == [(name, 2 * len(table.arms)) for name, table in TABLES.items()]
    assert names("--arms=static, feedback,static", "--seeds=3") == [("main-of-static-feedback", 6)]
    assert names("--quick") == [("main", 8)]
    assert names("--name=losses") == [("losses", 20)]
    ((_, _, made),) = plan_tables(_parser().parse_args(["--name=losses", "--seeds=1"]), {})
    assert {(job.seed, job.config["steps"]) for job in made} == {(201, 60)}
    ((_, _, made),) = plan_tables(_parser().parse_args(["--name=losses", "--development"]), {"steps": 3})
    assert {(job.seed, job.config["steps"]) for job in made} == {(seed, 3) for seed in DEVELOPMENT_SEEDS[:4]}


def test_what_makes_an_arm_is_not_overridden():
    retry, static = jobs(["zero-shot-retry", "static"], [101], further={"steps": 60, "evaluation.trials": 2})
    assert (retry.config["steps"], retry.config["evaluation"]["trials"]) == (0, 3)
    assert (static.config["steps"], static.config["evaluation"]["trials"]) == (60, 2)
    peeking = {"evaluation.split": "eval", "evaluation.dev_split": "eval"}
    (developed,) = jobs(["static"], [21], development=True, further=peeking)
    assert {developed.config["evaluation"][name] for name in ("split", "dev_split")} == {"dev"}


def test_arms_of_a_table_are_told_apart_by_colour():
    for table in TABLES.values():
        shades = colours(table.arms)
        assert list(shades) == list(table.arms)
        assert len(set(shades.values())) == len(table.arms)
    assert colours(TABLES["main"].arms)["feedback"] == colours(TABLES["own"].arms)["feedback"]


def test_seeds_and_tables_are_sound():
    assert len({*DEVELOPMENT_SEEDS, *EVALUATION_SEEDS, *LOSS_SEEDS}) == 6 + 12 + 4
    for table in TABLES.values():
        assert set(table.arms) <= set(ARMS)
        assert {arm for pair in table.differences for arm in pair} <= set(table.arms)
    # What is taken away or added is all that tells an arm from feedback; the growth is the same a step.
    for period, arm in ((5, "period-5"), (20, "period-20")):
        config = configuration_of(ARMS[arm].settings)
        assert config.evolve_every == period
        assert (
            config.synthesis.budget / period
            == configuration_of({}).synthesis.budget / configuration_of({}).evolve_every
        )


def test_losses_are_compared_in_as_many_episodes():
    """Where each part of an update's settings is the arm's own, all else is alike."""
    table = TABLES["losses"]
    made = {job.arm: job.config for job in jobs(table.arms, LOSS_SEEDS[:1], further=table.settings)}
    assert {arm: config["learner"]["loss"] for arm, config in made.items()} == {
        "grpo": "grpo", "gspo": "gspo", "cispo": "cispo", "dr-grpo": "grpo", "dynamic": "grpo",
    }  # fmt: skip
    assert made["dr-grpo"]["learner"]["weighting_settings"] == {"length": 256}
    played = {arm: config["steps"] * config["batch_size"] * config["group_size"] for arm, config in made.items()}
    assert {played[arm] for arm in table.arms[:-1]} == {made["dynamic"]["episodes"]} == {7680}
    assert not any(made[arm]["episodes"] for arm in table.arms[:-1])
    own = {"learner", "batch_size", "dynamic_sampling", "episodes"}
    shared = [{name: value for name, value in config.items() if name not in own} for config in made.values()]
    assert all(one == shared[0] for one in shared)
    assert {config["learner"]["updates_per_batch"] for config in made.values()} == {4}


def test_a_setting_that_does_not_exist_or_does_not_fit_is_refused():
    with pytest.raises(KeyError, match="nosuch is not a setting"):
        configuration_of({"nosuch": 1})
    with pytest.raises(KeyError, match="synthesis"):
        configuration_of({"synthesis.nosuch": 1})
    with pytest.raises(TypeError):
        configuration_of({"steps": "many"})
    assert configuration_of({"learner.weighting_settings.length": 9}).learner.weighting_settings.length == 9
    assert settings_of(["--config.steps=4", "--config.signals=rare", "--config.validate=False"]) == {
        "steps": 4, "signals": "rare", "validate": False,
    }  # fmt: skip
    with pytest.raises(ValueError, match="unexpected argument '--step=4'"):
        settings_of(["--step=4"])
    with pytest.raises(ValueError, match="arm 'uniform' is not in table 'main'; it has static"):
        select_arms("main", "static,uniform")
    assert select_arms("main", "static, feedback").differences == (("feedback", "static"),)


def test_of_runs_that_share_a_warm_start_one_goes_ahead():
    made = jobs(["static", "feedback"], [101, 102])
    queue = Queue([*made, StudyRun("own", 101, {"seed": 101, "warm_start.steps": 7})])
    first, second, third = (queue.take() for _ in range(3))
    assert [job.name for job in (first, second, third)] == ["static-101", "static-102", "own-101"]
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take()))
    waiting.start()
    time.sleep(0.1)
    assert not taken
    queue.warm_start_made(second)
    waiting.join(5)
    assert [job.name for job in taken] == ["feedback-102"]
    queue.run_ended(first)  # it failed before its warm start was there
    assert queue.take().name == "feedback-101"
    assert queue.take() is None


def test_a_queue_that_is_cleared_gives_nothing_to_who_waits():
    queue = Queue(jobs(["static", "feedback"], [101]))
    queue.take()
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take()))
    waiting.start()
    queue.clear()
    waiting.join(5)
    assert taken == [None]


def launch(core, parent, code):
    return [sys.executable, "-m", "experiments.study.launch", core, str(parent), "-c", code]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins processes and tells of a parent's death")
def test_a_run_is_pinned_and_ends_with_the_study(tmp_path):
    core = max(os.sched_getaffinity(0))
    said = subprocess.run(
        launch(str(core), os.getpid(), "import os; print(os.sched_getaffinity(0))"),
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == str({core})
    assert subprocess.run(launch("-", 1, "print('ran')"), cwd=ROOT, timeout=60, check=False).returncode == 143

    child = (
        "import signal, sys; from pathlib import Path;"
        "signal.signal(15, lambda *_: (Path('stopped').touch(), sys.exit())); Path('ready').touch(); signal.pause()"
    )
    parent = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-m', 'experiments.study.launch', '-', str(os.getpid()), '-c', {child!r}],"
        f"env={{**os.environ, 'PYTHONPATH': {str(ROOT)!r}}}).wait()"
    )
    study = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path)
    try:
        wait_for(tmp_path / "ready")
    finally:
        study.kill()
        study.wait()
    wait_for(tmp_path / "stopped")


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.02)


def test_a_run_that_fails_says_why_and_the_others_go_on(tmp_path):
    ended = []
    # The first one's directory is still held by a run that a killed study left, and is waited for.
    held, began = locked(tmp_path / "wrong-1", "--runs"), time.monotonic()
    threading.Timer(1.0, held.close).start()
    schedule.run_all(
        [StudyRun("wrong", 1, {"batch_size": 0}), StudyRun("worse", 1, {"nosuch": 0})], tmp_path, [None], 60.0,
        threading.Event(), lambda job, why, seconds: ended.append((job.name, why)),
    )  # fmt: skip
    assert [name for name, _ in ended] == ["wrong-1", "worse-1"]
    assert time.monotonic() - began > 1.0
    assert ended[0][1].startswith("exit status 1: error: batch_size is 0; expected a whole number at least 1 (see ")
    assert "'nosuch' is not a setting" in (tmp_path / "worse-1.log").read_text()


def test_a_run_that_takes_too_long_is_stopped(tmp_path):
    began = time.monotonic()
    why = schedule.run(StudyRun("slow", 1, dict(COMMON)), tmp_path / "slow", None, 1.0, threading.Event(), lambda: None)
    assert why.startswith("took longer than 1 s; run the same command again")
    assert time.monotonic() - began < 30


def test_cores_are_those_that_the_process_may_use():
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    assert len(set(schedule.available_cores(count))) == count
    if sys.platform == "linux":
        with pytest.raises(ValueError, match=f"--jobs={count + 1}, but this process may use {count} cores"):
            schedule.available_cores(count + 1)


def test_held_out_tasks_are_kept_recovered_lost_or_never_solved():
    before = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.5, "e": 1.0}
    after = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.5, "f": 1.0}  # e and f each lost an episode to the machinery
    found = solved_tasks(before, after)
    assert (found["tasks"], found["zero_shot"], found["final"]) == (4, "1010", "1100")
    assert cross_table(found) == {"kept": 1, "recovered": 1, "lost": 1, "never": 1}
    assert solved_tasks(before, before)["digest"] != found["digest"]


def test_what_a_run_was_given_is_counted():
    rows = [
        {"outcomes": {"finished": 3, "environment_error": 1}, "turns": 2.0},
        {"outcomes": {"finished": 4}, "turns": 2.5, "evolution": {"triplets": 9, "drafts": 4}},
    ]
    summary = {"tokens": {"sampled": 70, "trained": 30}, "tasks_initial": 10, "tasks_final": 13}
    assert budget(summary, rows) == {
        "episodes": 8, "turns": 16, "tokens_sampled": 70, "tokens_trained": 30, "explorer_actions": 9, "drafts": 4,
        "tasks_added": 3,
    }  # fmt: skip


def test_updates_are_counted_and_averaged():
    rows = [{"updates": 3.0, "clip_fraction": 0.1, "grad_norm": 1.0}, {"updates": 1.0, "clip_fraction": 0.5,
             "grad_norm": 3.0}, {"updates": 0.0}, {}]  # fmt: skip
    assert learning(rows) == {"updates": 4.0, "clip_fraction": 0.2, "grad_norm": 1.5}
    assert learning([{"updates": 2.0, "grad_norm": 1.0}]) == {"updates": 2.0, "grad_norm": 1.0}
    assert learning([{}]) == {"updates": 0}


def test_what_updates_were_like_is_told_where_all_records_know_it():
    def told(seed, **figures):
        return {**record("feedback", seed, 0.5), "learning": {"updates": 8.0 * seed, **figures}}

    table = Table("A table", ("feedback",), ())
    page = render_page(summarise("one", table, (1, 2), known(told(1, clip_fraction=0.25), told(2, clip_fraction=0.5))))
    assert "| updates | 12 |" in page
    assert "| learned tokens clipped | 37.5% |" in page
    page = render_page(summarise("one", table, (1, 2), known(told(1, clip_fraction=0.25), record("feedback", 2, 0.5))))
    assert "updates" not in page
    assert "clipped" not in page


def test_conversion_counts_expeditions_and_drafts_of_evolutions_alone():
    expeditions = [{"step": step, "origin": "rare"} for step in (0, 10, 10, 10)] + [{"step": 10, "origin": "boundary"}]
    drafts = [
        {"step": 0, "origin": "unguided", "expedition": 0, "task": "t"},
        {"step": 10, "origin": "rare", "expedition": 0, "task": "u"},
        {"step": 10, "origin": "rare", "expedition": 0, "task": "v"},
        {"step": 10, "origin": "rare", "expedition": 1, "task": ""},
    ]
    assert evolutions(expeditions, drafts) == [
        {"step": 10, "origin": "boundary", "expeditions": 1, "fruitful": 0, "drafts": 0, "tasks": 0},
        {"step": 10, "origin": "rare", "expeditions": 3, "fruitful": 1, "drafts": 3, "tasks": 2},
    ]


def test_refusals_are_counted_by_what_their_reason_begins_with():
    def draft(*lines, step=10, task=""):
        return {"step": step, "task": task, "verdict": {"evidence": ["new, and no evaluation task", *lines]}}

    drafts = [
        draft("duplicate of task 1f2e3d4c5b6a7988"), draft("duplicate of task 0f2e3d4c5b6a7988"),
        draft("negative control: passes without action 1, files_move(file=a)"),
        draft("no effect: ends as it began", step=0),
        draft("run fails: action 1, files_move(file=a): no such file", "the environment returned 1.00"),
        draft("an evaluation task has the same query"), draft("runs: 2 actions, full reward", task="t"),
    ]  # fmt: skip
    assert refusal_counts(drafts) == {
        "duplicate of task": 2, "negative control": 1, "run fails": 1, "an evaluation task has the same query": 1
    }  # fmt: skip


def test_tasks_are_placed_in_one_plane_and_compared_with_those_evaluated():
    tasks = load("desk").tasks("eval", 40)
    tool = least_popular(load("desk"), "finish")
    found = describe_tasks(tasks, tasks[:20], tool)
    assert found["similarity"][:20] == [1.0] * 20
    assert all(0 < value < 1 for value in found["similarity"][25:])
    assert (found["step"], found["origin"]) == ([0] * 40, ["seed"] * 40)
    assert found["turns"] == [len(task.solution) for task in tasks]
    assert set(found["tool"]) <= load("desk").popularity().keys() - {"finish"}
    alone = describe_tasks(tasks[7:8], tasks[:20], tool)
    assert (alone["x"], alone["y"]) == (found["x"][7:8], found["y"][7:8])
    assert len(set(zip(found["x"], found["y"], strict=True))) > 30


def record(arm, seed, final, zero_shot=0.25, digest="d", origins=("rare", "boundary")):
    """A run of two steps on four held-out tasks, as it is stored."""
    added = [] if arm == "static" else list(origins)
    count = round(4 * final)
    job = jobs([arm], [seed])[0]
    return {
        "arm": arm, "seed": seed, "split": "eval", "settings": dict(job.settings), "config": job.config, "steps": 2,
        "facts": {"versions": {"jax": "1"}, "commit": "c", "hardware": {"processor": "P"}}, "threads": dict(THREADS),
        "zero_shot": zero_shot, "final": final,
        "held_out": {"digest": digest, "tasks": 4, "zero_shot": "1000", "final": "1" * count + "0" * (4 - count)},
        "budget": dict.fromkeys(("episodes", "turns", "tokens_sampled", "tokens_trained", "explorer_actions",
                                 "drafts"), 100 + len(added)) | {"tasks_added": len(added)},
        "seconds": {"warm_start": 20.0, "generation": 6.0, "update": 3.0, "feedback": 1.0, "total": 10.0},
        "curves": {"step": [1, 2], "success": [0.2, 0.4], "turns": [3.0, 4.0], "live_groups": [0.5, 0.7],
                   "tasks": [2, 2 + len(added)]},
        "evolution_seconds": 1.0,
        "dev": [[1, 0.2], [2, final]],
        "signals": {"forgetting": [0, 1], "boundary": [5, 3], "rare": [2, 2]},
        "evolutions": [{"step": 2, "origin": origin, "expeditions": 2, "fruitful": 1, "drafts": 2, "tasks": 1}
                       for origin in added],
        "refused": {"duplicate of task": len(added)} if added else {},
        "tasks": {"step": [0, 0, *[2] * len(added)], "origin": ["unguided"] * 2 + added,
                  "turns": [2, 3, *[4] * len(added)],
                  "tool": ["read", "send", *["move"] * len(added)], "x": [0.1, -0.2, *[0.3] * len(added)],
                  "y": [0.0, 0.1, *[0.2] * len(added)], "similarity": [0.4, 0.5, *[0.6] * len(added)]},
        "quality": {"tasks": 4, "sr_at_k": 0.5, "ed_rel": 0.04, "turns": 3.25, "max_similarity": {"mean": 0.55}},
    }  # fmt: skip


PAIR = Table("A table", ("static", "feedback"), (("feedback", "static"),))


def known(*records):
    return {(one["arm"], one["seed"]): one for one in records}


def test_a_table_is_made_of_the_seeds_that_every_arm_has_finished():
    records = known(
        record("static", 1, 0.25), record("feedback", 1, 0.75), record("static", 2, 0.5), record("feedback", 2, 0.75),
        record("static", 3, 0.0),
    )  # fmt: skip
    found = summarise("pair", PAIR, (1, 2, 3), records)
    assert (found["seeds"], found["incomplete_seeds"], found["tasks"]) == ([1, 2], [3], 4)
    assert found["common_settings"] == dict(COMMON)
    static, feedback = found["arms"]
    assert static["final"]["by_seed"] == {"1": 0.25, "2": 0.5}
    assert feedback["cross_table"] == {"kept": 1, "recovered": 2, "lost": 0, "never": 1}
    assert (feedback["gain"]["mean"], feedback["live_groups"], feedback["feedback_share"]) == pytest.approx(
        (0.5, 0.6, 0.1)
    )
    (difference,) = found["differences"]
    assert (difference["mean"], difference["seeds_above_0"], difference["count"]) == (0.375, 2, 2)
    assert difference["high"] == pytest.approx(0.375 + 12.7062 * 0.125, abs=1e-4)
    assert found["made_with"]["core_hours"] == pytest.approx(4 * 30 / 3600)
    page = render_page(found, ["success"])
    assert "| feedback (CoEvolve) − static D_0 | +37.5 | [-121.3, +196.3] | 2 of 2 |" in page
    assert "| tasks added | 0 (-100 %) | 2 |" in page
    assert "| static D_0 | 0.500 | 0.040 | 0.550 | 3.25 |  |" in page
    assert "| move | 0.0 | 2.0 |" in page
    assert "| duplicate of task | 0.0 | 2.0 |" in page
    assert "left out: seeds 3" in page
    assert "![success](pair/success.png)" in page


def test_runs_that_cannot_be_compared_make_no_table_or_one_that_says_so():
    one = known(record("static", 1, 0.25), record("feedback", 1, 0.5, digest="other"))
    with pytest.raises(ValueError, match="2 different sets of tasks"):
        summarise("pair", PAIR, (1,), one)
    with pytest.raises(ValueError, match="no seed of table 'pair' has finished"):
        summarise("pair", PAIR, (2,), one)
    apart = summarise("pair", PAIR, (1,), known(record("static", 1, 0.25), record("feedback", 1, 0.5, zero_shot=0.3)))
    assert apart["seeds_with_several_zero_shots"] == [1]
    assert "Arms of seeds 1 began at different policies" in render_page(apart)
    assert "| feedback (CoEvolve) − static D_0 | +25.0 |  | 1 of 1 |" in render_page(apart)  # one seed has no interval


def stepless(seed):
    """A run without a step, whose final evaluation tries a failed task again."""
    made = record("static", seed, 0.5)
    curves = {name: [] for name in made["curves"]}
    trials = [{"success": 0.25, "episodes": 4}, {"success": 0.5, "episodes": 3}]
    none = {"curves": curves, "dev": [], "signals": {kind: [] for kind in made["signals"]}, "trials": trials}
    return {**made, **none, "arm": "zero-shot-retry", "steps": 0}


def test_an_arm_without_steps_has_a_row_and_every_trial_counts(tmp_path):
    table = Table("Trials", ("zero-shot-retry", "feedback"), (("feedback", "zero-shot-retry"),))
    found = summarise("pair", table, (1, 2), known(*map(stepless, (1, 2)), record("feedback", 1, 0.75),
                                                   record("feedback", 2, 0.75)))  # fmt: skip
    retry, feedback = found["arms"]
    assert (retry["live_groups"], found["steps"]) == (None, [0, 2])
    assert (retry["budget"]["evaluation_episodes"], feedback["budget"]["evaluation_episodes"]) == (7, 4)
    page = render_page(found)
    assert "| zero-shot, three trials | 50.0 ± 0.0 | +25.0 |  |" in page
    assert "| episodes of the final evaluation | 7 (+75 %) | 4 |" in page
    drawn = figures.draw({"zero-shot-retry": [stepless(1)], "feedback": [record("feedback", 1, 0.5)]}, tmp_path)
    assert drawn == list(figures.FIGURES)


def test_success_is_told_by_kind_of_task():
    settings = {"evaluation.tasks": 40, "evaluation.seed": 3}
    tasks = sorted(load("desk").tasks("eval", 40, 3), key=lambda task: task.id)
    short = "".join("1" if len(task.solution) == 2 else "0" for task in tasks)

    def of(arm, final):
        job = jobs([arm], [1], further=settings)[0]
        made = record(arm, 1, 0.5, digest=content_hash([task.id for task in tasks]))
        held_out = {**made["held_out"], "tasks": 40, "zero_shot": "0" * 40, "final": final}
        return {**made, "config": job.config, "held_out": held_out}

    found = breakdowns({"static": [of("static", "0" * 40)], "feedback": [of("feedback", short), of("feedback", short)]})
    by_actions = {row["kind"]: (row["tasks"], row["zero_shot"], row["arms"]) for row in found["actions"]}
    assert by_actions["2"] == (short.count("1"), 0.0, {"static": 0.0, "feedback": 1.0})
    assert by_actions["3"][2] == {"static": 0.0, "feedback": 0.0}
    assert list(by_actions)[-1] == "6 and more"
    for rows in found.values():
        assert sum(row["tasks"] for row in rows) == 40
        assert sum(row["tasks"] * row["arms"]["feedback"] for row in rows) == pytest.approx(short.count("1"))
    rows = [{"kind": "move", "zero_shot": 0.2}, {"kind": "read", "zero_shot": 1.0}]
    added = record("feedback", 1, 0.5, origins=("rare", "rare", "boundary"))
    added["tasks"]["tool"][-1] = "read"
    assert prior_mastery([added, added], rows) == pytest.approx((0.2 + 0.2 + 1.0) / 3)
    assert prior_mastery([record("static", 1, 0.5)], rows) is None
    popularity = load("desk").popularity()
    order = [popularity[row["kind"]] for row in found["tool"]]
    assert order == sorted(order, reverse=True)
    assert "finish" not in {row["kind"] for row in found["tool"]}
    assert breakdowns({"static": [record("static", 1, 0.5)]}) == {}  # of tasks that the desk does not have


def test_pictures_are_drawn_of_what_arms_have(tmp_path):
    def arms(*names):
        return {arm: [record(arm, seed, 0.5) for seed in (1, 2)] for arm in names}

    assert figures.draw(arms("static", "feedback"), tmp_path / "both") == list(figures.FIGURES)
    for name in figures.FIGURES:
        assert (tmp_path / f"both/{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    missing = [name for name, make in figures.FIGURES.items() if make(arms("static")) is None]
    assert missing == ["signals", "conversion", "signal-shares"]


def test_a_record_of_other_settings_is_refused_by_what_differs(tmp_path):
    one = record("static", 101, 0.5)
    (job,) = jobs(["static"], [101])
    assert load_record(tmp_path, job) is None
    write_json(record_path(tmp_path, job.name), one)
    assert load_record(tmp_path, job) == one
    other = jobs(["static"], [101], further={"steps": 3})[0]
    assert mismatch(one, other.config) == f"steps was {COMMON['steps']}, now 3"
    with pytest.raises(ValueError, match=r"static-101.json holds a run with other settings: steps was"):
        load_record(tmp_path, other)
    older = copy.deepcopy(one)
    del older["config"]["quorum"]  # a setting that the code did not have then
    assert mismatch(older, job.config) == ""
    less = jobs(["static"], [101], further={"quorum": 0.5})[0]
    assert mismatch(older, less.config) == "quorum was 1.0, now 0.5"
    elsewhere = {"config": {**job.config, "workdir": "elsewhere"}}
    assert mismatch(elsewhere, job.config) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ("{}", "has 'settings', which is missing"),
        ("[]", "a record is an object, this is a list"),
        (json.dumps({**record("static", 101, 0.5), "config": []}), "has 'config', which is missing or of another kind"),
        (json.dumps(record("static", 102, 0.5)), "it is of the run static-102"),
    ],
)
def test_a_damaged_record_is_refused_by_its_path(tmp_path, text, why):
    (job,) = jobs(["static"], [101])
    path = record_path(tmp_path, job.name)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path}.*{why}"):
        load_record(tmp_path, job)


def test_a_run_of_other_settings_or_fewer_steps_gets_no_record(tmp_path):
    job = jobs(["static"], [101], further={"steps": 3})[0]
    for name in ("zero_shot", "final"):
        write_json(tmp_path / f"{name}.json", {"success": 0.5, "tasks": {}})
    write_json(tmp_path / "summary.json", {"steps": 2})
    write_json(tmp_path / "config.json", {"config": {**job.config, "batch_size": 5}})
    with pytest.raises(NotFinished, match="other settings: batch_size was 5, now 16"):
        record_of(job, tmp_path)
    write_json(tmp_path / "config.json", {"config": {**job.config, "workdir": "there"}})
    with pytest.raises(NotFinished, match="ended after 2 steps, not 3"):
        record_of(job, tmp_path)
    (tmp_path / "final.json").write_text("")
    with pytest.raises(NotFinished, match=f"delete {tmp_path} and run the study again"):
        record_of(job, tmp_path)


def test_two_runs_are_alike_to_the_last_bit_or_say_where_not():
    one = record("feedback", 1, 0.5)
    later = copy.deepcopy(one)
    later["seconds"]["total"] = 99.0
    assert differing_parts(one, later) == []
    later["curves"]["success"][0] += 1e-9
    assert differing_parts(one, later) == ["curves"]


def test_the_command_refuses_what_makes_no_sense(tmp_path, capsys):
    where = [f"--runs={tmp_path / 'runs'}"]
    for flags, said in (
        (["--seeds=13"], "12 seeds are fixed beforehand (101 to 112)"),
        (["--development", "--seeds=7"], "6 seeds are fixed beforehand (21 to 26)"),
        (["--config.nosuch=1"], "nosuch is not a setting of experiments/desk.py"),
        (["--arms=nosuch"], "it has static, random, control, feedback"),
        (["--again=feedback-7", f"--out={tmp_path}"], "there are: none"),
        (["--jobs=0"], "--jobs=0"),
        (["--deadline=nan"], "expected seconds above 0"),
        (["--seed=3"], "unexpected argument '--seed=3'"),
        (["--config.evolve=none"], "evolve distinguishes the runs"),
        (["--config.seed=7"], "seed distinguishes the runs"),
        (["--again=feedback-7", "--config.steps=2"], "--again takes its settings from the stored record"),
        (["extra"], "unexpected argument 'extra'"),
    ):
        assert main([*where, *flags]) == 2, flags
        assert said in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*/"))


SMALL = (
    "steps=4", "evolve_every=2", "checkpoint_every=1", "batch_size=4", "group_size=4", "initial_tasks=12",
    "model.shape.hidden_size=64", "model.shape.intermediate_size=128", "model.shape.num_hidden_layers=2",
    "warm_start.steps=200", "warm_start.check_every=100", "warm_start.demonstrations=2000",
    "warm_start.lengthen=1000", "warm_start.noise_low=0.1", "warm_start.noise_high=0.3",
    "warm_start.check_tasks=40", "warm_start.learning_rate=0.005", "evaluation.tasks=24", "evaluation.dev_tasks=40",
    "evaluation.every=2", "engine.slots=16", "limits.concurrency=16", "synthesis.contexts=6", "synthesis.budget=6",
    "signal_settings.rare.minimum=16", "signal_settings.rare.percent=20.0",
)  # fmt: skip


@pytest.mark.real
@pytest.mark.nightly
def test_a_small_table_from_end_to_end(tmp_path):
    environment = {**os.environ, "COJAX_CACHE": str(tmp_path / "cache")}
    command = [
        sys.executable, "-m", "experiments.study", "--name=adaptive", "--arms=static,retry,feedback", "--seeds=1",
        f"--runs={tmp_path / 'runs'}", *(f"--config.{setting}" for setting in SMALL),
    ]  # fmt: skip

    def study(*flags):
        done = subprocess.run(
            [*command, *flags], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        return done.returncode, done.stdout + done.stderr

    # Stopped once the first run is under way, then gone on with.
    begun = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    wait_long(tmp_path / "runs/static-101/metrics.jsonl")
    begun.send_signal(signal.SIGINT)
    assert begun.wait(120) == 130
    assert not list((tmp_path / "runs/results/runs").glob("*.json"))
    code, said = study()
    assert code == 0, said
    assert "resumed at step" in (tmp_path / "runs/static-101.log").read_text()
    out = tmp_path / "runs/results"
    name = "adaptive-of-static-retry-feedback"
    table = json.loads((out / f"{name}.json").read_text())
    assert (table["seeds"], table["tasks"], table["seeds_with_several_zero_shots"]) == ([101], 24, [])
    static, retry, feedback = table["arms"]
    # The same training; then what failed is tried again.
    trials = json.loads((out / "runs/retry-101.json").read_text())["trials"]
    assert trials[0]["success"] == static["final"]["mean"] <= trials[-1]["success"] == retry["final"]["mean"]
    assert retry["budget"]["tokens_trained"] == static["budget"]["tokens_trained"]
    assert static["budget"]["tasks_added"] == 0 < feedback["budget"]["tasks_added"]
    assert static["budget"]["episodes"] == feedback["budget"]["episodes"] == 64
    one = json.loads((out / "runs/feedback-101.json").read_text())
    assert one["held_out"]["final"].count("1") / 24 == pytest.approx(one["final"])
    assert one["facts"]["versions"]["jax"]
    assert len(list((tmp_path / "cache/warm-start").glob("*/warm_start.json"))) == 1
    # All is read back; the page is the same; a run made anew is the same to the bit.
    page, log = (out / f"{name}.md").read_bytes(), (tmp_path / "runs/feedback-101.log").read_bytes()
    code, said = study()
    assert code == 0
    assert "3 runs, 3 of them stored" in said
    assert (out / f"{name}.md").read_bytes() == page
    assert (tmp_path / "runs/feedback-101.log").read_bytes() == log
    # Settings come from the record.
    command = [part for part in command if not part.startswith("--config.")]
    code, said = study("--again=feedback-101", f"--out={out}")
    assert code == 0
    assert re.search(r"feedback-101: stored .* the same to the last bit", said)


def wait_long(path: Path) -> None:
    until = time.monotonic() + 400
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.1)
