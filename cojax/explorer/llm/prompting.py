"""Reads the prompts from the files in prompts/, fills their slots, and fits texts into a window of characters.

The prompts' version is a hash of all files. If texts are too long, the oldest are left out. Reflection, which only
fills and reads such a prompt, is here too: the prompt about one trajectory, and the context made from the reply.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from cojax.types import ExplorationContext, Message, Signal, Trajectory, content_hash, signature

_PROMPT_FOLDER = Path(__file__).parent / "prompts"
_HEADING_PATTERN = re.compile(r"^# (\w+)\n", re.MULTILINE)
_SLOT_PATTERN = re.compile(r"{{(\w+)}}")
# Texts are not shortened below this many characters: the oldest are left out instead.
_MIN_LENGTH = 120


@functools.cache
def hash_prompts() -> str:
    """8 hex digits of the SHA-256 of all prompts, by name."""
    digest = hashlib.sha256()
    for prompt_path in sorted(_PROMPT_FOLDER.glob("*.md")):
        digest.update(prompt_path.name.encode() + b"\0" + prompt_path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


@functools.cache
def sections(prompt_name: str) -> dict[str, str]:
    """The sections of a prompt file, by their headings: lines `# heading`."""
    _, *fragments = _HEADING_PATTERN.split((_PROMPT_FOLDER / f"{prompt_name}.md").read_text())
    return {heading: text.strip() for heading, text in zip(fragments[::2], fragments[1::2], strict=True)}


def fill(text: str, **values: str) -> str:
    """The text with values for its slots `{{name}}`; slots within values stay. Raises KeyError for a missing value."""
    return _SLOT_PATTERN.sub(lambda slot: values[slot[1]], text)


def prompt(prompt_name: str, **values: str) -> tuple[Message, Message]:
    """The system and the user message of a prompt file, filled."""
    texts = sections(prompt_name)
    return tuple(Message(role, fill(texts[role], **values)) for role in ("system", "user"))  # type: ignore[return-value]


def data(text: str) -> str:
    """Untrusted text between marks. The text cannot contain these marks, because they contain the text's hash."""
    mark = content_hash(text)[:8]
    return f"<data {mark}>\n{text}\n</data {mark}>"


def list_lines(lines: tuple[str, ...] | list[str]) -> str:
    """The lines as a list; "- (nothing)" if there are none."""
    return "\n".join(f"- {line}" for line in lines) or "- (nothing)"


def fit_texts(texts: Sequence[str], room: int, extra_each: int = 0) -> list[str | None]:
    """The texts, oldest first, shortened to at most `room` characters in total; a text that is left out is None.

    Every text shown costs `extra_each` more characters. All are cut at the same length, the longest that fits, so that
    long texts get the room that short ones do not need. If that length is too small, the oldest texts are left out.
    """
    fitting_count = _count_fitting([len(text) for text in texts], room, extra_each, _MIN_LENGTH)
    newest_texts = texts[len(texts) - fitting_count :]
    longest = _find_cut_length([len(text) for text in newest_texts], room - fitting_count * extra_each)
    return [*[None] * (len(texts) - fitting_count), *(shorten(text, longest) for text in newest_texts)]


def fit_pairs(pairs: Sequence[tuple[str, str]], room: int, extra_each: int = 0) -> list[tuple[str, str]]:
    """The newest pairs that fit into `room` characters, shortened as in `fit_texts`; each costs `extra_each` more."""
    min_lengths = [min(len(first), _MIN_LENGTH) + min(len(second), _MIN_LENGTH) for first, second in pairs]
    fitting_count = _count_fitting(min_lengths, room, extra_each, 2 * _MIN_LENGTH)
    newest_pairs = pairs[len(pairs) - fitting_count :]
    longest = _find_cut_length([len(text) for pair in newest_pairs for text in pair], room - fitting_count * extra_each)
    return [(shorten(first, longest), shorten(second, longest)) for first, second in newest_pairs]


def _count_fitting(lengths: Sequence[int], max_characters: int, extra_length: int, min_length: int) -> int:
    """The number of last texts that fit if each takes `extra_length` plus at most `min_length` of its characters."""
    fitting_count = 0
    for length in reversed(lengths):
        max_characters -= extra_length + min(length, min_length)
        if max_characters < 0:
            break
        fitting_count += 1
    return fitting_count


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of the text; if it is cut, the end says how many characters are left out."""
    if len(text) <= limit:
        return text
    cut_note = f"\n[{len(text)} characters left out]"  # the longest that the note can be
    length = limit - len(cut_note)
    return f"{text[:length]}\n[{len(text) - length} characters left out]" if length > 0 else text[: max(0, limit)]


def _find_cut_length(lengths: Sequence[int], max_characters: int) -> int:
    """The greatest length at which texts can be cut so that all of them fit."""
    for shorter_count, length in enumerate(sorted(lengths)):
        share_length = max_characters // (len(lengths) - shorter_count)
        if length > share_length:
            return max(0, share_length)
        max_characters -= length
    return max(lengths, default=0)


# The most characters of a line that is taken from a reflection, and the most lines of one of its lists.
_MAX_LINE_LENGTH, _MAX_LIST_LINES = 600, 8
# Characters that the headings of an action and its result take, and the note that says how many are left out.
_HEADING_LENGTH, _NOTE_LENGTH = 48, 60


# Its schema is sent to the model: the class's name and docstring are part of every request's journal key.
class Reflection(BaseModel):
    """What a model says of a trajectory."""

    summary: str
    failure_cause: str = ""
    instability_pattern: str = ""
    focus_patterns: list[str] = []
    objectives: list[str] = []
    do_not_repeat: list[str] = []


def reflection_prompt(trajectory: Trajectory, reason: str, signal: Signal | None, window: int) -> Sequence[Message]:
    """The messages that ask for a `Reflection`; at most `window` characters of them are untrusted.

    `reason` says in our own words why the trajectory was chosen; the signal adds what was measured.
    """
    phrases, sixth = sections("reflect"), window // 6
    evidence = shorten(signal.evidence, sixth) if signal else ""
    checks_text = "; ".join(f"{check.name}: {'passed' if check.passed else 'failed'}" for check in trajectory.checks)
    verdict = f"{trajectory.outcome}, reward {trajectory.reward:.2f} {trajectory.error}".rstrip()
    verdict = shorten(f"{verdict}\n{checks_text}".strip(), sixth)
    query = shorten(trajectory.task.query, sixth)
    return prompt(
        "reflect",
        data_rule=sections("data")["rule"],
        reason=reason,
        evidence=f"\n{fill(phrases['evidence'], evidence=data(evidence))}\n" if evidence else "",
        task=data(query),
        verdict=data(verdict),
        record=data(_write_record(trajectory, window - len(evidence) - len(verdict) - len(query))),
    )


def add_reflection(context: ExplorationContext, reflection: Reflection) -> ExplorationContext:
    """The context with the model's reflection. An empty list or instability pattern does not replace the context's own.

    `do_not_repeat` is extended, never replaced.
    """
    return dataclasses.replace(
        context,
        summary=_join_lines(reflection.summary),
        failure_cause=_join_lines(reflection.failure_cause),
        instability_pattern=_join_lines(reflection.instability_pattern) or context.instability_pattern,
        focus_patterns=_list_distinct_lines(reflection.focus_patterns) or context.focus_patterns,
        objectives=_list_distinct_lines(reflection.objectives) or context.objectives,
        do_not_repeat=tuple(dict.fromkeys((*context.do_not_repeat, *_list_distinct_lines(reflection.do_not_repeat)))),
    )


def _write_record(trajectory: Trajectory, max_characters: int) -> str:
    """Actions and results in at most `max_characters` characters; only the newest ones if that is too little."""
    turns = [(signature(turn.action) or "(nothing)", turn.observation.text) for turn in trajectory.turns]
    fitted_turns = fit_pairs(turns, max_characters - _NOTE_LENGTH, _HEADING_LENGTH)
    omitted_count = len(turns) - len(fitted_turns)
    blocks = [f"[the first {omitted_count} actions are left out]"] if omitted_count else []
    for turn_index, (action_text, result_text) in enumerate(fitted_turns, start=omitted_count):
        status = "worked" if trajectory.turns[turn_index].observation.ok else "failed"
        blocks.append(f"Action {turn_index + 1}: {action_text}\nResult ({status}): {result_text}")
    return "\n\n".join(blocks)


def _join_lines(text: str) -> str:
    return shorten(" ".join(text.split()), _MAX_LINE_LENGTH)


def _list_distinct_lines(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for text in texts[:_MAX_LIST_LINES] if (line := _join_lines(text))))
