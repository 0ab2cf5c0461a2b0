"""Negative controls: doing nothing, and the solution without one action, wherever the work is done."""

from __future__ import annotations

import dataclasses
import time

import pytest
from broken_desks import BrokenDesk
from counter_environment import hang
from patience import patience
from records import DESK, call

import environments
from cojax import validation
from cojax.environment import Environment
from cojax.environment.watch import watched_play
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Evaluation, Message, Observation, Task, TaskDraft, Verdict
from cojax.validation import Validation

MOVE = call("files_move", file="report", folder="taxes")
READ = call("files_read", file="report")
FINISH = call("finish")


def both(*actions: Action) -> Action:
    """Their calls in one action."""
    return Action(calls=tuple(c for action in actions for c in action.calls))


def examined(
    environment: Environment,
    setup: dict,
    *solution: Action,
    ending: str = "finish",
    query: str = "move report to taxes",
) -> Verdict:
    draft = TaskDraft(environment.name, setup, "by hand", query, solution, "same end")
    verdict, task = Validation(environment)(draft, lambda id: False, ScriptedExplorer(ending=ending))
    assert (task is not None) == (verdict.status == "accepted")
    return verdict


class SeveralEpisode:
    """An episode of the desk whose actions may hold several calls."""

    def __init__(self, episode) -> None:
        self.episode = episode

    def __getattr__(self, name):
        return getattr(self.episode, name)

    def step(self, action: Action) -> Observation:
        seen = [self.episode.step(Action(calls=(one,))) for one in action.calls] or [self.episode.step(action)]
        messages = tuple(message for observation in seen for message in observation.messages)
        return Observation(messages, ok=all(one.ok for one in seen), done=seen[-1].done)


class Several:
    name = "desk"

    def __init__(self) -> None:
        self.desk = environments.load("desk")

    def __getattr__(self, name):
        return getattr(self.desk, name)

    def start(self, task: Task) -> SeveralEpisode:
        return SeveralEpisode(self.desk.start(task))


def test_a_last_action_that_does_all_the_work_is_more_than_nothing() -> None:
    verdict = examined(Several(), DESK, both(MOVE, FINISH))
    assert verdict.status == "accepted", verdict
    assert verdict.evidence[-1] == (
        "negative control: fails without action 1, files_move(file=report, folder=taxes); finish()"
    )


def test_a_last_action_that_only_looks_on_the_way_is_superfluous() -> None:
    assert examined(Several(), DESK, both(READ, FINISH)).evidence[-1].startswith("no effect")
    assert examined(Several(), DESK, MOVE, both(READ, FINISH)).evidence[-1] == (
        "superfluous: nothing that it shows is used or asked for, call 1 of action 2, files_read(file=report)"
    )


def test_a_last_action_that_is_not_needed_is_refused() -> None:
    """Here an episode is judged by the file alone, so that what the last action does besides counts for nothing."""

    def judge(episode) -> Evaluation:
        return Evaluation(float(episode.state()["files"]["report"]["folder"] == "taxes"))

    class Loose(BrokenDesk):
        def start(self, task: Task):
            return SeveralEpisode(super().start(task))

    note = call("notes_add", note="todo", text="amber")
    query = "move report to taxes, then add note todo saying amber"
    assert examined(Loose(judge=judge), DESK, MOVE, both(note, FINISH), query=query).evidence[-1] == (
        "negative control: passes without call 1 of action 2, notes_add(note=todo, text=amber)"
    )


def test_an_answer_given_with_the_work_counts() -> None:
    query = "tell the text of report"
    verdict = examined(Several(), DESK, both(READ, call("finish", answer="amber")), query=query)
    assert verdict.status == "accepted", verdict


@dataclasses.dataclass
class LedgerEpisode:
    """A world of text: `set NAME VALUE`, `get NAME` (7 where it was not set), `done [ANSWER]`, several to a block, one
    a line; a call of `quit` stands for a bare `done`. With `dialogue`, `done` ends a turn, one for each line of the
    query."""

    task: Task
    dialogue: bool

    def __post_init__(self) -> None:
        self.book: dict[str, str] = {}
        self.answer: str | None = None
        self.turns, self.over = 0, False

    def reset(self) -> tuple[Message, ...]:
        return (Message("user", self.task.query),)

    def tools(self) -> tuple:
        return ()

    def step(self, action: Action) -> Observation:
        lines = ["done" for one in action.calls if one.name == "quit"] or action.text.splitlines()
        if self.over or not lines:
            return Observation((Message("user", "nothing was run"),), ok=False, done=self.over)
        shown = "ok"
        for line in lines:
            match line.split():
                case ["set", name, value]:
                    self.book[name] = value
                case ["get", name]:
                    shown = self.book.get(name, "7")
                case ["done", *words]:
                    self.answer, self.turns = " ".join(words), self.turns + 1
                    self.over = not self.dialogue or self.turns == len(self.task.query.splitlines())
                case _:
                    return Observation((Message("user", f"cannot run {line!r}"),), ok=False)
        return Observation((Message("user", shown),), done=self.over)

    def state(self) -> dict:
        return {"book": dict(self.book), "answer": self.answer, "turns": self.turns}

    def affordances(self) -> tuple[Action, ...]:
        return (Action("get rent"), Action("done"))

    def evaluate(self) -> Evaluation:
        reference = LedgerEpisode(self.task, self.dialogue)
        for action in self.task.solution:
            reference.step(action)
        return Evaluation(float(self.over and self.state() == reference.state()))

    def close(self) -> None:
        pass


@dataclasses.dataclass
class Ledger:
    dialogue: bool = False
    name: str = "ledger"

    def tools(self) -> tuple:
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return ()

    def start(self, task: Task) -> LedgerEpisode:
        return LedgerEpisode(task, self.dialogue)

    def phrase(self, steps) -> None:
        return None


@pytest.mark.parametrize("ending", ["quit", ""])
def test_code_that_does_the_work_and_ends_in_one_block_is_a_task(ending: str) -> None:
    """The bare ending is the tool's, as the environment writes it, or the action that the environment offers last."""
    verdict = examined(Ledger(), {}, Action("set rent 7\ndone"), ending=ending, query="set the rent to 7")
    assert verdict.status == "accepted", verdict
    assert verdict.evidence[-3:] == (
        "has an effect, and doing nothing fails",
        "query and solution have words in common, and 0 arguments are named, shown or documented; it cannot be told of "
        "code",
        "negative control: fails without action 1, set rent 7\ndone",
    )
    looked = examined(
        Ledger(), {}, Action("get page"), Action("set rent 7\ndone 7"), ending=ending, query="set the rent to the page"
    )
    assert looked.status == "accepted", looked
    idle = examined(Ledger(), {}, Action("get page"), Action("set rent 3\ndone"), ending=ending, query="set rent to 3")
    assert idle.evidence[-1] == "superfluous: nothing that it shows is used or asked for, action 1, get page"


@pytest.mark.parametrize("ending", ["quit", ""])
@pytest.mark.parametrize("solution", [("done",), ("get rent\ndone",), ("get rent", "get rent\ndone")])
def test_code_that_only_looks_and_ends_is_nothing(ending: str, solution: tuple[str, ...]) -> None:
    verdict = examined(Ledger(), {}, *map(Action, solution), ending=ending)
    assert verdict.status == "discarded"
    assert verdict.evidence[-1] == "no effect: ends in the same state as doing nothing, and gives no answer"


def test_an_environment_that_hangs_when_asked_how_it_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Ledger):
        def start(self, task: Task) -> LedgerEpisode:
            episode = super().start(task)
            episode.affordances = lambda: hang()  # type: ignore[assignment, method-assign]
            return episode

    monkeypatch.setattr(validation, "CALL_TIMEOUT_S", 0.1)
    # As where drafts are a model's, which may think for an hour.
    examine = Validation(Hanging(), play=watched_play(5.0, act_timeout_s=3600.0))
    draft = TaskDraft("ledger", {}, "by hand", "do it", (Action("set rent 7\ndone"),), "same end")
    began = time.monotonic()
    verdict, task = examine(draft, lambda id: False, ScriptedExplorer(ending=""))
    assert time.monotonic() - began < patience(3)
    assert (verdict.status, task) == ("discarded", None)
    assert "environment failed: act: the environment did not say within 0.1 s what it offers" in verdict.evidence[-1]


def test_doing_nothing_hands_back_each_turn_of_a_dialogue() -> None:
    def turns(*texts: str) -> Verdict:
        return examined(Ledger(dialogue=True), {}, *map(Action, texts), ending="", query="set rent to 7\nset page to 3")

    assert turns("get rent", "done", "get rent", "done").evidence[-1].startswith("no effect")
    verdict = turns("set rent 7", "done", "set page 3\ndone")
    assert verdict.status == "accepted"
    assert verdict.evidence[-1] == "negative control: fails without action 3, set page 3\ndone"


def test_an_environment_that_breaks_when_asked_for_its_ending_is_evidence() -> None:
    class Broken(LedgerEpisode):
        def affordances(self) -> tuple[Action, ...]:
            raise OSError("on fire")

    class Breaking(Ledger):
        def start(self, task: Task) -> LedgerEpisode:
            return Broken(task, self.dialogue)

    verdict = examined(Breaking(), {}, Action("set rent 7\ndone"), ending="")
    assert verdict.evidence[-1] == "environment failed: act: OSError: on fire"
