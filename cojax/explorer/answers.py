"""Answers that code gives: worked out from what calls brought back, or shown by a step before, or neither.

A replay compares an answer with itself, so that one which was merely written down would always be right. What code
rests on is found by going through it with values that are known, worked out, or neither (abstract interpretation); no
code is run, and code that is too large or too deep to be followed is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from cojax.explorer.flow import Flow, Unclear
from cojax.explorer.values import Answer
from cojax.types import Triplet

# Characters of one action that are read, and of an answer.
_LONGEST, _LONGEST_ANSWER = 100_000, 4_000
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
# An answer in text that is no Python.
_WRITTEN = re.compile(r"""\banswer\s*=\s*(?:["']([^"'\n]*)["']|(-?\d[\w.]*))\s*[,)]""")


def unshown(answer: str, steps: Sequence[Triplet], written: Sequence[str] = ()) -> list[str]:
    """What speaks against an answer that was written down: nothing where one of these steps shows it.

    `written` holds for each step what its own code printed of itself, which shows nothing.
    """
    refused = [f"no step shows the answer {answer[:100]!r}"]
    if not answer.strip() or len(answer) > _LONGEST_ANSWER:
        return refused
    whole = re.compile(rf"(?<!\w){re.escape(answer.strip())}(?!\w)")
    own = written or [""] * len(steps)
    told = (step.observation.text for step, said in zip(steps, own, strict=True) if not whole.search(said))
    return [] if any(whole.search(text) for text in told) else refused


def unfounded(steps: Sequence[Triplet], ending: str, parameter: str | None) -> list[str]:
    """What speaks against the answers that the text of these steps gives, in the order they were taken in.

    `ending` is the tool that ends an episode, whose last part (after its dots) code calls, "" for any call with an
    argument `answer`; `parameter` is its argument that carries the answer, None where it takes none.
    """
    flow = Flow(ending.rpartition(".")[2], parameter or ("" if ending else "answer"))
    against: list[str] = []
    said: list[str] = []
    several = False
    for place, step in enumerate(steps):
        said.append("")
        if not step.action.text.strip():
            continue
        blocks, code = _blocks(step.action.text)
        tree = _parsed(blocks[0])
        if isinstance(tree, str):
            # What stands in no fence need not be Python.
            against += [f"its code cannot be read: {tree}"] if code else _literal(step, steps[:place], said[:place])
            continue
        try:
            answers, printed, shows = flow.through(tree)
        except (Unclear, RecursionError) as reason:
            against.append(f"its code cannot be followed: {str(reason)[:100] or 'it is too deep'}")
            break
        # A block that asks nothing shows only what it says itself.
        said[-1] = "\n".join(printed) if shows or not code else step.observation.text
        if step.observation.done and ending and code and not flow.ended:
            against.append("where its code ends the episode cannot be seen")
        several = several or len(blocks) > 1
        if answers and several:
            against.append("an action holds several blocks of code: which of them its answer rests on cannot be seen")
        for answer in answers:
            against += _against(answer, steps[:place], said[:place])
    return list(dict.fromkeys(against))[:5]


def _against(answer: Answer, steps: Sequence[Triplet], said: Sequence[str]) -> Iterator[str]:
    for leaf in answer.leaves:
        if leaf.worked:
            continue
        if not leaf.known:
            yield f"the answer {answer.source[:100]!r} rests on nothing that a call brought back"
        elif leaf.value is not None:
            try:
                text = str(leaf.value)
            except ValueError:  # a number of too many digits
                text = ""
            yield from unshown(text, steps, said)


def _literal(step: Triplet, steps: Sequence[Triplet], said: Sequence[str]) -> Iterator[str]:
    for match in _WRITTEN.finditer(step.action.text[:_LONGEST]):
        yield from unshown(match[1] or match[2] or "", steps, said)


def _blocks(text: str) -> tuple[list[str], bool]:
    """The fenced blocks of code outside of thoughts, and true; else the text as it stands, and false."""
    spoken = text.rpartition("</think>")[2].partition("<think>")[0]
    blocks = _BLOCK.findall(spoken)
    return (blocks, True) if blocks else ([spoken], False)


def _parsed(code: str) -> ast.Module | str:
    """The code's tree, or why there is none."""
    if len(code) > _LONGEST:
        return f"it has {len(code):,} characters"
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"[:100]
