"""The prompt of a policy, and the reading of code blocks in its messages."""

import re
from collections.abc import Mapping
from typing import Any

from cojax.types import Action
from . import skills

_OPENING = """\
You are an assistant who does everyday digital tasks for {first_name} {last_name}, your supervisor. Email: {email}. \
Phone number: {phone_number}. It is {datetime} for both of you.

You act by writing Python. Each of your messages holds exactly one code block:

```python
print(apis.supervisor.show_profile())
```

The block runs in a Python session that stays open, so variables last from one block to the next; you see what it \
prints, or the error. The apps are reached through the object `apis`, as `apis.APP.API(name=value)`, keyword arguments \
only. You are not told the APIs; look them up:

- `apis.api_docs.show_app_descriptions()` lists the apps
- `apis.api_docs.show_api_descriptions(app_name=...)` lists the APIs of one app
- `apis.api_docs.show_api_doc(app_name=..., api_name=...)` tells how an API is called and what it returns

Your supervisor's passwords come from `apis.supervisor.show_account_passwords()`; an app's `login` turns one into an \
access token, which its other APIs take as `access_token`. Lists come in pages: go on until a page is empty. "My", \
"me" and "I" in the task mean your supervisor. Nobody answers questions: decide for yourself, and change nothing that \
the task does not ask for.

When the task is done, call `apis.supervisor.complete_task()`. If the task asks a question, pass the answer alone, a \
number, a name or the like: `apis.supervisor.complete_task(answer=...)`. That call ends your work, and nothing can be \
mended after it.

Task: {query}"""

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
