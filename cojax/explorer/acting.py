"""A mind as an actor: it sees what an episode says and answers with one action a turn."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, Field

from cojax.environment import EnvironmentFailure, Episode, ask
from cojax.explorer.guidance import signature
from cojax.explorer.mind import ChatFailure, Mind, Purse, seed_of, structured
from cojax.explorer.wording import bullets, data, fill, parts
from cojax.types import Action, Call, Message, Turn, normalise
from cojax.watch import ADVICE

_T = TypeVar("_T")

# How often in one turn a mind may insist on an action that is known to fail.
_INSISTS = 2
# Seconds that an environment may take to say what it offers. A mind may think longer than that, so that whoever watches
# the episode would not notice in time.
_PATIENCE = 60.0
_LEFT_OUT = "[left out here to save room]"


class Move(BaseModel):
    """One action of a tool-calling mind; without a tool, the end of the user's turn."""

    thought: str = ""
    tool: str = Field(validation_alias=AliasChoices("tool", "name"))
    arguments: dict[str, Any] = Field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Brief:
    """What an actor is told: `open` words the first two messages around how to act, what the episode says and some
    actions that would work, `next` what comes after an action. `window` is how many characters of conversation it is
    shown at most, `hints` how many actions that would work."""

    open: Callable[[str, str, str], tuple[Message, Message]]
    next: str
    steps: int
    ending: str
    window: int
    avoided: tuple[str, ...] = ()
    hints: int = 0


class MindActor:
    """The actor of one episode; single-use.

    Where the mind fails, or insists on what it is told to avoid, `ChatFailure` ends the episode as an engine_error,
    with what was done so far.
    """

    def __init__(self, mind: Mind, brief: Brief, *, purse: Purse, seed: tuple, place: str):
        self.mind, self.brief, self.purse, self.seed, self.place = mind, brief, purse, seed, place
        self.avoided = {_sameness(line) for line in brief.avoided}
        self.head: tuple[Message, ...] = ()
        self.tail: list[tuple[Message, Message]] = []  # what it did, what came back
        self.done: Message | None = None
        self.speaks = False
        self.turns = 0

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        said = data("\n".join(message.content for message in messages))
        if not self.head:
            tools = within(_PATIENCE, episode.tools)
            self.speaks = not tools
            # Where actions are text, calls that would work are not how they are written.
            count = 0 if self.speaks else self.brief.hints
            hints = hints_of(episode, count, self.seed) if count else ""
            self.head = self.brief.open(how_to_act(tools, self.brief.ending), said, hints)
        elif self.done is not None:
            left = str(self.brief.steps - self.turns)
            self.tail.append((self.done, Message("user", fill(self.brief.next, observation=said, left=left))))
        action = self._chosen()
        self.turns += 1
        return Turn(action)

    def _chosen(self) -> Action:
        """The next action that is not to be avoided. Raises ChatFailure."""
        more: tuple[Message, ...] = ()
        for insists in range(_INSISTS + 1):
            place = f"{self.place}/turn {self.turns + 1}" + f"/again {insists}" * bool(insists)
            action, self.done = self._asked((*self._conversation(), *more), place, (*self.seed, self.turns, insists))
            if _sameness(signature(action)) not in self.avoided:
                return action
            more = (*more, self.done, Message("user", parts("explore")["refused"]))
        raise ChatFailure("refused", f"it insists on what must not be repeated: {signature(action)[:200]}")

    def _asked(self, messages: Sequence[Message], place: str, seed: tuple) -> tuple[Action, Message]:
        """The action of one reply, and how the mind put it."""
        if self.speaks:
            text = self._written(messages, place, seed)
            return Action(text), Message("assistant", text)
        move = structured(self.mind, messages, Move, purse=self.purse, seed=seed_of(*seed), place=place)
        calls = (Call(move.tool, move.arguments),) if move.tool else ()
        return Action(calls=calls), Message("assistant", json.dumps(move.model_dump(), ensure_ascii=False))

    def _written(self, messages: Sequence[Message], place: str, seed: tuple) -> str:
        """An action in free text: one that is empty or cut off may be written again, once."""
        for attempt in range(2):
            reply = self.mind.reply(
                messages, purse=self.purse, seed=seed_of(*seed), place=place + "/repair" * attempt, schema=None
            )
            if reply.text.strip() and not reply.truncated:
                return reply.text
            problem = "was cut off: write much less at once" if reply.truncated else "was empty"
            said = Message("assistant", reply.text[:2_000] or "(nothing)")
            messages = (*messages, said, Message("user", f"That answer {problem}. Write one action."))
        self.mind.failed("truncated" if reply.truncated else "empty")
        raise ChatFailure("truncated" if reply.truncated else "empty", "twice in a row")

    def _conversation(self) -> tuple[Message, ...]:
        """All that was said; where it grows too long, the oldest results are left out, never the actions."""
        room = self.brief.window - sum(len(message.content) for message in self.head)
        shown: list[Message] = []
        for done, came in reversed(self.tail):
            room -= len(done.content) + len(came.content)
            # The newest result is always shown in full: the next action rests on it.
            fits = room >= 0 or not shown
            shown += [came if fits else Message("user", _LEFT_OUT), done]
        return (*self.head, *reversed(shown))


def _sameness(line: str) -> tuple[str, ...]:
    """What two lines `tool(name=value, …)` for the same action share, in whatever order the arguments stand."""
    tool, _, arguments = normalise(line).removesuffix(")").partition("(")
    return (tool, *sorted(arguments.split(", ")))


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """What the environment answers. Raises EnvironmentFailure where it fails, or takes longer than that."""
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask(call))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="asked", daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except TimeoutError:
        raise EnvironmentFailure(f"what it offers was not said within {seconds:g} s{ADVICE}") from None


def hints_of(episode: Episode, count: int, seed: tuple) -> str:
    """At most `count` of the actions that would work now, as many tools among them as can be."""
    rng = random.Random(repr(("hints", seed)))
    by_tool: dict[str, list[Action]] = {}
    for action in within(_PATIENCE, episode.affordances):
        if action.calls:
            by_tool.setdefault(action.calls[0].name, []).append(action)
    tools = rng.sample(sorted(by_tool), min(count, len(by_tool)))
    return data(bullets([signature(rng.choice(by_tool[tool])) for tool in tools])) if tools else ""


def how_to_act(tools: Sequence[Mapping[str, Any]], ending: str) -> str:
    """How actions are written: as calls of these tools or, where there are none, as the environment says."""
    words = parts("act")
    if not tools:
        return words["text"]
    end = f" {fill(words['ending_tool'], tool=ending)}" if ending else f" {words['ending_turn']}"
    documented = data("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    return fill(words["tools"], tools=documented, ending=end)
