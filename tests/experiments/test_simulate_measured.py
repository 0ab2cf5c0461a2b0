"""Distributions from what runs recorded, machines by assumptions, and the command that predicts from both."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from pathlib import Path

import pytest

from benchmarks.simulate import __main__ as command
from benchmarks.simulate.accelerators import Assumptions, Layout, list_layouts, make_system, shape_episodes
from benchmarks.simulate.measured import Demand, draw_groups, fit_cost, fit_demand, fit_rates, measure_runs
from benchmarks.simulate.steps import simulate_steps
from benchmarks.simulate.times import EpisodeTimes, RunTimes, StepTimes, TurnTimes, read_run, write_run
from cojax.storage.episodes import make_record, write_episodes
from cojax.storage.files import write_json
from cojax.types import Action, Observation, Task, Trajectory, Turn

# ---- measured


def measured_episode(engine: float, sampled: int = 10, world: float = 0.5, reward: float = 0.0) -> EpisodeTimes:
    return EpisodeTimes(0.25, 0.125, reward, (TurnTimes(4, sampled, engine, world),) * 2)


def run_of(name: str, steps: int, servers: int = 1, conversations: int = 2) -> RunTimes:
    """Steps of two groups of two episodes: each engine call takes 1 s, two at once."""
    groups = tuple(tuple(measured_episode(1.0, reward=float(k)) for k in range(2)) for _ in range(2))
    seconds = {"generation": 4.0, "environment": 2.75, "update": 3.0, "sync": 0.5, "checkpoint": 0.25, "total": 10.5}
    return RunTimes(
        name, servers, conversations, 2, 2, 100, tuple(StepTimes(seconds, False, groups) for _ in range(steps))
    )


def test_the_rate_of_a_server_from_its_own_times():
    run = run_of("a", 3)
    # Two requests of work 1 at once take 1 s: 2 a second.
    found = fit_rates([(step, 2) for step in run.steps], Demand(1.0, 0.0, 0.0), servers=1)
    assert found.points == (pytest.approx((2.0, 2.0)),)
    # The same on two servers: one has one request, and 1 a second.
    assert fit_rates([(run.steps[0], 2)], Demand(1.0, 0.0, 0.0), 2).points == (pytest.approx((1.0, 1.0)),)


def test_work_and_costs_from_times():
    turns = [TurnTimes(p, s, 2.0 + 0.5 * s + 0.25 * p, 0.0) for p, s in itertools.product((0, 4, 8), (1, 5, 9))]
    demand = fit_demand(turns)
    # The mean turn took 2 + 2.5 + 1 s.
    assert (demand.request, demand.sampled, demand.prompt) == pytest.approx((2 / 5.5, 0.5 / 5.5, 0.25 / 5.5))
    cost = fit_cost([1, 2, 3], [3, 5, 7])
    assert (cost.fixed, cost.each, *cost.ratios) == pytest.approx((1, 2, 1, 1, 1))
    assert cost(random.Random(0), 10) == pytest.approx(21)
    assert fit_cost([], [])(random.Random(0), 5) == 0


def test_a_run_of_constant_times_predicts_itself_and_others():
    found = measure_runs([run_of("a", 3)], servers=1)
    steps = simulate_steps(found.system(2, 2, 2), 5)
    assert [step.seconds for step in steps] == pytest.approx([10.5] * 5)
    # Rollout 0.25 + 2 · (1 + 0.5) + 0.125, twice: two conversations at once of four episodes.
    assert [step.rollout for step in steps] == pytest.approx([6.75] * 5)
    assert found.pace.ratios == pytest.approx((1.0,) * 3)
    with pytest.raises(ValueError, match="no run with 2 servers is given, only with 1"):
        measure_runs([run_of("a", 3)], servers=2)
    with pytest.raises(ValueError, match="b has a staleness or a quorum"):
        measure_runs([run_of("a", 3), dataclasses.replace(run_of("b", 3), staleness=1)], servers=1)


def test_groups_are_drawn_whole():
    groups = [[measured_episode(k, reward=k) for k in (n, n + 0.5)] for n in range(3)]
    assert all(group in groups for group in draw_groups(groups, 20, 2, random.Random(0)))
    assert {len(group) for group in draw_groups(groups, 20, 5, random.Random(0))} == {5}


def run_directory(folder: Path, engine: float = 0.5) -> Path:
    """Two steps, as a run leaves them."""
    write_json(
        folder / "config.json",
        {
            "config": {
                "engine": {"name": "sglang"},
                "sglang": {"servers": 2},
                "limits": {"concurrency": 16},
                "batch_size": 3,
                "group_size": 5,
                "evolve_every": 4,
                "staleness": 1,
                "quorum": 0.5,
            }
        },
    )
    task = Task("counter", "count", {})
    turn = Turn(
        Action("go"), Observation(), (1, 2, 3), (5, 6), (-1.0, -1.0), engine_seconds=engine, environment_seconds=0.25
    )
    lines = []
    for step in (1, 2):
        records = [
            make_record(Trajectory(task, f"{step}-{task.id}-{k}", (), (turn,), float(k), opening_seconds=0.125))
            for k in (0, 1)
        ]
        lost = make_record(Trajectory(task, f"{step}-{task.id}-2", outcome="engine_error"))
        write_episodes(folder / "episodes" / f"{step:06d}.jsonl.gz", [*records, lost])
        lines.append({"step": step, "seconds": {"generation": 1.0, "update": 2.0, "total": 4.0}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_times_of_a_run_directory_and_of_the_file_kept_of_it(tmp_path: Path):
    (tmp_path / "run" / "episodes").mkdir(parents=True)
    found = read_run(run_directory(tmp_path / "run"))
    assert (found.name, found.servers, found.conversations, found.evolve_every) == ("run", 2, 16, 4)
    assert (found.tasks, found.group_size, found.staleness, found.quorum) == (3, 5, 1, 0.5)
    [step] = found.steps  # the first compiles
    assert (step.rollout, step.other, step.evolved) == (1.0, 1.0, False)
    turn = TurnTimes(3, 2, 0.5, 0.25)
    assert step.groups == ((EpisodeTimes(0.125, 0.0, 0.0, (turn,)), EpisodeTimes(0.125, 0.0, 1.0, (turn,))),)
    write_run(tmp_path / "kept" / "run.json.gz", found)
    assert read_run(tmp_path / "kept" / "run.json.gz") == found


def test_a_run_without_times_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="is not a run directory"):
        read_run(tmp_path)
    (tmp_path / "episodes").mkdir()
    with pytest.raises(ValueError, match="holds no times of turns after its first step"):
        read_run(run_directory(tmp_path, engine=0.0))


# ---- accelerators


def test_assumptions_are_arithmetic():
    assumed = Assumptions(
        peak=100, compute_share=0.5, bandwidth=10, memory_share=1, network_share=1, link=4, network=1, node=2,
        update_operations=200, update_bytes=6, row=10, weights=20, cache=1, overhead=1, parameters=5, memory=100,
        turns=3, sampled=2, prompt=2, write=10, read=5, switch=1,
    )  # fmt: skip
    # One micro-batch computes for 200 / 50 = 4 s and sends for 6 / 4 or, beyond the node, 6 / 1.
    assert [assumed.update_seconds(35, devices) for devices in (1, 2, 4, 99)] == [16, 8, 6, 6]
    assert assumed.sync_seconds == 20 / 10 + 20 / 5 + 1
    # Half of 4 · 4 tokens of context; room for (85 − 20) / 16.
    assert (assumed.context, assumed.slots) == (8, 4)
    # A decoding step takes 1 + (20 + 8n) / 10; computing n tokens takes 10n / 50.
    assert [number for number, _ in assumed.rates().points] == [1, 2, 4]
    assert [rate for _, rate in assumed.rates().points] == pytest.approx([1 / 3.8, 2 / 4.6, 4 / 6.2])
    assert assumed.demand(TurnTimes(31, 7, 9.0, 9.0)) == pytest.approx(7 + 31 * 0.2 / (6.2 / 4))
    with pytest.raises(ValueError, match="row is 0; expected a number above 0"):
        Assumptions(row=0)


def test_layouts_use_every_accelerator():
    found = list_layouts(8, Assumptions())
    assert found == [Layout(8, 8, shared=True), Layout(1, 7), Layout(2, 6), Layout(4, 4), Layout(6, 2)]


def test_episodes_are_stretched_to_the_assumed_means():
    groups = [[measured_episode(1.0, sampled=s) for s in (5, 15)] for _ in range(3)]
    [first, second], *_ = shape_episodes(groups, Assumptions(turns=6, sampled=100, prompt=40, world=2.0))
    assert [len(first.turns), len(second.turns)] == [6, 6]
    assert [first.turns[0].sampled, second.turns[5].sampled, first.turns[0].prompt] == [50, 150, 40]
    assert (first.opening, first.verdict, first.turns[3].world) == (3.5, 3.9, 2.0)


def test_more_accelerators_never_make_a_step_longer():
    groups = shape_episodes(
        [[measured_episode(1.0, sampled=s, reward=s) for s in (5, 15)] for _ in range(3)], Assumptions()
    )
    seconds = [
        simulate_steps(
            make_system(groups, Assumptions(), Layout(n, n), task_count=8, group_size=2, staleness=0, quorum=1.0), 1
        )[0].seconds
        for n in (1, 2, 4, 16)
    ]  # fmt: skip
    assert seconds == sorted(seconds, reverse=True)


# ---- the command


def test_the_command_predicts_compares_and_lists_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = []
    for name, conversations in (("a", 2), ("b", 4)):
        paths.append(str(tmp_path / f"{name}.json.gz"))
        write_run(Path(paths[-1]), run_of(name, 3, conversations=conversations))

    def rows(*arguments: str) -> list[dict]:
        assert command.main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["rows"]

    [found] = rows(paths[0], "--tasks=2", "--group-size=2")
    assert found["step_seconds"] == pytest.approx(10.5)
    assert sum(found[part] for part in ("rollout", "update", "sync", "evolution", "host")) == pytest.approx(1)
    [found] = rows(paths[0], "--against", paths[1])
    assert (found["run"], found["measured_seconds"], found["episodes"]) == ("b", 10.5, 4)
    assert found["error"] == pytest.approx(found["predicted_seconds"] / 10.5 - 1)
    found = rows(paths[0], "--accelerators=8,16", "--tasks=2", "--group-size=2", "--keep", str(tmp_path / "kept"))
    assert [row["accelerators"] for row in found] == [8] * 10 + [16] * 10
    assert read_run(tmp_path / "kept" / "a.json.gz") == read_run(paths[0])
    assert command.main([paths[0], "--against", paths[0]]) == 2
    assert "a check needs another" in capsys.readouterr().err
    assert command.main([paths[0], "--accelerators=8", "--row=0"]) == 2
