"""The prompt of a policy, and the reading of code blocks in its messages."""

import time

import pytest

from cojax.types import Action, Call
from environments.appworld import environment as prompt

PLACE = {
    "instruction": "not this",
    "supervisor": {"first_name": "Ada", "last_name": "Byron", "email": "ada@example.com", "phone_number": "5550100"},
    "datetime": "2023-05-18T12:00:00",
}


def test_the_opening_holds_what_the_benchmark_tells_and_the_query_as_it_is():
    told = prompt.write_opening("Pay {first_name} 5 {dollars}.", PLACE)
    assert told.endswith("Task: Pay {first_name} 5 {dollars}.")
    for fact in ("Ada Byron", "ada@example.com", "5550100", "2023-05-18 12:00:00", "apis.api_docs", "complete_task"):
        assert fact in told
    assert "not this" not in told


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Let me look.\n```python\nprint(1)\n```\nThat should do.", "print(1)\n"),
        ("```py\nprint(1)\n```", "print(1)\n"),
        ("```Python \nx = '''\na ``` b\n'''\n```", "x = '''\na ``` b\n'''\n"),
        ("<think>```python\nbad()\n```</think>\n```python\ngood()\n```", "good()\n"),
        ("```python\nfirst()\n```\nthen\n```python\nsecond()\n```", "first()\n"),
        ("```json\n{}\n```\n```python\nprint(1)\n```", "print(1)\n"),
        ("Cut off:\n```python\nprint(1)\nprint(", "print(1)\nprint("),
        ("  ```python\n  print(1)\n  ```", "  print(1)\n"),
    ],
)
def test_the_first_python_block_is_the_code(text, code):
    assert prompt.find_code(Action(text)) == (code, "")


@pytest.mark.parametrize(
    "text", ["", "I am done.", "```\nprint(1)\n```", "```python\n\n```", "```python```", "<think>\n```python\nx\n```"]
)
def test_without_a_block_the_policy_is_told_how_to_write_one(text):
    code, complaint = prompt.find_code(Action(text))
    assert code == ""
    assert "```python" in complaint
    assert "complete_task" in complaint


def test_tool_calls_in_a_text_are_no_code_unless_tools_are_on():
    text = '<tool_call>\n{"name": "spotify.like_song", "arguments": {"title": "a"}}\n</tool_call>'
    action = Action(text, (Call("spotify.like_song", {"title": "a"}),))
    assert prompt.find_code(action)[1] == prompt.NO_CODE_REPLY
    assert "apis.spotify.like_song" in prompt.find_code(action, accepts_calls=True)[0]
    both = Action(f"{text}\n```python\nprint(1)\n```", action.calls)
    assert prompt.find_code(both, accepts_calls=True) == ("print(1)\n", "")


def test_floods_are_read_quickly_and_refused():
    began = time.perf_counter()
    assert prompt.find_code(Action("x" * 10_000_000))[1] == prompt.NO_CODE_REPLY
    assert "at most" in prompt.find_code(Action("```python\n" + "x = 1\n" * 20_000 + "```"))[1]
    assert prompt.find_code(Action("```python\n" * 1_000_000))[0] == ""
    assert time.perf_counter() - began < 2.0


def test_calls_without_text_stand_for_code_and_wrong_ones_are_refused():
    code, complaint = prompt.find_code(Action(calls=(Call("spotify.like_song", {"title": 'It\'s "it"'}),)))
    assert (complaint, "apis.spotify.like_song" in code) == ("", True)
    compile(code, "block", "exec")
    for call in (Call("spotify.like_song", {}), Call("os.system", {}), Call("supervisor.complete_task", {"x": 1})):
        assert prompt.find_code(Action(calls=(call,)))[1].startswith("Execution failed"), call
