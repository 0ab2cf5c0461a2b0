"""Records of the study: what a finished run is reduced to, and which records are refused."""

import copy
import functools
import json

import pytest
from study_records import record

from cojax.report.run import read_run
from cojax.storage.files import Log, StorageError, write_json
from environments import load
from experiments.study import stored
from experiments.study.comparison import explain_mismatch, find_differing_parts
from experiments.study.record import (
    average_learning,
    count_budget,
    count_refusals,
    cross_table,
    describe_tasks,
    least_popular,
    list_evolutions,
    list_solved,
    make_record,
)
from experiments.study.stored import check_record
from experiments.study.tables import COMMON, ROOT, jobs


def test_held_out_tasks_are_kept_recovered_lost_or_never_solved():
    before = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.5, "e": 1.0}
    after = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.5, "f": 1.0}  # e and f each lost an episode to the machinery
    found = list_solved(before, after)
    assert (found["tasks"], found["zero_shot"], found["final"]) == (4, "1010", "1100")
    assert cross_table(found) == {"kept": 1, "recovered": 1, "lost": 1, "never": 1}
    assert list_solved(before, before)["digest"] != found["digest"]


def test_what_a_run_was_given_is_counted():
    rows = [
        {"outcomes": {"finished": 3, "environment_error": 1}, "turns": 2.0},
        {"outcomes": {"finished": 4}, "turns": 2.5, "evolution": {"triplets": 9, "drafts": 4}},
    ]
    summary = {"tokens": {"sampled": 70, "trained": 30}, "tasks_initial": 10, "tasks_final": 13}
    assert count_budget(summary, rows) == {
        "episodes": 8, "turns": 16, "tokens_sampled": 70, "tokens_trained": 30, "explorer_actions": 9, "drafts": 4,
        "tasks_added": 3,
    }  # fmt: skip


def test_updates_are_counted_and_averaged():
    rows = [{"updates": 3.0, "clip_fraction": 0.1, "grad_norm": 1.0}, {"updates": 1.0, "clip_fraction": 0.5,
             "grad_norm": 3.0}, {"updates": 0.0}, {}]  # fmt: skip
    assert average_learning(rows) == {"updates": 4.0, "clip_fraction": 0.2, "grad_norm": 1.5}
    assert average_learning([{"updates": 2.0, "grad_norm": 1.0}]) == {"updates": 2.0, "grad_norm": 1.0}
    assert average_learning([{}]) == {"updates": 0}


def test_conversion_counts_expeditions_and_drafts_of_evolutions_alone(tmp_path):
    origins = [(0, "rare"), (10, "rare"), (10, "rare"), (10, "rare"), (10, "boundary")]
    expeditions = [{"step": step, "expedition": number, "origin": one} for number, (step, one) in enumerate(origins)]
    about = {"draft": {}, "verdict": {}}
    drafts = [
        {"step": 0, "origin": "unguided", "expedition": 0, "task": "t", **about},
        {"step": 10, "origin": "rare", "expedition": 1, "task": "u", **about},
        {"step": 10, "origin": "rare", "expedition": 1, "task": "v", **about},
        {"step": 10, "origin": "rare", "expedition": 2, "task": "", **about},
    ]
    write_json(tmp_path / "config.json", {})
    Log(tmp_path / "expeditions.jsonl").append(expeditions)
    Log(tmp_path / "drafts.jsonl").append(drafts)
    rows = [
        {"step": 10, "origin": "boundary", "expeditions": 1, "fruitful": 0, "drafts": 0, "tasks": 0},
        {"step": 10, "origin": "rare", "expeditions": 3, "fruitful": 1, "drafts": 3, "tasks": 2},
    ]
    assert json.dumps(list_evolutions(read_run(tmp_path))) == json.dumps(rows)  # not false


def test_refusals_are_counted_by_what_their_reason_begins_with():
    def draft(*lines, step=10, task=""):
        return {"step": step, "task": task, "verdict": {"evidence": ["new, and no evaluation task", *lines]}}

    drafts = [
        draft("duplicate of task 1f2e3d4c5b6a7988"), draft("duplicate of task 0f2e3d4c5b6a7988"),
        draft("negative control: passes without action 1, files_move(file=a)"),
        draft("no effect: ends as it began", step=0),
        draft("run fails: action 1, files_move(file=a): no such file", "the environment returned 1.00"),
        draft("an evaluation task has the same query"), draft("runs: 2 actions, full reward", task="t"),
        draft("the query holds the answer 'wednesday'"), draft("the query holds the answer 'box 7: a'"),
    ]  # fmt: skip
    assert count_refusals(drafts) == {
        "duplicate of task": 2, "negative control": 1, "run fails": 1, "an evaluation task has the same query": 1,
        "the query holds the answer": 2,
    }  # fmt: skip


def test_tasks_are_placed_in_one_plane_and_compared_with_those_evaluated():
    tasks = load("desk").tasks("eval", 40)
    tool = least_popular(load("desk"), "finish")
    found = describe_tasks(tasks, tasks[:20], tool, tasks)
    assert found["similarity"][:20] == [1.0] * 20
    assert all(0 < value < 1 for value in found["similarity"][25:])
    assert (found["step"], found["origin"]) == ([0] * 40, ["seed"] * 40)
    assert found["turns"] == [len(task.solution) for task in tasks]
    assert set(found["tool"]) <= load("desk").popularity().keys() - {"finish"}
    alone = describe_tasks(tasks[7:8], tasks[:20], tool, tasks)
    assert (alone["x"], alone["y"]) == (found["x"][7:8], found["y"][7:8])
    assert len(set(zip(found["x"], found["y"], strict=True))) > 30


def test_a_record_of_other_settings_is_refused_by_what_differs(tmp_path):
    one = record("static", 101, 0.5)
    (job,) = jobs(["static"], [101])
    assert stored.read_runs(tmp_path, [job]) == {}
    stored.store_record(tmp_path, one)
    assert stored.read_runs(tmp_path, [job]) == {("static", 101): one}
    other = jobs(["static"], [101], further={"steps": 3})[0]
    assert explain_mismatch(one, other.config) == f"steps was {COMMON['steps']}, now 3"
    with pytest.raises(ValueError, match=r"static.jsonl.gz holds the run static-101 with other settings: steps was"):
        stored.read_runs(tmp_path, [other])
    (pretrained,) = jobs(["pretrained-static"], [301])
    absolute = copy.deepcopy(pretrained.config)
    absolute["model"]["path"] = str(ROOT / "models/SmolLM2-135M-Instruct")
    assert explain_mismatch({"config": absolute}, pretrained.config) == ""
    absolute["model"]["path"] = "/elsewhere/SmolLM2-135M-Instruct"
    assert explain_mismatch({"config": absolute}, pretrained.config).endswith("now 'models/SmolLM2-135M-Instruct'")
    older = copy.deepcopy(one)
    del older["config"]["quorum"]  # a setting that the code did not have then
    assert explain_mismatch(older, job.config) == ""
    less = jobs(["static"], [101], further={"quorum": 0.5})[0]
    assert explain_mismatch(older, less.config) == "quorum was 1.0, now 0.5"
    rarer = jobs(["static"], [101], further={"signal_settings.rare.minimum": 3})[0]
    assert explain_mismatch(one, rarer.config) == "signal_settings.rare.minimum was not set, now 3"
    elsewhere = {"config": {**job.config, "workdir": "elsewhere"}}
    assert explain_mismatch(elsewhere, job.config) == ""


def test_a_run_of_other_settings_or_fewer_steps_gets_no_record(tmp_path):
    job = jobs(["static"], [101], further={"steps": 3})[0]
    for name in ("zero_shot", "final"):
        write_json(tmp_path / f"{name}.json", {"success": 0.5, "tasks": {}})
    write_json(tmp_path / "summary.json", {"steps": 2})
    write_json(tmp_path / "config.json", {"config": {**job.config, "batch_size": 5}})
    with pytest.raises(StorageError, match="other settings: batch_size was 5, now 16"):
        make_record(job, tmp_path)
    write_json(tmp_path / "config.json", {"config": {**job.config, "workdir": "there"}})
    with pytest.raises(StorageError, match="ended after 2 steps, not 3"):
        make_record(job, tmp_path)
    (tmp_path / "final.json").write_text("")
    with pytest.raises(StorageError, match=f"delete {tmp_path} and run the study again"):
        make_record(job, tmp_path)


def test_two_runs_are_alike_to_the_last_bit_or_say_where_not():
    one = record("feedback", 1, 0.5)
    later = copy.deepcopy(one)
    later["seconds"]["total"] = 99.0
    assert find_differing_parts(one, later) == []
    later["curves"]["success"][0] += 1e-9
    assert find_differing_parts(one, later) == ["curves"]


def test_a_setting_of_an_entry_that_only_the_record_has_differs_unless_it_is_the_default():
    (job,) = jobs(["static"], [101])

    def stored_with(name, value):
        config = copy.deepcopy(job.config)
        *sections, leaf = name.split(".")
        functools.reduce(lambda section, part: section.setdefault(part, {}), sections, config)[leaf] = value
        return explain_mismatch({"config": config}, job.config)

    for name, value in (
        ("environment.tables", 7), ("evolve_settings.floor", 0.9), ("admission_settings.attempts", 2),
        ("signal_settings.rare.minimum", 3), ("signal_settings.mine.window", 3), ("learner.loss_settings.clip_high", 9),
    ):  # fmt: skip
        assert stored_with(name, value) == f"{name} was {value}, now not set"
    assert stored_with("learner.loss_settings.clip_high", 0.28) == ""
    assert stored_with("environment.more", 0.45) == ""
    assert stored_with("rare.minimum", 256) == ""  # a setting that the code no longer has
    spelled_out = copy.deepcopy(job.config)
    spelled_out["learner"]["loss_settings"]["kl_coefficient"] = 0.001  # the paper's, with which GRPO runs
    unset = copy.deepcopy(job.config)
    del unset["learner"]["loss_settings"]["kl_coefficient"]
    assert explain_mismatch({"config": spelled_out}, unset) == ""


def test_measures_are_compared_where_both_records_have_them():
    older = record("feedback", 1, 0.5)
    one = {**older, "learning": {"updates": 8.0}, "origins": {"rare": {"groups": 4, "norm": 0.5}}}
    assert find_differing_parts(older, one) == find_differing_parts(one, older) == []
    assert find_differing_parts(one, {**one, "origins": {"rare": {"groups": 4}}}) == []
    assert find_differing_parts(one, {**one, "origins": {"rare": {"groups": 4, "norm": 0.25}}}) == ["origins"]
    assert find_differing_parts(one, {**one, "learning": {"updates": 9.0, "grad_norm": 1.0}}) == ["learning"]


def test_similarities_may_fall_on_the_other_side_of_their_rounding_and_nothing_else_may_differ():
    one = record("feedback", 1, 0.5)
    similar = one["tasks"]["similarity"]
    near = {**one, "tasks": {**one["tasks"], "similarity": [similar[0] + 1e-4, *similar[1:]]}}
    far = {**one, "tasks": {**one["tasks"], "similarity": [similar[0] + 2e-4, *similar[1:]]}}
    assert find_differing_parts(one, near) == []
    assert find_differing_parts(one, far) == ["tasks"]
    assert find_differing_parts(one, {**one, "tasks": {**one["tasks"], "tool": ["other"] * 4}}) == ["tasks"]
    assert find_differing_parts(one, {**one, "final": one["final"] + 1e-7}) == ["final"]


MISSING = object()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("held_out.digest", MISSING, "a record has 'held_out.digest', which is missing"),
        ("curves.live_groups", MISSING, "a record has 'curves.live_groups', which is missing"),
        ("facts.hardware", {}, "a record has 'facts.hardware.processor', which is missing"),
        ("facts.hardware", "P", "facts.hardware is 'P'; expected an object"),
        ("seconds.total", MISSING, "a record has 'seconds.total', which is missing"),
        ("seconds.total", 0, "seconds.total is 0; expected greater than 0"),
        ("final", 7, "final is 7; expected less than or equal to 1"),
        ("held_out.tasks", True, "held_out.tasks is True; expected a valid integer"),
        ("held_out.final", "1020", "held_out.final is '1020'; String should match pattern"),
        ("held_out.final", "10", "held_out.final has 2 values; held_out.tasks says 4"),
        ("signals.rare", [1], "signals.rare has 1 values; curves.step says 2"),
        ("tasks.x", [0.5], "tasks.x has 1 values; tasks.step says 4"),
        ("evolutions", [{"step": 2}], "a record has 'evolutions.0.expeditions', which is missing"),
        ("dev", [7], "dev.0 is 7; expected a valid list"),
        ("learning", {"updates": "8"}, "learning.updates is '8'; expected a valid number"),
        ("origins", {"rare": {"groups": 4, "live": 1}}, "a record has 'origins.rare.actions', which is missing"),
        ("origins", {"rare": {"groups": 4, "live": 1, "actions": 2, "norm": "0"}}, "norm is '0'; expected a valid"),
        ("predicted", {"signals": {"rho": None}}, "a record has 'predicted.signals.tasks', which is missing"),
        ("trials", [{"success": 0.5}], "a record has 'trials.0.episodes', which is missing"),
        ("predicted", {"probe": {"rho": 17.5, "tasks": 3}}, "rho is 17.5; expected less than or equal to 1"),
        ("predicted", {"probe": {"rho": 10**400, "tasks": 3}}, "rho is a whole number of very many digits; expected"),
        (
            "origins",
            {"x": {"groups": 1, "live": 2, "actions": 0, "solved": None, "norm": None}},
            "more than the groups, 1",
        ),
        ("quality.max_similarity", None, "quality.max_similarity is None; expected an object"),
        ("refused.duplicate", "x", "refused.duplicate is 'x'; expected a valid integer"),
        ("facts.versions.jax", None, "facts.versions.jax is None; expected a valid string"),
        ("budget.probe_episodes", None, "budget.probe_episodes is None; expected a valid integer"),
        ("budget.turns", 10**400, "budget.turns is a whole number of very many digits; expected"),
        ("tasks.tool", [None] * 4, "tasks.tool.0 is None; expected a valid string"),
        ("final", 0.99, "final is 0.99, but held_out.final says 2 of 4 tasks"),
        ("failures", {"examples": {}}, "a record has 'failures.agents', which is missing"),
    ],
)
def test_a_record_that_tables_cannot_use_is_refused_by_what_is_wrong(key, value, why):
    edited = record("feedback", 101, 0.5)
    assert check_record(edited, "feedback") == edited
    *sections, leaf = key.split(".")
    section = functools.reduce(lambda part, name: part[name], sections, edited)
    section.pop(leaf) if value is MISSING else section.update({leaf: value})
    with pytest.raises(ValueError, match=why):
        check_record(edited, "feedback")
