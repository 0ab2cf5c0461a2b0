"""A host that stops is charged neither to a block of code nor to its verdict."""

import threading
import time

import pytest
from worker_trials import descendants, stop_all

from cojax.types import Action, Task
from environments.appworld.environment import AppWorld
from environments.worker.supervisor import read_usage

pytestmark = pytest.mark.real


def block(code: str) -> Action:
    return Action(f"```python\n{code}\n```")


def test_a_stopped_judge_charges_nobody(appworld: AppWorld, task: Task, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(appworld, "verdict", 3.0)
    episode = appworld.start(task)
    episode.reset()
    # More calls than are made again at once.
    for action in (block("for _ in range(120): apis.supervisor.show_profile()"), *task.solution):
        assert episode.step(action).ok
    stop_all(appworld.judge, 5.0)
    verdict = episode.evaluate()
    assert verdict.reward == 1.0, verdict
    episode.close()


def test_a_block_that_is_stopped_is_not_told_that_its_time_is_up(appworld: AppWorld, task: Task):
    """For longer than the six seconds that a block is allowed to work."""
    before = descendants(appworld.play.supervisor)
    episode = appworld.start(task)
    episode.reset()
    child = min(descendants(appworld.play.supervisor) - before)
    already = read_usage(child)[0]

    def stop_at_work() -> None:
        while read_usage(child)[0] < already + 0.3:
            time.sleep(0.01)
        stop_all(appworld.play, 7.0)

    stopping = threading.Thread(target=stop_at_work)
    stopping.start()
    began = time.monotonic()
    observation = episode.step(block("n = 0\nfor i in range(20_000_000): n += i\nprint(n)"))
    stopping.join()
    assert time.monotonic() - began > 7.0
    assert (observation.ok, observation.text) == (True, "199999990000000")
    episode.close()


def test_what_a_solution_does_is_not_remembered_where_a_step_of_it_was_not_ok(appworld: AppWorld, task: Task):
    place, known = {"scenario": task.setup["task"]}, set(appworld._effects_by_key)
    for code, remembered in (("1 / 0", 0), ("print(1)", 1)):
        told = appworld.find_reference_effects(Task("appworld", "Do it.", place, (block(code),)))
        assert told["tables"] == {}
        assert len(appworld._effects_by_key.keys() - known) == remembered
