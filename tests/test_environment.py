"""play(): what an environment or engine does becomes a typed outcome."""

import pytest
from shelf import CounterEnvironment, CounterEpisode

from cojax.environment import EngineError, Episode, OutOfContext, play
from cojax.types import Action, Call, Message, Task, Turn

TASK = Task("counter", "count to 2", {"target": 2})
ADD, FINISH = Action(calls=(Call("add"),)), Action(calls=(Call("finish"),))


def script(*actions: Action):
    """An actor that plays the actions in order."""
    left = iter(actions)
    return lambda episode, messages: Turn(next(left))


def test_a_solved_task():
    trajectory = play(CounterEnvironment(), TASK, script(ADD, ADD, FINISH), episode="1-x-0")
    assert (trajectory.outcome, trajectory.reward, trajectory.episode) == ("finished", 1.0, "1-x-0")
    assert trajectory.opening == (Message("user", "count to 2"),)
    assert [turn.observation.text for turn in trajectory.turns] == ["1", "2", "ok"]


def test_the_actor_sees_what_its_action_led_to():
    seen = []

    def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        seen.append([message.content for message in messages])
        return Turn(ADD if len(seen) < 3 else FINISH)

    play(CounterEnvironment(), TASK, act)
    assert seen == [["count to 2"], ["1"], ["2"]]


def test_too_many_turns_truncate():
    trajectory = play(CounterEnvironment(), TASK, script(ADD, ADD, ADD), max_turns=2)
    assert (trajectory.outcome, len(trajectory.turns), trajectory.reward) == ("truncated", 2, 1.0)


def test_a_full_context_truncates():
    def act(episode, messages):
        raise OutOfContext

    assert play(CounterEnvironment(), TASK, act).outcome == "truncated"


def test_a_raising_environment_is_an_environment_error_that_keeps_the_turns():
    def broken(task: Task, step: int) -> None:
        if step == 1:
            raise RuntimeError("the shelf fell down")

    trajectory = play(CounterEnvironment(broken), TASK, script(ADD, ADD, FINISH))
    assert (trajectory.outcome, trajectory.valid, trajectory.reward) == ("environment_error", False, 0.0)
    assert trajectory.error == "step: RuntimeError: the shelf fell down"
    assert len(trajectory.turns) == 2


def test_a_raising_start_is_an_environment_error():
    def broken(task: Task) -> None:
        raise OSError("no shelf")

    trajectory = play(CounterEnvironment(on_start=broken), TASK, script())
    assert (trajectory.outcome, trajectory.error) == ("environment_error", "reset: OSError: no shelf")


def test_a_failing_engine_is_an_engine_error():
    def act(episode, messages):
        raise EngineError("server gone")

    trajectory = play(CounterEnvironment(), TASK, act)
    assert (trajectory.outcome, trajectory.error, trajectory.valid) == ("engine_error", "server gone", False)


def test_a_bug_in_the_actor_is_not_swallowed():
    def act(episode, messages):
        raise KeyError("bug")

    with pytest.raises(KeyError):
        play(CounterEnvironment(), TASK, act)


def test_ten_megabytes_are_capped_and_say_so():
    trajectory = play(CounterEnvironment(lambda task, step: "x" * 10_000_000), TASK, script(ADD, FINISH))
    content = trajectory.turns[0].observation.text
    assert content == "x" * 16_000 + "\n[9984000 characters cut]"


@pytest.mark.parametrize(
    ("method", "value", "said"),
    [
        ("reset", None, "TypeError"),
        ("reset", (Message("user", 3),), "expected a Message with role and content as text"),
        ("step", None, "step returned NoneType"),
        ("evaluate", None, "evaluate returned NoneType"),
        ("evaluate", 1.0, "evaluate returned float"),
    ],
)
def test_the_wrong_shape_is_an_environment_error(method, value, said, monkeypatch):
    monkeypatch.setattr(CounterEpisode, method, lambda self, *_: value)
    trajectory = play(CounterEnvironment(), TASK, script(FINISH))
    assert trajectory.outcome == "environment_error"
    assert said in trajectory.error


def test_an_environment_cannot_end_the_process():
    def leave(task: Task, step: int) -> None:
        raise SystemExit(0)

    trajectory = play(CounterEnvironment(leave), TASK, script(ADD))
    assert (trajectory.outcome, trajectory.error) == ("environment_error", "step: SystemExit: 0")


def test_half_a_surrogate_pair_becomes_text():
    trajectory = play(CounterEnvironment(lambda task, step: "a\ud800b"), TASK, script(ADD, FINISH))
    assert trajectory.turns[0].observation.text == "a?b"


def test_a_reward_outside_the_unit_interval_is_an_environment_error(monkeypatch):
    from cojax.types import Evaluation

    monkeypatch.setattr(CounterEpisode, "evaluate", lambda self: Evaluation(float("nan")))
    trajectory = play(CounterEnvironment(), TASK, script(FINISH))
    assert trajectory.outcome == "environment_error"
    assert "reward nan" in trajectory.error
