"""The prompt of a policy, prompt.txt, and the reading of code blocks in its messages."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.types import Action
from . import skills

_OPENING = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").removesuffix("\n")
MISSING = (
    "There is no code block in your message, so nothing was run. Write one, and in it the next step:\n"
    "```python\n# your code\n```\n"
    "If the task is done, call apis.supervisor.complete_task() in it."
)
OVER = "The task was completed; nothing was run."

_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
# The most characters of code in one block.
_LONGEST = 50_000
# The most characters of a message that are searched for code.
_SEARCHED = 200_000


def opening(query: str, place: Mapping[str, Any]) -> str:
    """The message that opens an episode; `place` holds the supervisor and the date and time."""
    return _OPENING.format(**place["supervisor"], datetime=place["datetime"].replace("T", " "), query=query)


def code_of(action: Action, tools: bool = False) -> tuple[str, str]:
    """(code, "") of the first ```python block outside of thoughts, cut off or not; else ("", the error message).

    An action without text stands for what its calls do; see skills.py. So does, with `tools`, one without a block.
    """
    text = action.text[-_SEARCHED:].rpartition("</think>")[2].partition("<think>")[0]
    block = _BLOCK.search(text)
    if block is None and action.calls and (tools or not action.text):
        try:
            return skills.code(action.calls), ""
        except ValueError as error:
            return "", f"Execution failed: {error}"
    if block is None or not block[1].strip():
        return "", MISSING
    if len(block[1]) > _LONGEST:
        return "", f"The code block has {len(block[1]):,} characters; at most {_LONGEST:,} are run. Write less at once."
    return block[1], ""
