"""The desk's partial reward: the share of the state change made."""

from __future__ import annotations

import pytest
from test_desk_office import OFFICE, call

from cojax.types import Task
from environments.desk.episode import DeskEpisode

DONE = call("finish")
MOVE, COPY = call("files_move", "report", "drafts"), call("files_copy", "report", "drafts")


def verdict(solution, *actions):
    episode = DeskEpisode(Task("desk", "", OFFICE, solution))
    for action in actions:
        episode.step(action)
    return episode.evaluate()


@pytest.mark.parametrize(
    ("actions", "partial"),
    [
        ((DONE,), 0.0),
        ((MOVE, DONE), 0.5),
        ((MOVE, call("notes_delete", "memo"), DONE), 1 / 3),
        ((MOVE, call("finish", "amber")), 1 / 3),
        ((MOVE, COPY), 1.0),
        ((MOVE, COPY, DONE), 1.0),
    ],
)
def test_it_is_the_changes_made_over_those_wanted_and_those_wrong(actions, partial):
    found = verdict((MOVE, COPY, DONE), *actions)
    assert found.partial == pytest.approx(partial)
    assert found.reward == float(actions == (MOVE, COPY, DONE))


def test_an_answer_counts_as_a_change():
    look = call("files_read", "report")
    assert verdict((look, call("finish", "amber")), look, DONE).partial == 0.0
    assert verdict((look, call("finish", "amber")), call("finish", "amber")).partial == 1.0


def test_without_a_solution_nothing_is_achieved():
    assert verdict((), MOVE, DONE).partial == 0.0
