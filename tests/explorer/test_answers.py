"""Written answers: shown by an earlier step, or refused; and code that tries to break its reader."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojax.explorer.answers import find_answer_objections
from cojax.types import Action, Call, Message, Observation, Triplet

END = "apis.supervisor.complete_task"
ASK = "r = apis.spotify.show_songs()\nprint(r)"


def session(*blocks: tuple[str, str], fenced: bool = True) -> list[str]:
    """The objections to code blocks, each with its output; the last one ended the episode."""
    steps = [
        Triplet(
            Action(f"I do it.\n```python\n{code}\n```" if fenced else code),
            Observation((Message("user", shown),), done=place == len(blocks)),
            0,
        )
        for place, (code, shown) in enumerate(blocks, start=1)
    ]
    return find_answer_objections(steps, "supervisor.complete_task", "answer")


def after(last: str) -> list[str]:
    """The objections to a last block, after one that showed Bob, 7 and a few more values."""
    return session(
        (ASK, '[{"artist": "Bob", "plays": 7, "share": 0.5, "sum": 1,234}, {"artist": "Eves Adams", "new": false}]'),
        (last, ""),
    )


WRITTEN = [
    f"{END}(answer='Ann')",
    f"x = 'Ann'\n{END}(answer=x)",
    f"x = y = 'Ann'\n{END}(answer=y)",
    f"x: str = 'Ann'\n{END}(answer=x)",
    f"name = 'n'\n{END}(answer=f'An{{name}}')",
    f"{END}(answer='An' + 'n')",
    f"{END}(answer=['Bob', 'Ann'])",
    f"{END}(answer=['Ann', r[0]['artist']])",
    f"{END}(answer={{'name': 'Ann'}})",
    f"{END}(answer={{'first': ('Bob', ['Ann'])}})",
    f"{END}(**{{'answer': 'Ann'}})",
    f"{END}('Ann')",
    f"f = {END}\nf(answer='Ann')",
    "s = apis.supervisor\ns.complete_task('Ann')",
    "getattr(apis.supervisor, 'complete_task')(answer='Ann')",
    f"{END}(answer='Ann');print('Ann')",
    f"r = 'Ann'\n{END}(answer=r)",
    f"{END}(answer='')",
    f"{END}(answer=' ')",
    f"{END}(answer=42)",
    f"{END}(answer=40 + 2)",
    f"{END}(answer=-7)",
    f"{END}(answer=int('42'))",
    f"{END}(answer=str(42))",
    f"{END}(answer=float('0.25'))",
    f"{END}(answer=5)",  # of 0.5
    f"{END}(answer='Eve')",  # of Eves
    f"{END}(answer=True)",
    f"{END}(answer='x' * 0 + 'Bob')\n{END}(answer='Ann')",
]


@pytest.mark.parametrize("last", WRITTEN)
def test_a_written_answer_that_no_step_shows_is_refused(last: str) -> None:
    (against,) = after(last)
    assert against.startswith("no step shows the answer '")


SHOWN = [
    f"{END}()",
    f"{END}(answer=None)",
    f"{END}(answer=[])",
    f"{END}(status='fail')",
    f"{END}(answer='Bob')",
    f"x = 'Bob'\n{END}(answer=x)",
    f"{END}(answer='Eves' + ' Adams')",
    f"{END}(answer=f'Eves {{\"Adams\"}}')",
    f"{END}(answer=7)",
    f"{END}(answer=int('7'))",
    f"{END}(answer='7.0')",
    f"{END}(answer=f'{{7:>9}}')",
    f"{END}(answer=.50)",
    f"{END}(answer=1234)",
    f"{END}(answer='1,234.0')",
    f"{END}(answer=234)",  # 1,234 may be two numbers
    f"{END}(answer=['Bob', 'Eves Adams'])",
    f"{END}(answer=False)",
    f"{END}(answer='False')",
]
WORKED_OUT = [
    f"def count(s):\n    global n\n    n += 1\nn = 0\nfor s in r:\n    count(s)\n{END}(answer=n)",
    f"{END}(answer=r[0]['artist'])",
    f"{END}(answer=len(r))",
    f"{END}(answer=apis.spotify.show_songs()[0]['title'])",
    f"{END}(answer=f'{{len(r)}} songs')",
    f"{END}(answer='%d songs' % len(r))",
    f"{END}(**{{'answer': r[0]}})",
    f"total = 0\nfor s in r:\n    total += s['plays']\n{END}(answer=total)",
    f"n = 0\nfor s in r:\n    if s['plays'] > 3:\n        n += 1\n{END}(answer=n)",
    f"n = 0\nfor s in r:\n    n = n + 1\n{END}(answer=n)",
    f"n = 0\ndef count(s):\n    global n\n    n += 1\nfor s in r:\n    count(s)\n{END}(answer=n)",
    f"best = None\nfor s in r:\n    if best is None or s['plays'] > best['plays']:\n        best = s\n"
    f"{END}(answer=best['artist'])",
    f"best = r[0]['artist']\nif not best:\n    best = 'nobody'\n{END}(answer=best)",
    f"try:\n    x = apis.a.b()\nexcept Exception:\n    x = 'nothing'\n{END}(answer=x)",
    f"found = []\nfor api in [apis.spotify, apis.venmo]:\n    found += api.library()\n{END}(answer=len(found))",
    f"d = {{'plays': 0}}\nfor s in r:\n    d['plays'] += s['plays']\n{END}(answer=d)",
    f"{END}(answer='yes' if any(s['plays'] > 3 for s in r) else 'no')",
    f"def most(songs, by):\n    return max(songs, key=by)['artist']\n{END}(answer=most(r, lambda s: s['plays']))",
    f"def walk(n):\n    return [] if not n else [n] + walk(n['child'])\n{END}(answer=len(walk(r[0])))",
    f"def done(answer):\n    {END}(answer=answer)\ndone(r[0]['artist'])",
    f"import datetime\nd = datetime.datetime.fromisoformat(r[0]['day'])\n{END}(answer=d.strftime('%A'))",
    f"int = round\n{END}(answer=int(9.4))",
    f"(first, *others) = r\n{END}(answer=len(others))",
    f"found = False\nfor s in r:\n    if s['plays'] > 3:\n        found = True\n{END}(answer=found)",
    f"told = 'no'\nif r[0]['plays'] > 3:\n    told = 'yes'\n{END}(answer=told)",
    f"if r:\n    {END}(answer='yes')\nelse:\n    {END}(answer='no')",
    # Hidden from this rule: for the attempts to find.
    f"{END}(answer='nnA'[::-1])",
    f"if r:\n    x = 'Ann'\n{END}(answer=x)",
    f"(x, z) = ('Ann', 1)\n{END}(answer=x)",
    f"x = 'An'\nx += 'n'\n{END}(answer=x)",
    f"{END}(answer='%s' % 'Ann')",
    f"{END}(*['Ann'])",
    f"def done():\n    x = 'Ann'\n    {END}(answer=x)\ndone()",
    f"import functools\nfunctools.partial({END}, answer='Ann')()",
]  # fmt: skip


@pytest.mark.parametrize("last", SHOWN + WORKED_OUT)
def test_an_answer_that_was_shown_or_worked_out_stands(last: str) -> None:
    assert after(last) == []


OWN = [
    "print('Ann')", "x = 'Ann'\nprint(x)", "print(apis.a.b())\nprint('Ann')", "'Ann'", "print('It is Ann.')",
    "print('An' + 'n')", "f'{apis.a.b()} Ann'", "print(f\"{'An'}{'n'}\")", "print(x := 'Ann')",
]  # fmt: skip


@pytest.mark.parametrize("said", OWN)
def test_what_code_spells_itself_its_observation_does_not_show(said: str) -> None:
    refused = ["no step shows the answer 'Ann'"]
    assert session((said, "It is Ann."), (f"{END}(answer='Ann')", "")) == refused
    # So too where the reply gives the answer after the last step.
    step = Triplet(Action(f"```python\n{said}\n```"), Observation((Message("user", "It is Ann."),)), 0)
    assert find_answer_objections([step], "supervisor.complete_task", "answer", "Ann") == refused
    looked = Triplet(Action("```python\nprint(apis.a.b())\n```"), step.observation, 0)
    assert find_answer_objections([step, looked], "supervisor.complete_task", "answer", "Ann") == []


def test_a_name_set_before_spells_what_a_later_block_prints() -> None:
    assert session(("x = '42'", ""), ("print(x)", "42"), (f"{END}(answer=42)", "")) == ["no step shows the answer '42'"]
    assert session(("x = apis.a.b()", ""), ("print(x)", "42"), (f"{END}(answer=42)", "")) == []


def test_names_last_from_block_to_block_and_a_later_block_may_show_them() -> None:
    first = ("songs = apis.spotify.show_songs()", "")
    assert session(first, ("print(songs[0]['title'])", "Blue"), (f"{END}(answer='Blue')", "")) == []
    assert session(first, ("songs[0]['title']", "Blue"), (f"{END}(answer='Blue')", "")) == []
    assert session(first, ("song = 'Blue'", ""), (f"{END}(answer=song)", "")) == ["no step shows the answer 'Blue'"]
    # It is shown before it is given, not by what gives it.
    assert session(first, (f"print(songs)\n{END}(answer='Blue')", "Blue"))


def test_calls_may_show_what_code_answers_and_answer_what_code_showed() -> None:
    looked = Triplet(Action(calls=(Call("songs", {}),)), Observation((Message("tool", "Blue"),)), 0)
    told = Triplet(Action(f"```python\n{END}(answer='Blue')\n```"), Observation(done=True), 0)
    assert find_answer_objections([looked, told], "supervisor.complete_task", "answer") == []
    printed = Triplet(Action("```python\nprint('Blue')\n```"), looked.observation, 0)
    ended = Triplet(Action(calls=(Call("finish", {"answer": ["Blue", None]}),)), Observation(done=True), 0)
    assert find_answer_objections([looked, ended], "finish", "answer") == []
    assert find_answer_objections([printed, ended], "finish", "answer") == ["no step shows the answer 'Blue'"]


def test_only_the_last_step_and_the_ending_by_its_name_give_answers() -> None:
    ask = ("apis.forum.post(answer='Ann')", "")
    assert session(ask, (f"{END}(answer=7)", "")) == ["no step shows the answer '7'"]
    assert session((f"{END}('Ann')", ""), ("print(1)", "1")) == ["no step shows the answer 'Ann'"]


def test_thoughts_are_no_code_and_code_can_be_read() -> None:
    thought = f"<think>\n```python\n{END}(answer='Ann')\n```\n</think>\n```python\n{END}()\n```"
    assert session((thought, ""), fenced=False) == []
    assert session(("x = = 1", ""))[0].startswith("its code cannot be read: invalid syntax")
    assert session(("x = '" + "y" * 20_000 + "'", ""))[0].startswith("its code cannot be read: it has 20,007 char")
    assert session(("-" * 15_000 + "1", "")) == ["its code or its answer is nested too deeply to read"]


@pytest.mark.parametrize("text", ["done 42", "set rent 700", "x = 'Ann", "", "\ud800", "answer = 7"])
def test_text_that_is_no_code_is_left_alone(text: str) -> None:
    assert find_answer_objections([Triplet(Action(text), Observation(done=True), 0)], "", None) == []


def test_where_no_ending_is_known_any_call_with_an_answer_gives_one() -> None:
    step = Triplet(Action("x = 'Ann'\nenv.submit(answer=x)"), Observation(done=True), 0)
    assert find_answer_objections([step], "", None) == ["no step shows the answer 'Ann'"]
    assert find_answer_objections([step], "env.submit", None) == []


HOSTILE = [
    "-" * 40_000 + "1", "a" + ".b" * 20_000, "1" + "+1" * 20_000, "(" * 40_000, "lambda:" * 7_000 + "1",
    "1 if x else " * 4_000 + "1", "a=" * 20_000 + "1", "f" + "()" * 20_000, "[" * 190 + "]" * 190, "0x" + "f" * 40_000,
    "1" * 40_000, "if x:\n pass\n" + "elif x:\n pass\n" * 3_000, "x\0y", "'\ud800'", "x" * 200_000,
    "\n".join(" " * n + "for i in r:" for n in range(60)) + "\n" + " " * 60 + "x = 1",
    "x = ['a']\n" + "x = x + x\n" * 2_000, "x = ['a']\n" + "x = [x, x]\n" * 2_000, "x = 'a'\n" + "x = x + x\n" * 2_000,
    "x = 'a'\n" + "x = f'{x}{x}'\n" * 2_000, "x = 9\n" + "x = x + x\n" * 5_000,
    "x = {'a': 1}\n" + "x = {1: x, 2: x}\n" * 2_000,
    "def f(n):\n    return f(n) + f(n)\nx = f(1)", "def f(*a):\n    return f(*a, *a)\nx = f('a')",
    "f = lambda g: g(g)\nf(f)", "x = 'ab'\n" + "print(x * 10 ** 9)\n" * 100, "f'{1:1000000000}'",
    "x = ' '.join(['a'] * 10 ** 9)",
    "\n".join(f"if r:\n    v{n} = {n}" for n in range(3_000)), "x = 'a' * 10 ** 12", "x = [0] * 10 ** 12",
    "x = 'y'\n" + "print(x, x, x)\n" * 5_000, "del x", "class A:\n    x = apis.a()",
    "match r:\n    case [a, *b]:\n        pass",
    "x = '%999999999d' % 1", "x = '%*d' % (10 ** 9, 1)", "x = '%(a)99s' * 2 % {'a': 1}",
    "a = f'{1:99}' + 'b'\n" + "print(a + f'{1:90}', a)\n" * 500,
    "\n".join(f"a{n} = '%s{n}' % 'y'" for n in range(1_000)),
    "x = 'y' * 9\n" + "y = f'{x:99}' + '%(a)99s' % {'a': 1}\n" * 300, "f(" * 79 + "1" + ")" * 79,
    "g(" + "x()" + "+1" * 900 + ")\n", "\n".join("g(x()" + "+1" * 300 + ")" for _ in range(30)),
    "f((" * 38 + "x" + "+1))" * 38,  "x = ()\n" + "x = (x, x)\n" * 1_500, "x = r\n" + "x = [x, x]\n" * 1_500,
    "x = 2 ** 10 ** 10", "{**{}, **{1: 2}, 'a': 3}[{}]", "[][0]", "(1).x", "None()", "''['a']", "[1][1.5]", "{}[[]]",
    f"y = {10**400} + 0.5\nprint({10**400} + 0.5, float({10**400}), int(None), -True)",
    "global x\nx = 1", "nonlocal x", "return 5", "yield 5", "await r", "async def f():\n    await r\nf()", "*a, b = r",
    "def f(a, /, b=1, *c, d, e=2, **g):\n    return a\nf(1, 2, 3, d=4, z=5)\nf()\nf(*r, **r)", "print(*r, sep='')",
    "x = y = z = []\nx.append(x)\nx[0] = x", "0x" + "f" * 5_000 + "\nprint(0x" + "f" * 5_000 + ")",
]  # fmt: skip


@pytest.mark.parametrize("code", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_code_neither_crashes_nor_hangs_the_reader(code: str) -> None:
    began = time.process_time()
    assert after(f"{code}\n{END}(answer='Ann')")
    between = time.process_time()
    assert isinstance(session((code, "x"), (f"{code}\n{END}(answer=x)", "")), list)
    assert max(between - began, time.process_time() - between) < 1


def test_an_answer_without_bounds_is_refused_at_once() -> None:
    began = time.process_time()
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for answer in (deep, "x" * 1_000_000, list(range(100_000))):
        end = Triplet(Action(calls=(Call("finish", {"answer": answer}),)), Observation(done=True), 0)
        assert find_answer_objections([end], "finish", "answer")
    many = Triplet(Action(calls=(Call("finish", {"answer": ["7"] * 101}),)), Observation(done=True), 0)
    seen = Triplet(Action(calls=(Call("look", {}),)), Observation((Message("tool", "7"),)), 0)
    assert find_answer_objections([seen, many], "finish", "answer") == ["its answer holds more than 100 values"]
    assert time.process_time() - began < 1


@given(st.text(max_size=60))
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(session((text, "x")), list)
    assert isinstance(session((text, "x"), fenced=False), list)


def test_of_several_blocks_the_first_one_is_run_and_the_others_are_talk() -> None:
    two = f"```python\nprint(apis.a.b())\n```\nThen I shall say:\n```python\nprint('Blue')\n{END}(answer='guess')\n```"
    steps = [
        Triplet(Action(two), Observation((Message("user", "Blue"),)), 0),
        Triplet(Action(f"```python\n{END}(answer='Blue')\n```"), Observation(done=True), 0),
    ]
    assert find_answer_objections(steps, "supervisor.complete_task", "answer") == []


def test_what_code_counts_or_asks_with_does_not_void_what_it_shows() -> None:
    counts = "n = 0\nfor page in range(20):\n    n += len(apis.a.b(page_index=page, page_limit=20))\nprint(n)"
    assert session((counts, "20"), (f"{END}(answer=20)", "")) == []
    assert session(("print(apis.a.b(song_id=42))", "song 42"), (f"{END}(answer=42)", "")) == []
