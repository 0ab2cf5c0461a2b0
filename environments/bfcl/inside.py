"""The BFCL environment, which runs in a worker in the wheel's own virtual environment: tasks, scenarios, dialogues."""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Call, Task, Triplet, normalise
from . import calls, official, tools
from .episode import SEPARATOR, BFCLEpisode
from .official import CATEGORIES, Official

NAME = "bfcl"
SPLITS = (*CATEGORIES, "eval", "dev", "held_out", "seed", "challenge")

# The r-th tool in the documentation of its class has the weight r ** -POPULARITY_EXPONENT for an unguided explorer.
POPULARITY_EXPONENT = 1.3
# Never change this: it decides which tasks are for development and which are held out.
_SPLIT_SEED = 20_260_323
# The most actions of a turn in a reference solution; the calls of a longer turn are spread evenly over them.
_MAX_TURN_ACTIONS = 20


def make(category: str = "base", dev_fraction: float = 0.5) -> "Bfcl":
    """The environment. The split `eval` holds `category`; `dev` is the share `dev_fraction` of base.

    It reads everything from disk now. Raises ValueError for an unknown category or a fraction outside [0, 1].
    """
    if category not in CATEGORIES:
        raise ValueError(f"category {category!r} not found; available: {', '.join(CATEGORIES)}")
    if not 0.0 <= dev_fraction <= 1.0:
        raise ValueError(f"dev_fraction is {dev_fraction}; expected a number in [0, 1]")
    return Bfcl(official.load(), category, dev_fraction)


class Bfcl:
    """The environment: official tasks, scenarios for synthesis, dialogues, and the wording of calls."""

    name = NAME

    def __init__(self, benchmark: Official, category: str, dev_fraction: float):
        self._benchmark = benchmark
        self._classes = {
            doc["function"]["name"]: class_name for class_name, docs in benchmark.documentation.items() for doc in docs
        }
        self._parameters = {tool: benchmark.parameters(class_name, tool) for tool, class_name in self._classes.items()}
        tasks_by_category = {
            category_name: tuple(self._make_task(*entry, is_long=category_name == "long_context") for entry in entries)
            for category_name, entries in benchmark.entries.items()
        }
        base_tasks = list(tasks_by_category["base"])
        random.Random(_SPLIT_SEED).shuffle(base_tasks)
        dev_count = round(dev_fraction * len(base_tasks))
        self._splits = {
            **tasks_by_category,
            "eval": tasks_by_category[category],
            "dev": tuple(base_tasks[:dev_count]),
            "held_out": tuple(base_tasks[dev_count:]),
            "challenge": tasks_by_category["long_context"],
        }
        bare_tasks = (dataclasses.replace(task, query="", solution=()) for task in tasks_by_category["base"])
        self._scenarios = tuple({task.id: task for task in bare_tasks}.values())

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(tool_doc for tool_docs in self._benchmark.documentation.values() for tool_doc in tool_docs)

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """The first `count` tasks of a split, or all if it has fewer; `seed` orders only the split `seed`.

        That split holds the scenarios of base, without question or answer. Raises ValueError for an unknown split.
        """
        if split == "seed":
            scenario_tasks = list(self._scenarios)
            random.Random(repr(("places", seed))).shuffle(scenario_tasks)
            return tuple(scenario_tasks[:count])
        if split not in self._splits:
            raise ValueError(f"split {split!r} not found; available: {', '.join(SPLITS)}")
        return self._splits[split][:count]

    def start(self, task: Task) -> BFCLEpisode:
        return BFCLEpisode(self._benchmark, self._classes, task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        turns = tools.phrase(steps)
        return None if turns is None else SEPARATOR.join(turns)

    def popularity(self) -> Mapping[str, float]:
        """Tool → rank ** -POPULARITY_EXPONENT, by its rank in the documentation of its class."""
        return {
            tool_doc["function"]["name"]: rank**-POPULARITY_EXPONENT
            for tool_docs in self._benchmark.documentation.values()
            for rank, tool_doc in enumerate(tool_docs, start=1)
        }

    def neighbours(self, tool: str) -> tuple[str, ...]:
        """The other tools of the same class. Raises KeyError for an unknown tool."""
        own_class = self._classes[tool]
        return tuple(other for other, class_name in self._classes.items() if class_name == own_class and other != tool)

    def _make_task(self, entry: Mapping[str, Any], answer: Mapping[str, Any], is_long: bool) -> Task:
        """The task of an official entry. The user's text is "" in a turn that announces functions."""
        classes, calls_of_turns = entry["involved_classes"], answer["ground_truth"]
        config = {name: class_state for name, class_state in entry["initial_config"].items() if name in classes}
        setup: dict[str, Any] = {"classes": list(classes), "config": config, "long": is_long}
        if withheld_by_turn := _withheld_functions(entry.get("missed_function", {}), calls_of_turns):
            setup["withheld"] = withheld_by_turn
        user_turns = [_join_user_texts(messages) for messages in entry["question"]]
        if any(normalise(SEPARATOR) in normalise(user_turn) for user_turn in user_turns):
            raise ValueError(f"{entry['id']} says {normalise(SEPARATOR)!r}, which stands between turns; choose another")
        solution = tuple(action for call_texts in calls_of_turns for action in self._make_turn_actions(call_texts))
        return Task(NAME, SEPARATOR.join(user_turns), setup, solution)

    def _make_turn_actions(self, call_texts: Sequence[str]) -> list[Action]:
        """Lists a turn's actions: one call each, or several if there are too many calls; last the end of the turn."""
        turn_calls = [self._parse_call(call_text) for call_text in call_texts]
        step_count = min(len(turn_calls), _MAX_TURN_ACTIONS)
        bounds = [round(step * len(turn_calls) / step_count) for step in range(step_count + 1)] if step_count else []
        chunks = [turn_calls[first:stop] for first, stop in itertools.pairwise(bounds)]
        return [*(Action(calls=tuple(chunk)) for chunk in chunks), Action()]

    def _parse_call(self, call_text: str) -> Call:
        tool_name, args, kwargs = calls.parse_call(call_text)
        return Call(tool_name, {**dict(zip(self._parameters[tool_name], args, strict=False)), **kwargs})


def _withheld_functions(by_turn: Mapping[str, Sequence[str]], answers: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Turn → the functions announced in it, without those that the official answer calls earlier.

    Officially, those are undocumented but can be called. To withhold them would make the task unsolvable.
    """
    withheld_by_turn = {}
    for turn_key, announced_tools in by_turn.items():
        early_tools = {calls.parse_call(call_text)[0] for answer in answers[: int(turn_key)] for call_text in answer}
        if remaining_tools := [tool for tool in announced_tools if tool not in early_tools]:
            withheld_by_turn[turn_key] = remaining_tools
    return withheld_by_turn


def _join_user_texts(messages: Sequence[Mapping[str, str]]) -> str:
    """The user's text of a turn. Raises ValueError for a message of another role, which the protocol does not allow."""
    if any(message["role"] != "user" for message in messages):
        raise ValueError(f"a turn holds roles {[message['role'] for message in messages]}; expected the user alone")
    return "\n".join(message["content"] for message in messages)
