"""The grounds of the study of signals: their arms, their budgets, and how a table tells the worst skills."""

import collections
import functools
import json

import pytest
from study_records import known, record

from cojax.run.checks import check_settings
from cojax.settings.presets import apply_preset
from cojax.types import content_hash
from experiments.study.record import count_budget, least_popular, load_environment
from experiments.study.summary import (
    LONG,
    MIN_LONG_TASKS,
    MIN_TOOLS_FOR_TENTHS,
    average_tools_weakest_after,
    average_tools_weakest_before,
    load_held_out_tasks,
    long_tasks,
    render_page,
    summarise,
)
from experiments.study.tables import ARMS, COMMON, SEEDS, TABLES, Table, jobs, make_configuration

GROUND_ARMS = sorted(arm for arm in ARMS if arm.startswith(("wide-", "deep-")))
GROUND_TABLES = ("primary", "wide", "wide-actions", "wide-rules", "wide-growth", "deep")
PAIR = Table("A table", ("wide-uniform", "wide-probe"), (("wide-probe", "wide-uniform"),))


@pytest.mark.parametrize("arm", GROUND_ARMS)
def test_every_arm_is_a_run_that_can_be_made(arm):
    (job,) = jobs([arm], [201])
    check_settings(apply_preset(make_configuration(job.settings), job.settings))
    assert job.config["environment"]["skew"] == 0.4


def test_all_arms_play_as_many_episodes_probes_included():
    more = {name for name in GROUND_ARMS if name.endswith("uniform-more")}
    assert len(more) == 2
    for arm in GROUND_ARMS:
        settings = {**COMMON, **ARMS[arm]}
        steps = settings["steps"]
        episodes = steps * settings["batch_size"] * 8
        if settings.get("synthesis.admit") == "probe":
            # By default ten candidates for each task that an evolution may add, tried eight times, every ten steps.
            candidates = settings.get("admission_settings.candidates", 10) * settings["synthesis.budget"]
            episodes += steps // 10 * candidates * settings.get("admission_settings.attempts", 8)
        # Of `uniform-more` a quarter more, in place of the actions that explorers with a probe take.
        assert episodes == (12_800 if arm in more else 10_240), arm


def test_the_seeds_of_the_grounds_are_of_no_other_table_but_the_one_of_losses():
    others = {seed for name, table in TABLES.items() if name not in {*GROUND_TABLES, "losses"} for seed in table.seeds}
    assert not others & set(SEEDS["ground"])
    assert SEEDS["ground"] == (201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212)
    assert {table.seeds for name, table in TABLES.items() if name in GROUND_TABLES} == {SEEDS["ground"]}
    for name in GROUND_TABLES:
        assert set(TABLES[name].arms) <= set(GROUND_ARMS)
    assert [TABLES[name].count for name in ("primary", "wide", "deep")] == [12, 6, 6]


def test_the_main_ground_is_as_large_as_the_page_says():
    (job,) = jobs(["wide-uniform"], [201])
    desk = load_environment(job.config)
    tools = {entry["function"]["name"] for entry in desk.tools()} - {"finish"}
    lengths = collections.Counter(len(task.solution) - 1 for task in desk.tasks("eval", 1000, 2026))
    assert (len(tools), max(lengths)) == (207, 5)


def test_probes_count_as_episodes_and_environment_steps():
    summary = {"tokens": {"sampled": 1000, "trained": 400}, "tasks_final": 116, "tasks_initial": 100}
    probe = {"candidates": 160, "episodes": 1280, "turns": 3000, "tokens": 9000}
    evolution = {"triplets": 800, "drafts": 170, "probe": probe}
    rows = [{"outcomes": {"finished": 100, "cut": 28}, "turns": 3.0, "evolution": evolution}]
    assert count_budget(summary, rows) == {
        "episodes": 1408, "probe_episodes": 1280, "turns": 3300, "tokens_sampled": 10_000, "tokens_trained": 400,
        "explorer_actions": 800, "drafts": 170, "tasks_added": 16,
    }  # fmt: skip


@functools.cache
def played(config):
    """The environment of the JSON of a configuration, and the held-out tasks by id: a grown desk takes a second."""
    environment, section = load_environment(json.loads(config)), json.loads(config)["evaluation"]
    tasks = environment.tasks(section["split"], section["tasks"], section["seed"])
    return environment, sorted(tasks, key=lambda task: task.id)


def held_out(arm, seed, solved):
    """A record on 600 held-out tasks, of which those with a tool that `solved` holds are solved."""
    made = record(arm, seed, 0.5)
    made["config"]["evaluation"]["tasks"] = 600
    environment, tasks = played(json.dumps({name: made["config"][name] for name in ("environment", "evaluation")}))
    tool = least_popular(environment, "finish")
    bits = "".join("1" if solved(tool(task)) else "0" for task in tasks)
    ids = content_hash([task.id for task in tasks])
    made["held_out"] = {"digest": ids, "tasks": 600, "zero_shot": "0" * 600, "final": bits}
    return made, sorted({tool(task) for task in tasks})


def test_the_worst_tenth_of_the_tools_is_told_beside_the_mean():
    _, tools = held_out("wide-uniform", 201, lambda tool: False)
    assert len(tools) > MIN_TOOLS_FOR_TENTHS
    few = set(tools[: round(len(tools) / 20)])
    half, _ = held_out("wide-uniform", 201, lambda tool: tool not in few)
    every, _ = held_out("wide-probe", 201, lambda tool: True)
    # Half of the worst tenth fails, the other half is solved.
    share = 1 - len(few) / round(len(tools) / 10)
    assert average_tools_weakest_after([half]) == {201: pytest.approx(share)}
    assert average_tools_weakest_after([every]) == {201: 1.0}
    found = summarise("pair", PAIR, (201,), known(half, every))
    assert found["worst_tenth"]["differences"][0]["mean"] == pytest.approx(1 - share)
    rows = found["breakdowns"]["popularity"]
    assert [row["kind"] for row in rows] == [f"tenth {number}" for number in range(1, 11)]
    assert sum(row["tasks"] for row in rows) == 600
    page = render_page(found)
    assert "## The worst tenth of the tools" in page
    assert "## The weakest tenth of the tools" in page
    assert "| tenth 10 |" in page
    assert f"| {tools[0]} |" not in page


def test_the_weakest_tenth_is_told_from_the_success_before_training():
    made, tools = held_out("wide-uniform", 201, lambda tool: True)
    popularity = load_held_out_tasks(made)[0].popularity()
    few = sorted(tools, key=lambda tool: (popularity[tool], tool))[: round(len(tools) / 10)]
    # Nothing is solved before training: the least popular are the weakest.
    after, _ = held_out("wide-uniform", 201, lambda tool: tool not in few[1:])
    assert average_tools_weakest_before([after]) == {201: pytest.approx(1 / len(few))}
    # Others are at the start, and whatever training reaches, they stay the ones that count.
    others, _ = held_out("wide-uniform", 201, lambda tool: tool in few)
    after["held_out"]["zero_shot"] = others["held_out"]["final"]
    assert average_tools_weakest_before([after]) == {201: 1.0}


def test_the_desk_of_the_other_tables_has_too_few_tools_for_a_worst_tenth():
    one, _ = held_out("feedback", 101, lambda tool: True)
    assert average_tools_weakest_after([one]) is None
    assert "worst_tenth" not in summarise("one", Table("A table", ("feedback",), ()), (101,), known(one))


def test_long_tasks_are_told_apart():
    made, _ = held_out("wide-uniform", 201, lambda tool: True)
    _, tasks = load_held_out_tasks(made)
    long = [len(task.solution) >= LONG for task in tasks]
    assert sum(long) >= MIN_LONG_TASKS
    made["held_out"]["final"] = "".join("0" if one else "1" for one in long)
    assert long_tasks([made]) == {201: 0.0}
    other, _ = held_out("wide-probe", 201, lambda tool: True)
    half = [i for i, one in enumerate(long) if one][::2]
    other["held_out"]["final"] = "".join("1" if i in half or not one else "0" for i, one in enumerate(long))
    assert long_tasks([other]) == {201: pytest.approx(len(half) / sum(long))}
    found = summarise("pair", PAIR, (201,), known(made, other))
    assert found["long_tasks"]["differences"][0]["mean"] == pytest.approx(len(half) / sum(long))
    assert "## Long tasks\n\nHeld-out tasks of 4 and more actions, finish counted." in render_page(found)
    made["config"]["evaluation"]["tasks"] = 20
    assert long_tasks([made]) is None
