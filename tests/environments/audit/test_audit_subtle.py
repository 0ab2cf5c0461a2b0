"""Holes that need a second look are found, and sound worlds that look holed are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import subtle_worlds
from test_audit_examination import examined

from cojax.types import Task
from environments.audit import examination as rules
from environments.audit.__main__ import main
from environments.audit.examination import Examination, complete
from environments.audit.player import Player
from environments.audit.repetition import SURROUNDINGS, Origin, Replayed, Surroundings, play_elsewhere
from environments.audit.scene import read_properties


def found(name, **options):
    """Attacker → severity of a finding, of those at all levels."""
    findings = examined(subtle_worlds, name, **options).findings
    return {finding.attacker: finding.severity for finding in findings}


@pytest.mark.parametrize("name", ["courteous", "counters", "members"])
def test_nothing_is_found_in_a_sound_world(name):
    assert found(name) == {}


def test_what_only_counts_calls_or_time_is_doubtful():
    assert found("ticking") == {"drop": "medium", "extra": "medium", "double": "medium"}


def test_a_walk_that_leads_nowhere_is_no_task():
    environment = subtle_worlds.counters()
    (setup,) = environment.tasks("seed", 1)
    for seed in range(6):
        player = Player(environment)
        walk = complete(player, setup, seed)
        (verdict, ends) = (environment.start(walk), {"a": 0, "b": 0})
        verdict.reset()
        for action in walk.solution[:-1]:
            verdict.step(action)
        assert not walk.solution or verdict.state()["world"]["counters"] != ends


@pytest.mark.parametrize(
    ("name", "attacker", "severity"),
    [
        ("shared", "leak", "high"),
        ("current", "leak", "high"),
        ("films", "break", "medium"),
        ("readings", "break", "medium"),
        ("gain", "break", "medium"),
        ("german", "swap", "high"),
        ("german", "shotgun", "high"),
        ("said", "swap", "medium"),
        ("spoken", "swap", "medium"),
    ],
)
def test_a_hole_is_found(name, attacker, severity):
    assert found(name)[attacker] == severity


def test_episodes_of_a_world_that_plays_one_at_a_time_are_not_compared_beside_each_other():
    environment = subtle_worlds.current(concurrency=1)
    examination = Examination(environment)
    examination.examine(environment.tasks("eval", 1))
    assert examination.findings == []


def test_a_clock_in_a_lookup_is_found_though_no_solution_needs_it():
    assert found("canteen", origin=True)["clock"] == "medium"


def test_the_plays_of_a_process_meet_every_weekday_and_a_clock_that_leaps():
    task = Task("calendar", "", {"day": 1})
    actions = (subtle_worlds.call("dish"), subtle_worlds.call("lap"))
    late = SURROUNDINGS[-1]
    surroundings = Surroundings("elsewhere", late.moment, 1201.0)
    traces = play_elsewhere(Origin("subtle_worlds:calendar", {}), [Replayed(task, actions)] * 27, surroundings, 30.0)
    assert len({trace["observations"][0][0] for trace in traces[::3]}) == 7
    assert {trace["observations"][1][0] for trace in traces} == {"1201"}


def test_calls_that_hang_end_the_audit(monkeypatch):
    monkeypatch.setattr(rules, "_MAX_HANGS_IN_ALL", 3)
    environment = subtle_worlds.hanging()
    examination = Examination(environment, deadline_s=0.05)
    examination.examine(environment.tasks("eval", 9))
    assert examination.player.hangs == 4  # the solution is played twice
    assert [finding.attacker for finding in examination.findings] == ["break"] * 2
    assert examination.failures == ["4 calls hung, and the rest was left out; see --deadline"]
    assert set(examination.left_out) >= {"null", "random"}


def test_a_world_that_cannot_be_made_fails_the_audit(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert main(["subtle_worlds:unmakeable", "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.endswith("RuntimeError: no database\n")


def test_a_document_that_means_nothing_hides_no_other():
    documents = [{"function": 7}, subtle_worlds.document("look", place={"type": "string"})]
    assert read_properties(documents, "look") == {"place": {"type": "string"}}
    assert read_properties(documents, "fly") == {}
