"""Scripts for the chat server: a model that does its work in every stage, unless a test replaces a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chat_server import Answer, ChatServer, Script, asked, says

# Stage → how its prompt begins.
STAGES = {
    "reflect": "You review how an agent",
    "explore": "You explore a software environment",
    "abstract": "You turn a record of actions",
    "solve": "You carry out a user's request",
    "judge": "You check a practice task",
}

Move = tuple[str, Mapping[str, Any]]
TOUR: Sequence[Move] = (
    ("files_move", {"file": "report", "folder": "taxes"}),
    ("files_read", {"file": "budget"}),
    ("notes_add", {"note": "todo", "text": "amber"}),
    ("contacts_find", {"person": "ana"}),
    ("mail_send", {"address": "box11", "text": "plum"}),
    ("calendar_move", {"event": "lunch", "day": "monday"}),
    ("notes_delete", {"note": "memo"}),
    ("files_copy", {"file": "budget", "folder": "taxes"}),
)
REFLECTION = {
    "summary": "it moved a file",
    "failure_cause": "it stopped too early",
    "focus_patterns": ["files_move"],
    "objectives": ["move another file"],
    "do_not_repeat": ["files_delete(file=report)"],
}
MAIL = {
    "description": "look up an address, then mail",
    "query": "mail plum to ana",
    "steps": [4, 5],
    "criterion": "ana has a mail",
}
TWO = {"description": "two things", "query": "move report to taxes, then add note todo saying amber", "steps": [1, 3],
       "criterion": "both done"}  # fmt: skip
# What a good solver does with each query.
SOLUTIONS: Mapping[str, Sequence[Move]] = {
    MAIL["query"]: (*TOUR[3:5], ("finish", {})),
    TWO["query"]: (TOUR[0], TOUR[2], ("finish", {})),
}


def stage(body: dict[str, Any]) -> str:
    return next(name for name, words in STAGES.items() if asked(body).startswith(words))


def turn(body: dict[str, Any]) -> int:
    """How many actions the model has taken in this conversation."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def move(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"thought": "next", "tool": tool, "arguments": arguments}


def model(
    drafts: Sequence[Any] = (MAIL, TWO),
    tour: Sequence[Move] = TOUR,
    solutions: Mapping[str, Sequence[Move]] = SOLUTIONS,
    **instead: Callable[[dict[str, Any], int], Answer | None],
) -> Script:
    """The model; `instead` replaces its reply at a stage, where the function does not return None."""

    def script(body: dict[str, Any], server: ChatServer) -> Answer:
        at = stage(body)
        if at in instead and (answer := instead[at](body, turn(body))) is not None:
            return answer
        match at:
            case "reflect":
                return says(REFLECTION)
            case "explore":
                return says(move(*tour[min(turn(body), len(tour) - 1)]))
            case "abstract":
                return says({"drafts": list(drafts)})
            case "judge":
                return says({"consistent": True, "safe": True, "reason": "fine"})
        request = re.search(r"<data \w+>\n(.*?)\n</data", body["messages"][1]["content"], re.DOTALL)
        assert request
        steps = solutions.get(request[1], [("finish", {})])
        return says(move(*steps[min(turn(body), len(steps) - 1)]))

    return script


def told(body: dict[str, Any]) -> str:
    return json.dumps(body["messages"], ensure_ascii=False)


def many(count: int) -> list[dict[str, Any]]:
    """Different drafts over one run of the tour."""
    pairs = [(a, b) for a in (1, 3, 6, 7, 8) for b in (3, 6, 7, 8) if a < b]
    words = {
        1: "move report to taxes", 3: "add note todo saying amber", 6: "postpone lunch to monday",
        7: "delete note memo", 8: "copy budget to taxes",
    }  # fmt: skip
    return [{"query": f"{words[a]}, then {words[b]}", "steps": [a, b]} for a, b in pairs][:count]


def read_move(line: str) -> Move:
    """The call in a line `tool(name=value, …)` of a prompt; values are text."""
    tool, _, inside = line.removesuffix(")").partition("(")
    return tool, dict(part.split("=", 1) for part in inside.split(", ") if part)


# A tool's name in words, as `in_words` has it → the name.
_NAMES: dict[str, str] = {}


def in_words(line: str) -> str:
    """What a line `tool(name=value, …)` asks for, without a call in it."""
    tool, arguments = read_move(line)
    name = re.sub(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])", " ", tool)
    _NAMES[name] = tool
    return f"{name} with {', '.join(f'{name} {value}' for name, value in arguments.items())}"


def of_words(words: str) -> Move:
    """The call that `in_words` put in words; values are text."""
    name, _, inside = words.partition(" with ")
    return _NAMES[name], dict(part.split(" ", 1) for part in inside.split(", ") if part)


def wanderer(drafts: int = 6, later: bool = False) -> Script:
    """A model for any office: takes actions shown to work, drafts pairs of them, and solves its own queries.

    With `later`, the second action of a pair is a request of its own.
    """

    def explore(body: dict[str, Any], at: int) -> Answer:
        lines = re.findall(r"^- (\w+\([^\n]*\))$", body["messages"][1]["content"].partition("Some actions")[2], re.M)
        choices = [read_move(line) for line in lines if not line.startswith("finish")]
        return says(move(*choices[(body["seed"] + at) % len(choices)]))

    def abstract(body: dict[str, Any], at: int) -> Answer:
        found = []
        for run in re.findall(r"Run \d+:\n<data \w+>\n(.*?)\n</data", body["messages"][1]["content"], re.DOTALL):
            steps = re.findall(r"^\[(\d+)\] (\w+\([^\n]*\))$", run, re.M)
            for (one, first), (two, second) in zip(steps[::2], steps[1::2], strict=False):
                words = [in_words(first), in_words(second)]
                apart = {"query": words[0], "steps": [int(one)], "later": [{"query": words[1], "steps": [int(two)]}]}
                found.append(apart if later else {"query": " then ".join(words), "steps": [int(one), int(two)]})
        return says({"drafts": found[:drafts]})

    def solve(body: dict[str, Any], at: int) -> Answer:
        asked_for = [
            re.search(r"<data \w+>\n(.*?)\n</data", message["content"], re.DOTALL)
            for message in body["messages"]
            if message["role"] == "user"
        ]
        first = asked_for[0]
        assert first
        steps = first[1].split(" then ")
        if at >= len(steps) or " with " not in steps[at]:
            return says(move("finish", {}))
        return says(move(*of_words(steps[at])))

    return model(explore=explore, abstract=abstract, solve=solve)
