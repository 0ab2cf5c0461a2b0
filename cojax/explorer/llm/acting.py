"""A model as an actor: it sees what an episode says and answers with one action a turn."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, Field

from cojax.environment import Episode
from cojax.explorer.guidance import signature
from cojax.explorer.llm.chat_model import Budget, ChatFailure, ChatModel, seed_of, structured
from cojax.explorer.llm.fitting import fitted, paired, shortened
from cojax.explorer.llm.prompting import bullets, data, fill, parts
from cojax.host.deadlines import PATIENCE as _PATIENCE
from cojax.host.deadlines import within
from cojax.types import Action, Call, Message, Turn

# How often in one turn a model may insist on an action that is known to fail.
_INSISTS = 2
# The parts of the window that the first words of an episode, and actions that would work, may take.
_OPENING, _HINTS = 3, 6
# Characters of an action that would work.
_HINT = 300
# A call, and one of its arguments, in a line. Where a value holds brackets, it may be code that goes on after the call.
_NAMED, _ARGUMENT = re.compile(r"([\w.]+)\(([^()]*)\)"), re.compile(r"[\w.-]+=(?!=)")


class Move(BaseModel):
    """One action of a tool-calling model; without a tool, the end of the user's turn."""

    thought: str = ""
    tool: str = Field(validation_alias=AliasChoices("tool", "name"))
    arguments: dict[str, Any] = Field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Instructions:
    """What an actor is told: `open` words the first two messages around how to act, what the episode says and some
    actions that would work, `next` what comes after an action. `window` is how many characters it is shown at most
    besides our own words, the tools' documentation and the newest exchange; `open` itself takes `told` of them. `hints`
    is how many actions that would work it is shown at most."""

    open: Callable[[str, str, str], tuple[Message, Message]]
    next: str
    steps: int
    ending: str
    window: int
    avoided: tuple[str, ...] = ()
    hints: int = 0
    told: int = 0


class ChatModelActor:
    """The actor of one episode; single-use.

    Where the model fails, or insists on what it is told to avoid, `ChatFailure` ends the episode as an engine_error,
    with what was done so far.
    """

    def __init__(self, chat_model: ChatModel, brief: Instructions, *, budget: Budget, seed: tuple, place: str):
        self.chat_model, self.brief, self.budget, self.seed, self.place = chat_model, brief, budget, seed, place
        self.avoided = {_sameness(line) for line in brief.avoided}
        self.head: tuple[Message, ...] = ()
        self.tail: list[tuple[str, str]] = []  # what it did, what came back
        self.done: str | None = None
        self.room = brief.window
        self.speaks = False
        self.turns = 0

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        said = "\n".join(message.content for message in messages)
        if not self.head:
            self.head = self._opened(episode, said)
        elif self.done is not None:
            self.tail.append((self.done, said))
        action = self._chosen()
        self.turns += 1
        return Turn(action)

    def _opened(self, episode: Episode, said: str) -> tuple[Message, ...]:
        """The first two messages. What they show takes from the room that is left to the conversation."""
        tools = within(_PATIENCE, episode.tools)
        self.speaks = not tools
        # Where actions are text, calls that would work are not how they are written.
        count = 0 if self.speaks else self.brief.hints
        hints = hints_of(episode, count, self.seed) if count else []
        fits = [hint for hint in fitted(hints[::-1], self.brief.window // _HINTS, 3) if hint is not None]
        opening = shortened(said, self.brief.window // _OPENING)
        works = bullets(fits[::-1]) if fits else ""
        self.room = self.brief.window - self.brief.told - len(opening) - len(works)
        acting = how_to_act(tools, self.brief.ending)
        return self.brief.open(acting, data(opening) if opening.strip() else "", data(works) if works else "")

    def _chosen(self) -> Action:
        """The next action that is not to be avoided. Raises ChatFailure."""
        more: tuple[Message, ...] = ()
        for insists in range(_INSISTS + 1):
            place = f"{self.place}/turn {self.turns + 1}" + f"/again {insists}" * bool(insists)
            action, done = self._asked((*self._conversation(), *more), place, (*self.seed, self.turns, insists))
            if _sameness(signature(action)) not in self.avoided:
                self.done = done
                return action
            more = (*more, Message("assistant", done), Message("user", parts("explore")["refused"]))
        raise ChatFailure("refused", f"it insists on what must not be repeated: {signature(action)[:200]}")

    def _asked(self, messages: Sequence[Message], place: str, seed: tuple) -> tuple[Action, str]:
        """The action of one reply, and how the model put it."""
        if self.speaks:
            text = self._written(messages, place, seed)
            return Action(text), text
        move = structured(self.chat_model, messages, Move, budget=self.budget, seed=seed_of(*seed), place=place)
        calls = (Call(move.tool, move.arguments),) if move.tool else ()
        return Action(calls=calls), json.dumps(move.model_dump(), ensure_ascii=False)

    def _written(self, messages: Sequence[Message], place: str, seed: tuple) -> str:
        """An action in free text: one that is empty or cut off may be written again, once."""
        for attempt in range(2):
            reply = self.chat_model.reply(
                messages, budget=self.budget, seed=seed_of(*seed), place=place + "/repair" * attempt, schema=None
            )
            if reply.text.strip() and not reply.truncated:
                return reply.text
            problem = "was cut off: write much less at once" if reply.truncated else "was empty"
            said = Message("assistant", reply.text[:2_000] or "(nothing)")
            messages = (*messages, said, Message("user", f"That answer {problem}. Write one action."))
        self.chat_model.failed("truncated" if reply.truncated else "empty")
        raise ChatFailure("truncated" if reply.truncated else "empty", "twice in a row")

    def _conversation(self) -> tuple[Message, ...]:
        """All that was said. Where that is too long, the newest exchange is in full all the same, as the next action
        rests on it; of the others long texts are cut, and the oldest left out."""
        shown = [*paired(self.tail[:-1], self.room), *self.tail[-1:]]
        head = self.head
        if missing := len(self.tail) - len(shown):
            note = fill(parts("act")["left_out"], count=str(missing))
            head = (*head[:-1], Message(head[-1].role, f"{head[-1].content}\n\n{note}"))
        told: list[Message] = []
        for number, (done, came) in enumerate(shown, start=missing + 1):
            left = str(self.brief.steps - number)
            told.append(Message("assistant", done))
            told.append(Message("user", fill(self.brief.next, observation=data(came), left=left)))
        return (*head, *told)


def _sameness(line: str) -> tuple[str, ...]:
    """What two lines for the same action share: whatever is not white space and, where a line reads
    `tool(name=value, …)`, nothing of the order of its arguments."""
    line = " ".join(line.split())
    if (call := _NAMED.fullmatch(line)) is None:
        return (line,)
    arguments = call[2].split(", ")
    return (call[1], *sorted(arguments)) if all(map(_ARGUMENT.match, arguments)) else (line,)


def hints_of(episode: Episode, count: int, seed: tuple) -> list[str]:
    """At most `count` of the actions that would work now, as many tools among them as can be."""
    rng = random.Random(repr(("hints", seed)))
    by_tool: dict[str, list[Action]] = {}
    for action in within(_PATIENCE, episode.affordances):
        if action.calls:
            by_tool.setdefault(action.calls[0].name, []).append(action)
    tools = rng.sample(sorted(by_tool), min(count, len(by_tool)))
    return [shortened(signature(rng.choice(by_tool[tool])), _HINT) for tool in tools]


def how_to_act(tools: Sequence[Mapping[str, Any]], ending: str) -> str:
    """How actions are written: as calls of these tools or, where there are none, as the environment says."""
    words = parts("act")
    if not tools:
        return fill(words["text"], ending=f" {fill(words['ending_text'], tool=ending)}" if ending else "")
    end = f" {fill(words['ending_tool'], tool=ending)}" if ending else f" {words['ending_turn']}"
    documented = data("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    return fill(words["tools"], tools=documented, ending=end)
