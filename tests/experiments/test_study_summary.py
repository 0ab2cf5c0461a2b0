"""The study's summaries, pages and pictures, from records made by hand."""

import dataclasses

import pytest
from study_records import PAIR, known, record, stepless

from cojax.pool import make_task_record
from cojax.report.run import read_run
from cojax.storage.episodes import Episodes, make_record
from cojax.storage.files import Log, StorageError, write_json
from cojax.types import Action, Call, Lineage, Task, Trajectory, content_hash
from environments import load
from experiments.study import figures, summary
from experiments.study.record import average_failures, compute_worth
from experiments.study.statistics import resample_seeds_and_tools
from experiments.study.stored import check_record
from experiments.study.summary import break_down, estimate_prior_mastery, make_differences, render_page, summarise
from experiments.study.tables import COMMON, Table, jobs


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


def test_a_difference_to_the_start_and_an_arm_that_was_shown_more_before_it():
    """Both arms begin at 25 %. One learns; the other's warm start is longer, and what that taught is its gain."""
    table = Table("A table", ("feedback", "static"), (("feedback", "start"), ("feedback", "static")))
    more = {"settings": {**record("static", 1, 0.5)["settings"], "warm_start.demonstrations": 9}}
    shown = [
        {**record("static", seed, final, final), **more, "held_out": {**record("static", seed, final)["held_out"],
                                                                      "zero_shot": "1110"[: 3] + "0"}}
        for seed, final in ((1, 0.75), (2, 0.75))
    ]  # fmt: skip
    found = summarise("one", table, (1, 2), known(record("feedback", 1, 0.5), record("feedback", 2, 1.0), *shown))
    assert found["seeds_with_several_zero_shots"] == []
    assert [(row["one"], row["other"], row["mean"]) for row in found["differences"]] == [
        ("feedback", "start", 0.5),
        ("feedback", "static", 0.0),
    ]
    further = found["arms"][1]
    assert (further["gain"]["mean"], further["cross_table"]["recovered"]) == (0.5, 2.0)
    page = render_page(found)
    assert "| start | 25.0 ± 0.0 |" in page
    assert "− start | +50.0 |" in page
    # The same warm start, and another start: other code or another machine.
    found = summarise("one", table, (1,), known(record("feedback", 1, 0.5), record("static", 1, 0.5, 0.5)))
    assert found["seeds_with_several_zero_shots"] == [1]


def test_what_is_lost_is_counted_by_the_tools_that_the_first_tasks_use():
    _, tasks = summary.load_held_out_tasks(record("feedback", 1, 0.5))
    used = {"finish", "mail_read"}
    are_covered = [{call.name for action in task.solution for call in action.calls} <= used for task in tasks]
    before = "".join("1" if one else "0" for one in are_covered)
    bits = {"digest": "d", "tasks": len(tasks), "zero_shot": before, "final": "0" * len(tasks)}
    lost = {**record("feedback", 1, 0.0), "initial_tools": sorted(used), "held_out": bits}
    found = summary.cross_tables_by_coverage([lost])
    assert 0 < (count := sum(are_covered)) < len(tasks) == 500
    assert found["covered"] == {"kept": 0, "recovered": 0, "lost": count, "never": 0}
    assert found["others"] == {"kept": 0, "recovered": 0, "lost": 0, "never": 500 - count}
    assert summary.cross_tables_by_coverage([record("feedback", 1, 0.5)]) == {}


def test_what_tasks_were_worth_is_told_by_origin_where_all_records_know_it(tmp_path):
    """Six tasks of origin rare, each predicted to be solved as often as it then was, and one task of D_0."""
    solves = Action(calls=(Call("read"),))
    seed = Task("desk", "begin", {}, (solves,), "unguided")
    tasks = [
        Task("desk", f"task {i}", {}, (solves, Action(calls=(Call(f"tool_{i % 2}"),))), "rare", Lineage(step=1))
        for i in range(6)
    ]
    metrics = [
        {"step": 1, "grad_norm": 2.0,
         "origins": {"rare": {"groups": 4, "live": 1}, "unguided": {"groups": 2, "live": 2}}},
        {"step": 2, "origins": {}},
        {"step": 3, "grad_norm": 4.0, "origins": {"rare": {"groups": 4, "live": 3}}},
    ]  # fmt: skip
    expeditions = [
        {"step": 1, "expedition": 0, "origin": "rare", "runs": [{"run": 0, "actions": 9}, {"run": 1, "actions": 5}]},
        {"step": 1, "expedition": 1, "origin": "boundary", "runs": []},
    ]
    drafts = [
        {"step": 1, "origin": "rare", "draft": {}, "verdict": {"status": "accepted", "evidence": []}, "task": task.id,
         "predicted": {"beliefs": i / 8, "probe": None}}
        for i, task in enumerate(tasks)
    ]  # fmt: skip
    write_json(tmp_path / "config.json", {"config": {"explorer": {"ending": "finish"}}})
    for name, lines in (("metrics", metrics), ("expeditions", expeditions), ("drafts", drafts)):
        Log(tmp_path / f"{name}.jsonl").append(lines)
    Log(tmp_path / "tasks.jsonl").append([make_task_record(task) for task in (seed, *tasks)])
    played = Episodes(tmp_path / "episodes")
    played.write(1, [make_record(Trajectory(seed, "1-0", (), (), 1.0))])
    played.write(2, [make_record(Trajectory(task, f"2-{i}-{k}", (), (), float(k < i)))
                     for i, task in enumerate(tasks) for k in range(6)])  # fmt: skip
    found = compute_worth(read_run(tmp_path))
    worth = found["origins"]
    assert worth == {
        "boundary": {"groups": 0, "live": 0, "actions": 0, "solved": 0, "norm": None},
        # Both of its tools are new; what D_0 had solved is not. (2 · 1 + 4 · 3) / 4.
        "rare": {"groups": 8, "live": 4, "actions": 14, "solved": 2, "norm": 3.5},
        "unguided": {"groups": 2, "live": 2, "actions": 0, "solved": 1, "norm": 2.0},
    }
    assert found["predicted"] == {"beliefs": {"rho": 1.0, "tasks": 6}}
    table = Table("A table", ("feedback",), ())
    records = known(
        {**record("feedback", 1, 0.5), **found},
        # An older record, without measures and predictions.
        {**record("feedback", 2, 0.5), "origins": {"rare": {"groups": 4, "live": 0, "actions": 6}}},
    )
    page = render_page(summarise("one", table, (1, 2), records))
    assert "| feedback (CoEvolve) | rare | 6 | 2 | 33 % | 10 | 5.0 | 2.0 | 3.500 |" in page
    assert "| feedback (CoEvolve) | boundary | 0 | 0 | – | 0 | – | 0.0 | – |" in page
    assert "| feedback (CoEvolve) | unguided | 1 | 1 | 100 % | 0 | 0.0 | 1.0 | 2.000 |" in page
    assert "| feedback (CoEvolve) | beliefs | +1.00 | 1 | 6 |" in page
    unclear = {"predicted": {"beliefs": {"rho": None, "tasks": 2}}}
    records = known(records["feedback", 1], {**records["feedback", 2], **unclear})
    page = render_page(summarise("one", table, (1, 2), records))
    assert "| feedback (CoEvolve) | beliefs | +1.00 | 1 | 4 |" in page
    records = known(records["feedback", 1], record("feedback", 2, 0.5))
    found = summarise("one", table, (1, 2), records)
    assert "origins" not in found["arms"][0]
    assert "by origin" not in render_page(found)


def test_what_failures_were_like_is_told_over_the_seeds_whose_records_know_it():
    target = {"episodes": 10, "failures": 2, "hard": 1, "distinct": 1.0, "ends": 0.5}
    second = {"episodes": 10, "failures": 8, "hard": 0, "distinct": 0.25, "ends": 0.25}
    metrics = [
        {"preference": {"examples": {"own": 2, "failures": 3}, "target": target,
                        "second": {**second, "distance": 0.0}}},
        {},
        {"preference": {"examples": {"own": 1, "other": 4}, "target": {"episodes": 10, "failures": 0, "hard": 0},
                        "second": {**second, "distinct": 0.75, "distance": 0.5}}},
        {"preference": {"examples": {}, "target": {"episodes": 0, "failures": 0, "hard": 0}}},
    ]  # fmt: skip
    found = average_failures(metrics)
    assert found == {
        "examples": {"own": 3, "failures": 3, "other": 4},
        "agents": {
            "target": {"failures": 0.1, "hard": 0.5, "distinct": 1.0, "ends": 0.5},
            "second": {"failures": 0.8, "hard": 0.0, "distinct": 0.5, "ends": 0.25, "distance": 0.5},
        },
    }
    assert average_failures([{"updates": 1.0}]) == {}
    idle = {"examples": {"experts": 9}, "target": {"episodes": 0, "failures": 0, "hard": 0}}
    assert average_failures([{"preference": idle}])["agents"]["target"]["failures"] is None
    table = Table("A table", ("coevolving", "feedback"), ())
    known_by = {**record("coevolving", 1, 0.5), "failures": found}
    records = known(known_by, record("coevolving", 2, 0.5), *(record("feedback", seed, 0.5) for seed in (1, 2)))
    page = render_page(summarise("one", table, (1, 2), records))
    assert "Means over seeds that have it in their records, 1 of 2." in page
    assert "| co-evolving agents | target | 10 % | 50 % | 100 % | 50 % | – |" in page
    assert "| co-evolving agents | second | 80 % | 0 % | 50 % | 25 % | 0.50 |" in page
    assert "| co-evolving agents | 3 | 4 | 3 | – | – |" in page
    assert "| feedback (CoEvolve) | target" not in page
    assert "| points gained per 1,000 episodes | 245.10 | 245.10 |" in page
    assert "| points gained per minute on one core | 150.00 | 150.00 |" in page
    records = known(*(record(arm, seed, 0.5) for arm in table.arms for seed in (1, 2)))
    page = render_page(summarise("one", table, (1, 2), records))
    assert "What failures were like" not in page
    assert "points gained" not in page


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
    assert "| feedback (CoEvolve) − static D_0 | +37.5 | [-121.3, +196.3] | 0.205 | 2 of 2 |  |" in page
    assert "| tasks added | 0 (-100 %) | 2 |" in page
    assert "| static D_0 | 0.500 | 0.040 | 0.550 | 3.25 |  |" in page
    assert "| move | 0.0 | 2.0 |" in page
    assert "| duplicate of task | 0.0 | 2.0 |" in page
    assert "left out: seeds 3" in page
    assert "draws its pictures into `pair/`: success." in page


def test_budgets_are_compared_with_the_tables_own_reference():
    table = Table("A ground", ("wide-uniform", "wide-feedback"), (), reference="wide-uniform")
    records = known(record("wide-uniform", 1, 0.25), record("wide-feedback", 1, 0.5, origins=("rare",) * 3))
    for one in records.values():
        one["config"]["evaluation"]["tasks"] = 4
    page = render_page(summarise("one", table, (1,), records))
    assert "in brackets compared with uniform." in page
    assert "| tasks added | 2 | 3 (+50 %) |" in page
    without = render_page(summarise("one", dataclasses.replace(table, reference="feedback"), (1,), records))
    assert "Means over seeds.\n" in without
    assert "in brackets compared" not in without


def test_runs_that_cannot_be_compared_make_no_table_or_one_that_says_so():
    one = known(record("static", 1, 0.25), record("feedback", 1, 0.5, digest="other"))
    with pytest.raises(ValueError, match="2 different sets of tasks"):
        summarise("pair", PAIR, (1,), one)
    with pytest.raises(ValueError, match="no seed of table 'pair' has finished"):
        summarise("pair", PAIR, (2,), one)
    apart = summarise("pair", PAIR, (1,), known(record("static", 1, 0.25), record("feedback", 1, 0.5, zero_shot=0.3)))
    assert apart["seeds_with_several_zero_shots"] == [1]
    assert "Arms of seeds 1 began at different policies" in render_page(apart)
    # One seed has no interval.
    assert "| feedback (CoEvolve) − static D_0 | +25.0 |  | – | 1 of 1 |  |" in render_page(apart)


def test_a_difference_has_an_interval_over_seeds_and_tools(monkeypatch):
    bits = {("static", 1): "0000", ("static", 2): "1000", ("feedback", 1): "1100", ("feedback", 2): "1111"}
    by_arm = {
        arm: [{"held_out": {"tasks": 4, "final": bits[arm, seed]}} for seed in (1, 2)] for arm in ("static", "feedback")
    }
    successes = {arm: {seed: bits[arm, seed].count("1") / 4 for seed in (1, 2)} for arm in by_arm}
    tools = ["find", "find", "send", "send"]
    monkeypatch.setattr(summary, "_find_tools", lambda record: (tools, {}))
    [row] = make_differences(PAIR, successes, by_arm)
    low, high = resample_seeds_and_tools(["1100", "1111"], ["0000", "1000"], tools)
    assert (row["mean"], row["over_tools"]) == (0.625, {"low": low, "high": high})
    assert low < row["mean"] < high
    by_arm["static"][0]["held_out"]["tasks"] = 3  # an episode was lost
    assert make_differences(PAIR, successes, by_arm)[0]["over_tools"] == {}


def test_an_arm_without_steps_has_a_row_and_every_trial_counts():
    table = Table("Trials", ("zero-shot-retry", "feedback"), (("feedback", "zero-shot-retry"),))
    found = summarise("pair", table, (1, 2), known(*map(stepless, (1, 2)), record("feedback", 1, 0.75),
                                                   record("feedback", 2, 0.75)))  # fmt: skip
    retry, feedback = found["arms"]
    assert (retry["live_groups"], found["steps"]) == (None, [0, 2])
    assert (retry["budget"]["evaluation_episodes"], feedback["budget"]["evaluation_episodes"]) == (7, 4)
    page = render_page(found)
    assert "| zero-shot, three trials | 50.0 ± 0.0 | +25.0 |  |" in page
    assert "| episodes of the final evaluation | 7 (+75 %) | 4 |" in page


def test_success_is_told_by_kind_of_task():
    settings = {"evaluation.tasks": 40, "evaluation.seed": 3}
    tasks = sorted(load("desk").tasks("eval", 40, 3), key=lambda task: task.id)
    short = "".join("1" if len(task.solution) == 2 else "0" for task in tasks)

    def of(arm, final):
        job = jobs([arm], [1], further=settings)[0]
        made = record(arm, 1, 0.5, digest=content_hash([task.id for task in tasks]))
        held_out = {**made["held_out"], "tasks": 40, "zero_shot": "0" * 40, "final": final}
        return {**made, "config": job.config, "held_out": held_out}

    found = break_down({"static": [of("static", "0" * 40)], "feedback": [of("feedback", short), of("feedback", short)]})
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
    assert estimate_prior_mastery([added, added], rows) == pytest.approx((0.2 + 0.2 + 1.0) / 3)
    assert estimate_prior_mastery([record("static", 1, 0.5)], rows) is None
    popularity = load("desk").popularity()
    order = [popularity[row["kind"]] for row in found["tool"]]
    assert order == sorted(order, reverse=True)
    assert "finish" not in {row["kind"] for row in found["tool"]}
    assert break_down({"static": [record("static", 1, 0.5)]}) == {}  # of tasks that the desk does not have


def test_runs_without_evaluation_tasks_make_a_table_without_success(tmp_path):
    def bare(arm, seed):
        held = {"digest": "d", "tasks": 0, "zero_shot": "", "final": ""}
        quality = {"tasks": 4, "sr_at_k": 0.5, "turns": 3.25}
        none = {"zero_shot": None, "final": None, "held_out": held, "quality": quality, "dev": []}
        return check_record({**record(arm, seed, 0.5), **none}, arm)

    records = known(*(bare(arm, seed) for arm in PAIR.arms for seed in (1, 2)))
    found = summarise("pair", PAIR, [1, 2], records)
    assert found["zero_shot"] == {
        "count": 2,
        "mean": None,
        "low": None,
        "high": None,
        "by_seed": {"1": None, "2": None},
    }
    assert found["differences"][0]["mean"] is None
    assert found["differences"][0]["by_seed"] == {}
    assert found["arms"][0]["quality"] == {"sr_at_k": 0.5, "ed_rel": None, "max_similarity": None, "turns": 3.25}
    assert "| start | – |" in render_page(found)
    drawn = {arm: [records[arm, seed] for seed in (1, 2)] for arm in PAIR.arms}
    assert figures.draw_all(drawn, tmp_path) == [name for name in figures.FIGURES if name != "success"]


def test_pictures_are_drawn_of_what_arms_have(tmp_path):
    def arms(*names):
        return {arm: [record(arm, seed, 0.5) for seed in (1, 2)] for arm in names}

    without_steps = {"zero-shot-retry": [stepless(1)]}
    assert figures.draw_all({**arms("static", "feedback"), **without_steps}, tmp_path) == list(figures.FIGURES)
    for name in figures.FIGURES:
        assert (tmp_path / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    missing = [name for name, make in figures.FIGURES.items() if make(arms("static")) is None]
    assert missing == ["signals", "conversion", "signal-shares"]


def test_paired_differences_are_drawn_with_their_interval_and_a_dot_for_each_seed():
    values = (0.1, 0.2, 0.6)
    records = known(*(record("static", seed, 0.0) for seed in (1, 2, 3)))
    records |= known(*(record("feedback", seed, value) for seed, value in zip((1, 2, 3), values, strict=True)))
    found = summarise("pair", PAIR, (1, 2, 3), records)["differences"]
    (axes,) = figures.draw_differences(found).axes
    seeds, mean = (points.get_offsets()[:, 0].tolist() for points in axes.collections)
    assert (seeds, mean) == (pytest.approx([10, 20, 60]), pytest.approx([30]))
    assert axes.lines[0].get_xdata() == pytest.approx([100 * found[0]["low"], 100 * found[0]["high"]])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["feedback (CoEvolve) − static D_0"]
    assert figures.draw_differences([{**found[0], "mean": None}]) is None


def test_success_is_drawn_from_the_start_to_the_end_on_held_out_tasks():
    runs = [record("static", seed, final) for seed, final in ((1, 0.5), (2, 0.75))]
    (axes,) = figures.draw_success({"static": runs}).axes
    start, path, interval = (line.get_xdata() for line in axes.lines)
    assert (list(start), list(path)) == ([25, 25], [25, 62.5])
    assert interval == pytest.approx([62.5 - 158.8, 62.5 + 158.8], abs=0.1)
    assert [points.get_offsets()[:, 0].tolist() for points in axes.collections] == [[62.5], [50, 75]]
    assert figures.draw_success({"static": [{**runs[0], "zero_shot": None, "final": None}]}) is None


@pytest.mark.parametrize("probed", [1, 2])
def test_a_budget_that_a_run_does_not_have_counts_as_0(probed):
    records = known(*(record("feedback", seed, 0.5) for seed in (1, 2)))
    records["feedback", probed]["budget"]["probe_episodes"] = 8
    found = summarise("one", Table("A table", ("feedback",), ()), (1, 2), records)
    assert found["arms"][0]["budget"]["probe_episodes"] == 4
    del found["arms"][0]["budget"]["drafts"]
    assert "| drafts examined | 0 |" in render_page(found)


def test_a_picture_that_cannot_be_written_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "FIGURES", {"success": figures.draw_success})
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*success\.png: .* A part of the path is a file"):
        figures.draw_all({"static": [record("static", 1, 0.5)]}, tmp_path / "file")
    figures.draw_all({"static": [record("static", 1, 0.5)]}, tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["success.png"]
