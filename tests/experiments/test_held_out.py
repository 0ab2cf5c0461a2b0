"""Evaluation tasks held out of D_0, and what an environment states of itself, applied to a run."""

from __future__ import annotations

import dataclasses
import functools
import json
from types import SimpleNamespace

import pytest

from cojax.environment import Traits
from cojax.run import parts, states
from cojax.run.states import HELD_OUT, add_held_out_tasks, find_initial_tasks, hold_out, read_held_out, read_held_out_of
from cojax.settings import base
from cojax.storage.checksums import add_checksum
from cojax.synthesis import Synthesis
from cojax.types import Action, Call, Task, normalise
from cojax.validation import Exclusions


def task(setup: int, query: str) -> Task:
    return Task("world", query, {"n": setup}, (Action(calls=(Call("do", {"what": query}),)),))


def tasks(count: int, setups: int) -> tuple[Task, ...]:
    return tuple(task(n % setups, f"query {n}") for n in range(count))


@pytest.mark.parametrize(
    ("count", "setups", "held"),
    [
        (100, 100, 20), (100, 25, 20), (99, 99, 20), (97, 97, 0), (16, 16, 0), (100, 1, 0), (100, 2, 0), (102, 3, 34),
        (500, 5, 100), (2000, 500, 200),
    ],
)  # fmt: skip
def test_a_fifth_is_held_out_if_that_is_twenty_and_at_most_two_hundred(count, setups, held):
    training, evaluation = hold_out(tasks(count, setups))
    assert len(evaluation) == held
    assert not {one.setup["n"] for one in training} & {one.setup["n"] for one in evaluation}
    assert {one.id for one in (*training, *evaluation)} == {one.id for one in tasks(count, setups)}
    assert training == tuple(one for one in tasks(count, setups) if one in training)


def test_a_wording_that_is_also_trained_on_is_in_neither_part():
    found = (*tasks(80, 80), *(task(100 + n, "The same  query") for n in range(40)))
    training, evaluation = hold_out(found)
    assert len(evaluation) >= 20
    assert "the same query" not in {normalise(one.query) for one in evaluation}
    assert len(training) + len(evaluation) < len(found)
    assert hold_out(found) == (training, evaluation)


def initial(tmp_path, monkeypatch, found, *, evaluation=(), begun=False):
    drafts = (*({"task": one.id} for one in found), {"task": ""})
    calls = []
    monkeypatch.setattr(states.assemble, "find_initial_tasks", lambda *_: calls.append(1) or Synthesis(found, drafts))
    made = dataclasses.make_dataclass("Made", [("evaluation", tuple), ("from_initial", bool, False)])(evaluation)
    training = functools.cache(functools.partial(find_initial_tasks, None, made))
    parts_of = functools.partial(add_held_out_tasks, made, tmp_path / HELD_OUT, begun, training)
    return SimpleNamespace(training=lambda: training()[0], evaluated=parts_of), calls


def test_held_out_tasks_are_stored_with_the_run_and_read_when_it_goes_on(tmp_path, monkeypatch, capsys):
    first, calls = initial(tmp_path, monkeypatch, tasks(100, 100))
    made = first.evaluated()
    assert (len(made.evaluation), made.from_initial, len(first.training().tasks), calls) == (20, True, 80, [1])
    assert {one.id for one in made.evaluation}.isdisjoint(record["task"] for record in first.training().drafts)
    assert len(first.training().drafts) == 81
    assert "evaluation: on 20 tasks held out of D_0" in capsys.readouterr().out
    again, calls = initial(tmp_path, monkeypatch, (), begun=True)
    assert again.evaluated().evaluation == made.evaluation
    assert calls == []
    assert read_held_out_of(str(tmp_path)) == read_held_out_of(str(tmp_path / "checkpoints" / "20")) == made.evaluation
    assert read_held_out_of(str(tmp_path / "a" / "b" / "c")) == ()


def test_too_few_tasks_are_all_trained_on(tmp_path, monkeypatch, capsys):
    first, _ = initial(tmp_path, monkeypatch, tasks(16, 16))
    assert first.evaluated().evaluation == ()
    assert len(first.training().tasks) == 16
    assert "evaluation: none" in capsys.readouterr().out
    again, _ = initial(tmp_path, monkeypatch, (), begun=True)
    assert again.evaluated().evaluation == ()


def test_an_environment_with_evaluation_tasks_keeps_all_of_d_0(tmp_path, monkeypatch):
    first, _ = initial(tmp_path, monkeypatch, tasks(100, 100), evaluation=tasks(1, 1))
    assert len(first.training().tasks) == 100
    (tmp_path / HELD_OUT).write_text("of another run")
    monkeypatch.setattr(states.assemble, "build_parts", lambda config, together: SimpleNamespace(engine=None))
    states.build_parts(base.get_config(), SimpleNamespace(folder=tmp_path), None)
    assert not (tmp_path / HELD_OUT).exists()


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / HELD_OUT
    record = add_checksum({"tasks": []})
    for text in ("{", json.dumps({**record, "tasks": [1]}), json.dumps(add_checksum({"tasks": [{"id": "x"}]}))):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"held_out\.json cannot be read"):
            read_held_out(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_held_out(tmp_path / "nowhere")


def test_no_task_begins_on_the_setup_of_a_held_out_one():
    held = task(1, "copy the file")
    exclusions = Exclusions.of([held], closed=[held])
    assert exclusions.find_rule(task(1, "delete everything else")) == "an evaluation task begins on the same setup"
    assert exclusions.find_rule(task(2, "delete everything else")) == ""
    assert Exclusions.of([held]).find_rule(task(1, "delete everything else")) == ""


def stating(**stated):
    return SimpleNamespace(name="world", traits=Traits(**stated))


def test_an_environment_states_its_own_limits():
    config = base.get_config()
    assert parts.make_limits(config, stating()) == parts.make_limits(config, SimpleNamespace(name="world"))
    found = parts.make_limits(config, stating(concurrency=3, deadline=5.0))
    assert (found.concurrency, found.environment_deadline) == (3, 5.0)
    config.limits.concurrency, config.limits.environment_deadline = 2, 90.0
    found = parts.make_limits(config, stating(concurrency=3, deadline=5.0))
    assert (found.concurrency, found.environment_deadline) == (2, 90.0)
    config.limits.environment_deadline = 60.0
    assert parts.make_limits(config, stating(deadline=5.0)).environment_deadline == 60.0


def test_no_more_expeditions_are_made_at_a_time_than_the_environment_can_have():
    config = base.get_config()
    assert [parts.choose_width(config, stating(concurrency=most), 4) for most in (None, 2, 9)] == [4, 2, 4]
    config.explorer.width = 3
    assert [parts.choose_width(config, stating(concurrency=most), 4) for most in (None, 2, 9)] == [3, 2, 3]


def measured_similarity(*given):
    return parts.similarities(*given).get("evaluation_similarity_measured")


def test_the_similarity_is_measured_where_an_environment_words_all_alike():
    config = base.get_config()
    apart = [task(n, query) for n, query in enumerate(("open the door", "buy some milk", "call my sister back"))]
    titles, days = ("bread", "lamp", "soap", "tea"), ("monday", "tuesday", "wednesday")
    alike = [task(0, f'move with title "{title}" and day "{day}"') for title in titles for day in days]
    assert parts.choose_threshold(config, stating(), alike) == 0.7
    assert parts.choose_threshold(config, stating(worded_alike=True), apart) == 0.7
    assert measured_similarity(config, stating(worded_alike=True), alike[:1]) == 0.0
    assert measured_similarity(config, stating(worded_alike=True), []) is None
    measured = measured_similarity(config, stating(worded_alike=True), alike)
    assert measured is not None
    assert 0.7 < measured < 0.95
    assert parts.choose_threshold(config, stating(worded_alike=True), alike) == measured
    near = [task(n, f"{'set the light in the hall to a warm white ' * 8} {n}") for n in range(30)]
    assert parts.choose_threshold(config, stating(worded_alike=True), near) == 0.0
    config.validation.evaluation_similarity = 0.0
    assert parts.choose_threshold(config, stating(worded_alike=True), alike) == 0.0
