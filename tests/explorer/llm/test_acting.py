"""Which actions count as the same where one of them must not be repeated."""

import pytest

from cojax.explorer.llm import explorer as acting


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("move(file=report, folder=taxes)", "move(folder=taxes, file=report)"),
        ("add(note=todo, text=two  words)", " add(note=todo,\n text=two words)"),
        ("apis.phone.show(page-index=1, q=a.b)", "apis.phone.show(q=a.b, page-index=1)"),
        ("print(1)\nprint(2)", "print(1) print(2)"),
        ("finish()", "finish()"),
    ],
)
def test_the_same_action(one: str, other: str) -> None:
    assert acting._make_action_key(one) == acting._make_action_key(other)


@pytest.mark.parametrize(
    ("failed", "corrected"),
    [
        ("read(path=Report.TXT)", "read(path=report.txt)"),
        ("read(path=\uff52eport)", "read(path=report)"),
        ("f(1, 2)", "f(2, 1)"),
        ("f(1, b=2)", "f(b=2, 1)"),
        ("send(to=1, 000)", "send(to=1,000)"),
        ("f(a == 1, b == 2)", "f(b == 2, a == 1)"),
        # Of code that goes on after the call.
        ("x = f(b=1, a=2); g(c=3)", "x = f(a=2); g(c=3, b=1)"),
        ("f(b=1, a=2); g(c=3)", "f(a=2); g(c=3, b=1)"),
        ("f(a=1)", "g(a=1)"),
    ],
)
def test_a_corrected_action_is_another(failed: str, corrected: str) -> None:
    assert acting._make_action_key(failed) != acting._make_action_key(corrected)
