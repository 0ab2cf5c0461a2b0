"""The study: its intervals by hand, its tables, its command, and a small table from end to end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from patience import patience

from cojax.registry import find
from cojax.registry.annotations import RegistryError
from cojax.run.checks import check_settings
from cojax.synthesis import SELECTIONS
from cojax.types import Signal
from experiments import desk_smollm2
from experiments.study import stored
from experiments.study.__main__ import _parser, main, plan_tables, select_arms
from experiments.study.figures import choose_colours
from experiments.study.statistics import (
    adjust_holm,
    compute_p_value,
    estimate,
    estimate_difference,
    resample_seeds_and_tools,
)
from experiments.study.tables import (
    ARMS,
    COMMON,
    DEVELOPMENT_SEEDS,
    ON_DEVELOPMENT_TASKS,
    SEEDS,
    START,
    TABLES,
    jobs,
    list_changes,
    make_configuration,
    read_settings,
)

ROOT = Path(__file__).parents[2]


def test_means_have_students_interval():
    found = estimate([1.0, 2.0, 3.0, 4.0])  # s = 1.29099, t(3) = 3.18245: half = 3.18245 · 1.29099 / 2
    assert (found["mean"], found["count"]) == (2.5, 4)
    assert (found["low"], found["high"]) == pytest.approx((0.44574, 4.55426), abs=1e-5)
    assert estimate([0.3]) == {"mean": 0.3, "low": None, "high": None, "count": 1}
    with pytest.raises(ValueError, match="no value"):
        estimate([])


def test_differences_are_paired_by_the_seeds_that_both_have():
    found = estimate_difference(
        {1: 0.5, 2: 0.6, 3: 0.7}, {2: 0.4, 3: 0.6, 9: 1.0}
    )  # 0.2 and 0.1: s = 0.0707, t(1) = 12.7062
    assert found["count"] == 2
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((0.15, -0.48531, 0.78531), abs=1e-5)
    # What the seeds share cancels out: far apart from each other, one point apart in each pair.
    assert estimate_difference({1: 0.1, 2: 0.5, 3: 0.9}, {1: 0.0, 2: 0.4, 3: 0.8})["low"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no value to estimate from"):
        estimate_difference({1: 0.5}, {2: 0.5})


def test_p_is_that_of_the_paired_test_and_holm_adjusts_it_for_the_family():
    ours, theirs = [0.5, 0.75, 0.625, 0.5], [0.25, 0.5, 0.75, 0.375]
    expected = scipy.stats.ttest_rel(ours, theirs).pvalue
    assert compute_p_value(list(np.subtract(ours, theirs))) == pytest.approx(expected)
    assert compute_p_value([0.25]) is compute_p_value([0.25, None, 0.5]) is None
    assert (compute_p_value([0.25, 0.25]), compute_p_value([0.0, 0.0])) == (0.0, 1.0)
    # Holm (1979): the smallest of four times 4, the next times 3, and never less than one before it.
    assert adjust_holm([0.01, 0.04, None, 0.03, 0.005]) == [0.03, 0.06, None, 0.06, 0.02]
    assert adjust_holm([0.9, 0.8]) == [1.0, 1.0]


def test_an_interval_over_seeds_and_tools_is_no_narrower_than_one_over_seeds():
    tools = ["find"] * 5 + ["send"] * 5
    # Each tool gains two fifths in both seeds: whatever is drawn, so does the success.
    assert resample_seeds_and_tools(["1110011100"] * 2, ["0000100001"] * 2, tools) == pytest.approx((0.4, 0.4))
    # One tool gains all and the other nothing: a draw of one tool alone decides. t(1) is 12.7062.
    half = 0.5 * 12.7062 / 1.95996 * 2**0.5
    bounds = resample_seeds_and_tools(["1111100000"] * 2, ["0000000000"] * 2, tools)
    assert bounds == pytest.approx((0.5 - half, 0.5 + half), rel=1e-4)
    # Seeds differ and tools do not.
    shares = [0.0, 0.2, 0.2, 0.6, 0.4, 0.2]
    bits = ["".join("1" if task < 5 * share else "0" for task in range(5)) * 2 for share in shares]
    student = estimate(shares)
    assert resample_seeds_and_tools(bits, ["0" * 10] * 6, tools) == pytest.approx(
        (student["low"], student["high"]), abs=0.06
    )
    assert resample_seeds_and_tools(["11"], ["00"], ["find", "send"]) is None
    assert resample_seeds_and_tools(["11", "10"], ["00", "00"], ["find", "find"]) is None


@pytest.mark.parametrize("development", [False, True])
def test_every_arm_is_a_configuration_that_the_main_command_takes(development):
    seeds = DEVELOPMENT_SEEDS if development else SEEDS["evaluation"]
    made = jobs(list(ARMS), seeds, development)
    assert len(made) == len(ARMS) * len(seeds)
    for job in made[: len(ARMS)]:
        config = make_configuration(job.settings)
        check_settings(config)
        assert (config.seed, config.evaluation.split) == (seeds[0], "dev" if development else "eval")
        own = dict(ON_DEVELOPMENT_TASKS) if development else {}
        assert job.settings == {**COMMON, **ARMS[job.arm], **own, "seed": seeds[0]}
    first = made[: 2 * len(ARMS)]  # of two seeds
    assert len({json.dumps(job.config) for job in first}) == len(first)


def test_all_tables_are_planned_at_once_and_a_part_of_one_has_its_own_name():
    def names(*flags):
        return [(name, len(jobs)) for name, _, jobs in plan_tables(_parser().parse_args(flags), {})]

    assert names("--name=all", "--seeds=2") == [(name, 2 * len(table.arms)) for name, table in TABLES.items()]
    assert names("--arms=static, feedback,static", "--seeds=3") == [("main-of-static-feedback", 6)]
    assert names("--quick") == [("main", 12)]
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
    (developed,) = jobs(["static"], [21], is_development=True, further=peeking)
    assert {developed.config["evaluation"][name] for name in ("split", "dev_split")} == {"dev"}


def test_arms_of_a_table_are_told_apart_by_colour():
    for table in TABLES.values():
        shades = choose_colours(table.arms)
        assert list(shades) == list(table.arms)
        assert len(set(shades.values())) == len(table.arms)
    assert list(choose_colours(ARMS)) == list(ARMS)  # more than there are colours
    assert choose_colours(TABLES["main"].arms)["feedback"] == choose_colours(TABLES["own"].arms)["feedback"]


def test_seeds_and_tables_are_sound():
    assert len({seed for seeds in SEEDS.values() for seed in seeds}) == 59
    for table in TABLES.values():
        assert set(table.arms) <= set(ARMS)
        assert {arm for pair in table.differences for arm in pair} <= {*table.arms, START}
    # What is taken away or added is all that tells an arm from feedback; the growth is the same a step.
    for period, arm in ((5, "period-5"), (20, "period-20")):
        config = make_configuration(ARMS[arm])
        assert config.evolve_every == period
        assert (
            config.synthesis.budget / period
            == make_configuration({}).synthesis.budget / make_configuration({}).evolve_every
        )


def test_the_former_selection_differs_from_feedback_in_its_rule_alone():
    before, after = (dict(ARMS[name]) for name in ("feedback-before", "feedback"))
    named = before.pop("synthesis.select")
    assert before == after
    select = find("selection", named, SELECTIONS)
    signals = [Signal("rare", task, f"9-{task}-{i}", "line") for task, i in [("a", 0), *(("b", i) for i in range(8))]]
    first = Counter(select(signals, 1, (seed,), lambda signal: 0.5)[0].task for seed in range(1000))
    assert 850 < first["a"] < 920  # a is last, and so taken, unless its signal comes first of nine
    (chosen,) = select(signals[1:], 2, (0,), lambda signal: 0.5)
    assert chosen.task == "b"


def test_a_pretrained_model_runs_as_its_preset_says_but_on_one_core():
    table = TABLES["pretrained"]
    made = {job.arm: make_configuration(job.settings) for job in jobs(table.arms, (311,), further=table.settings)}
    feedback = made["grpo-feedback"]
    # What all tables share and the preset does not say.
    assert list_changes(feedback, desk_smollm2.get_config()) == {
        "seed": 311, "engine.lanes": 1, "engine.slots": 16, "limits.concurrency": 16, "explorer.width": 1,
        "evaluation.seed": 49,
    }  # fmt: skip
    assert list_changes(made["grpo-static"], feedback) == {"evolve": "none"}
    assert list_changes(made["grpo-uniform"], feedback) == {"evolve": "uniform"}
    assert list_changes(made["demonstrations"], feedback) == {
        "evolve": "none", "steps": 0, "warm_start.demonstrations": 272 + feedback["episodes"],
        "warm_start.steps": (272 + feedback["episodes"]) // 8, "warm_start.check_every": 162,
    }  # fmt: skip
    imitation = made["rft-feedback"]
    assert imitation["steps"] * imitation["batch_size"] * imitation["group_size"] == feedback["episodes"]
    assert list_changes(made["rft-static"], imitation) == {"preference.tasks": "static"}
    assert {job.warm_start for job in jobs(("grpo-feedback", "rft-feedback"), (311,))} == {
        job.warm_start for job in jobs(("grpo-static",), (311,))
    }


def test_stored_runs_of_a_pretrained_model_keep_the_settings_that_the_preset_once_had():
    table = TABLES["imitation"]
    static, feedback = (make_configuration(job.settings) for job in jobs(table.arms, SEEDS["imitation"][:1]))
    assert list_changes(static, feedback) == {"preference.tasks": "static"}
    assert (feedback["method"], feedback["steps"], feedback["warm_start"]["demonstrations"]) == ("rft", 8, 136)


def test_losses_are_compared_in_as_many_episodes():
    """Where each part of an update's settings is the arm's own, all else is alike."""
    table = TABLES["losses"]
    made = {job.arm: job.config for job in jobs(table.arms, SEEDS["losses"][:1], further=table.settings)}
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
    with pytest.raises(RegistryError, match="nosuch is not a setting"):
        make_configuration({"nosuch": 1})
    with pytest.raises(RegistryError, match=r"synthesis\.nosuch is not a setting"):
        make_configuration({"synthesis.nosuch": 1})
    with pytest.raises(RegistryError, match=r"nosuch\.steps is not a setting"):
        make_configuration({"nosuch.steps": 1})
    with pytest.raises(RegistryError, match="expected"):
        make_configuration({"steps": "many"})
    assert make_configuration({"learner.weighting_settings.length": 9}).learner.weighting_settings.length == 9
    assert make_configuration({"signal_settings.rare.minimum": 9}).signal_settings.rare.minimum == 9
    assert make_configuration({"signal_settings.mine.window": 3}).signal_settings.mine.window == 3
    assert read_settings(["--config.steps=4", "--config.signals=rare", "--config.validate=False"]) == {
        "steps": 4, "signals": "rare", "validate": False,
    }  # fmt: skip
    nested = "-" * 20_000 + "1"  # too deep for Python's parser
    assert read_settings([f"--config.x={nested}"]) == {"x": nested}
    with pytest.raises(ValueError, match="unexpected argument '--step=4'"):
        read_settings(["--step=4"])
    with pytest.raises(ValueError, match="arm 'curriculum' is not in table 'main'; it has static"):
        select_arms("main", "static,curriculum")
    assert select_arms("main", "static, feedback").differences == (("feedback", "start"), ("feedback", "static"))


def test_the_command_refuses_what_makes_no_sense(tmp_path, capsys):
    where = [f"--runs={tmp_path / 'runs'}"]
    for flags, said in (
        (["--seeds=13"], "12 seeds are fixed beforehand (101 to 112)"),
        (["--development", "--seeds=7"], "6 seeds are fixed beforehand (21 to 26)"),
        (["--config.nosuch=1"], "nosuch is not a setting; python -m experiments.reference lists them all"),
        (["--config.stpes=1"], "stpes is not a setting; did you mean steps"),
        (["--config.steps=x"], "steps is 'x'; expected a whole number at least 0"),
        (["--config.steps=-1"], "steps is -1; expected a whole number at least 0"),
        (["--config.llm=3"], "llm is a section, given 3; set what stands in it"),
        (["--config.steps.x=3"], "steps.x is not a setting; did you mean steps?"),
        (["--config.engine=lokal"], "engine 'lokal' not found; available: local"),
        (["--config.policy=tniy"], "policy 'tniy' not found; available: qwen3-4b"),
        (["--config.learner.loss_settings.kl_coeficient=1"], "did you mean learner.loss_settings.kl_coefficient? "),
        (["--config.learner.loss_settings.kl_coefficient=x"], "kl_coefficient is 'x', which is of another type"),
        (["--config.signal_settings.rrare.percent=3"], "did you mean signal_settings.rare? "),
        (["--arms=nosuch"], "it has static, random, control, matched, uniform, feedback"),
        (["--again=feedback-7", f"--out={tmp_path}"], "expected ARM-SEED, of the arms none"),
        (["--again=feedback"], "no record 'feedback'"),
        (["--again=feedback-7"], "feedback has the seeds 101, 102, "),
        (["--jobs=0"], "--jobs=0"),
        (["--deadline=nan"], "expected seconds above 0"),
        (["--seed=3"], "unexpected argument '--seed=3'"),
        (["--config.evolve=none"], "evolve distinguishes the runs"),
        (["--config.seed=7"], "seed distinguishes the runs"),
        (["--again=feedback-7", "--config.steps=2"], "--again takes its settings from the stored record"),
        (["extra"], "unexpected argument 'extra'"),
        (["--seeds=1", f"--out={tmp_path / 'runs'}"], "--runs and --out are the same folder"),
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
    "signal_settings.rare.minimum=16", "signal_settings.rare.percent=20.0", "explorer.stretch=(-1,0,1)",
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
            [*command, *flags],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(600),
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    # Stopped once the first run is under way, then gone on with.
    begun = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    wait_long(tmp_path / "runs/static-101/metrics.jsonl")
    begun.send_signal(signal.SIGINT)
    assert begun.wait(patience(120)) == 130
    assert stored.read_all(tmp_path / "runs/results") == {}
    code, said = study()
    assert code == 0, said
    assert "resumed at step" in (tmp_path / "runs/static-101.log").read_text()
    out = tmp_path / "runs/results"
    name = "adaptive-of-static-retry-feedback"
    table = json.loads((out / f"{name}.json").read_text())
    assert (table["seeds"], table["tasks"], table["seeds_with_several_zero_shots"]) == ([101], 24, [])
    static, retry, feedback = table["arms"]
    # The same training; then what failed is tried again.
    trials = stored.read_run(out, "retry-101")["trials"]
    assert trials[0]["success"] == static["final"]["mean"] <= trials[-1]["success"] == retry["final"]["mean"]
    assert retry["budget"]["tokens_trained"] == static["budget"]["tokens_trained"]
    assert static["budget"]["tasks_added"] == 0 < feedback["budget"]["tasks_added"]
    assert static["budget"]["episodes"] == feedback["budget"]["episodes"] == 64
    one = stored.read_run(out, "feedback-101")
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
    until = time.monotonic() + patience(400)
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.1)
