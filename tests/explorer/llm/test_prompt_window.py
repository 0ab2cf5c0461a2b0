"""Prompts of texts that are too long: never more than the window, the newest texts first, and no room is wasted."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger import Ledger
from records import DESK, call

import environments
from cojax.explorer import Exploration
from cojax.explorer.llm.chat_model import Budget, ModelReply
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.explorer.llm.prompting import fit_pairs, fit_texts, shorten
from cojax.types import (
    Action,
    Evaluation,
    ExplorationContext,
    Message,
    Observation,
    Signal,
    Task,
    Trajectory,
    Triplet,
    Turn,
)  # fmt: skip

TEXTS = st.lists(st.integers(0, 3_000).map(lambda length: "x" * length), max_size=12)


@given(TEXTS, st.integers(0, 5_000), st.integers(0, 60))
def test_texts_fit_and_the_newest_are_there(texts: list[str], room: int, each: int) -> None:
    shown = fit_texts(texts, room, each)
    assert len(shown) == len(texts)
    kept = [text for text in shown if text is not None]
    assert sum(len(text) + each for text in kept) <= room
    assert shown == [None] * (len(texts) - len(kept)) + kept
    if sum(len(text) + each for text in texts) <= room:
        assert shown == texts
    # Nothing is wasted: what is cut is cut at one length, and one character more for each would be too much.
    whole = texts[len(texts) - len(kept) :]
    cut = [text for text, was in zip(kept, whole, strict=True) if text != was]
    if cut:
        # The note that it is cut may have a digit less than it could.
        assert max(map(len, cut)) - min(map(len, cut)) <= 3
        assert sum(min(len(was), max(map(len, cut)) + 4) + each for was in whole) > room


def test_short_texts_give_what_they_do_not_need_to_long_ones() -> None:
    shown = fit_texts(["a" * 10, "b" * 5_000, "c" * 20], 1_030)
    assert [len(text or "") for text in shown] == [10, 1_000, 20]
    assert shown[1] == "b" * 973 + "\n[4027 characters left out]"
    assert fit_pairs([("d" * 200, "r" * 200), ("do", "r" * 200)], 300) == [("do", "r" * 200)]


@given(st.text(max_size=300), st.integers(0, 320))
def test_shortened_is_never_longer_than_asked(text: str, limit: int) -> None:
    found = shorten(text, limit)
    assert len(found) <= limit
    assert found == text or len(text) > limit


class Listening:
    """A model that keeps its prompts and answers by a script."""

    name = "listening"

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers, self.prompts = answers, list[Sequence[Message]]()

    def begin(self, evolution: str = "") -> Budget:
        return Budget(10**9, 10**9)

    def reopen(self) -> None: ...

    def figures(self) -> dict[str, Any]:
        return {}

    def count_failure(self, kind: str) -> None: ...

    def reply(self, messages: Sequence[Message], *, place: str, schema: Any = None, **_: Any) -> ModelReply:
        self.prompts.append(messages)
        at = next(name for name in self.answers if name in place)
        answer = self.answers[at]
        return ModelReply(json.dumps(answer) if schema else answer)


def shown(messages: Sequence[Message], skip: str = "") -> int:
    """The characters between marks and of the model's own words; blocks that begin with `skip` do not count."""
    total = 0
    for message in messages:
        blocks = re.findall(r"<data (\w{8})>\n(.*?)\n</data \1>", message.content, re.DOTALL)
        total += len(message.content) if message.role == "assistant" else 0
        total += sum(len(text) for _, text in blocks if not (skip and text.startswith(skip)))
    return total


SIZES = st.integers(0, 4_000)
TURNS = st.lists(st.tuples(SIZES, SIZES, st.booleans()), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(TURNS, st.integers(2_000, 12_000), SIZES, SIZES)
def test_no_prompt_of_reflection_or_abstraction_shows_more_than_the_window(
    turns: list[tuple[int, int, bool]], window: int, query: int, evidence: int
) -> None:
    office = environments.load("desk")
    chat_model = Listening({"reflect": {"summary": "s"}, "abstract": {"drafts": []}})
    explorer = LLMExplorer(chat_model, window=window)
    played = tuple(
        Turn(call("files_read", file="f" * done), Observation((Message("tool", "r" * came),), ok=ok))
        for done, came, ok in turns
    )
    task = Task("desk", "q" * query, DESK)
    known = explorer.reflect(
        Trajectory(task, turns=played, error="e" * evidence), "rare", Signal("rare", "t", "e", "v" * evidence)
    )
    steps = [Triplet(turn.action, turn.observation, place % 2) for place, turn in enumerate(played)]
    list(explorer.abstract(Exploration(task, known, (1,), tuple(steps)), office, 3))
    for messages in chat_model.prompts:
        assert shown(messages) <= window
    newest = max((place for place, turn in enumerate(turns, start=1) if turn[2]), default=0)
    if newest:
        assert f"[{newest}] files_read(" in chat_model.prompts[-1][1].content


class Talkative(Ledger):
    """A ledger that says more than was asked for."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def start(self, task: Task) -> Any:
        episode = super().start(task)
        sizes = iter(self.sizes)

        def step(action: Action) -> Observation:
            return Observation((Message("user", "r" * next(sizes)),))

        episode.step, episode.evaluate = step, lambda: Evaluation(0.0)  # type: ignore[method-assign]
        return episode


@settings(deadline=None, max_examples=40)
@given(st.lists(SIZES, min_size=2, max_size=10), st.integers(1, 2_500), st.integers(2_000, 12_000), SIZES)
def test_no_conversation_shows_more_than_the_window_and_its_newest_exchange(
    sizes: list[int], said: int, window: int, long: int
) -> None:
    chat_model = Listening({"turn": "s" * said})
    explorer = LLMExplorer(chat_model, runs=1, steps=len(sizes), window=window, ending="")
    task = Task("ledger", "q" * long, {"book": {}})
    lines = tuple(f"{n}{'d' * (long // 3)}" for n in range(60))
    context = ExplorationContext(
        task, "rare", summary="s" * long, failure_cause="c" * long, instability_pattern="i" * long,
        focus_patterns=("f" * long,), objectives=("o" * long,), do_not_repeat=lines,
    )  # fmt: skip
    explorer.explore(Talkative(sizes), task, context, (1,))
    assert len(chat_model.prompts) == len(sizes)
    for turn, messages in enumerate(chat_model.prompts):
        newest = said + sizes[turn - 1] if turn else 0
        assert shown(messages) <= window + newest
        assert [message.role for message in messages] == [
            "system",
            "user",
            *["assistant", "user"] * ((len(messages) - 2) // 2),
        ]
        if turn:
            # The newest is in full, and all of it is there where it fits.
            assert "r" * sizes[turn - 1] in messages[-1].content
            assert messages[-1].content.endswith(f"Actions left: {len(sizes) - turn}. Choose the next one.")
        left_out = turn - (len(messages) - 2) // 2
        assert ("this many of your first actions" in messages[1].content) == (left_out > 0)


def test_documentation_takes_nothing_from_a_conversation() -> None:
    office = environments.load("desk")
    documented = sum(len(json.dumps(tool)) for tool in office.tools())
    chat_model = Listening({"turn": {"tool": "notes_add", "arguments": {"note": "n", "text": "t" * 40}}})
    assert documented > 4_000
    task = dataclasses.replace(Task("desk", "q", DESK))
    LLMExplorer(chat_model, runs=1, steps=6, window=4_000).explore(office, task, None, (1,))
    last = chat_model.prompts[-1]
    assert sum(message.role == "assistant" for message in last) == 5
    assert "left out" not in last[1].content


@pytest.mark.parametrize("window", [2_000, 60_000])
def test_a_prompt_names_some_of_many_actions_that_fail_and_all_are_refused(window: int) -> None:
    office = environments.load("desk")
    lines = tuple(f"notes_delete(note=n{n})" for n in range(500))
    focused = ("files_move(file=x, folder=y)", *lines)
    chat_model = Listening({"turn": {"tool": "notes_delete", "arguments": {"note": "n3"}}})
    task = Task("desk", "q", DESK)
    context = ExplorationContext(task, "rare", focus_patterns=("files_move",), do_not_repeat=focused)
    found = LLMExplorer(chat_model, runs=1, steps=2, window=window).explore(office, task, context, (1,))
    opening = chat_model.prompts[0][1].content
    named = re.findall(r"^- (\w+\(.*\))$", opening.partition("Some actions")[0], re.M)
    assert named[:2] == ["files_move(file=x, folder=y)", "notes_delete(note=n499)"]
    assert len(named) <= 20
    if window > 10_000:
        assert "- (and 481 more)" in opening
    assert "n3)" not in named
    # It is refused all the same.
    assert "refused: it keeps choosing an action to avoid: notes_delete(note=n3)" in found.failures[0]
