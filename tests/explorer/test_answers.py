"""Answers in code: worked out from calls, shown by a step before, or refused; and code that would break its reader."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojax.explorer.answers import unfounded
from cojax.types import Action, Call, Message, Observation, Triplet

END = "apis.supervisor.complete_task"
ASK = "r = apis.spotify.show_songs()\nprint(r)"


def session(*blocks: tuple[str, str], fenced: bool = True) -> list[str]:
    """What speaks against code blocks with what each showed; the last one ended the episode."""
    steps = [
        Triplet(
            Action(f"I do it.\n```python\n{code}\n```" if fenced else code),
            Observation((Message("user", shown),), done=place == len(blocks)),
            0,
        )
        for place, (code, shown) in enumerate(blocks, start=1)
    ]
    return unfounded(steps, "supervisor.complete_task", "answer")


def after(last: str) -> list[str]:
    """What speaks against a last block, after one that showed Bob, 7 and a few more."""
    return session((ASK, '[{"artist": "Bob", "plays": 7, "share": 0.5}, {"artist": "Eve Adams"}]'), (last, ""))


WRITTEN = [
    f"{END}(answer='Ann')",
    f"x = 'Ann'\n{END}(answer=x)",
    f"x = y = 'Ann'\n{END}(answer=y)",
    f"x: str = 'Ann'\n{END}(answer=x)",
    f"(x, z) = ('Ann', 1)\n{END}(answer=x)",
    f"name = 'n'\n{END}(answer=f'An{{name}}')",
    f"{END}(answer='An' + 'n')",
    f"x = 'An'\nx += 'n'\n{END}(answer=x)",
    f"{END}(answer=''.join(['A', 'nn']))",
    f"{END}(answer=['Bob', 'Ann'])",
    f"{END}(answer={{'name': 'Ann'}})",
    f"d = {{'name': 'Ann'}}\n{END}(answer=d['name'])",
    f"{END}(**{{'answer': 'Ann'}})",
    f"k = dict(answer='Ann')\n{END}(**k)",
    f"k = {{}}\nk['answer'] = 'Ann'\n{END}(**k)",
    f"{END}(**{{'ans' + 'wer': 'Ann'}})",
    f"{END}('Ann')",
    f"f = {END}\nf(answer='Ann')",
    "s = apis.supervisor\ns.complete_task(answer='Ann')",
    "getattr(apis.supervisor, 'complete_task')(answer='Ann')",
    "apis['supervisor']['complete_task'](answer='Ann')",
    f"def done(a):\n    {END}(answer=a)\ndone('Ann')",
    f"def name():\n    return 'Ann'\n{END}(answer=name())",
    f"(lambda a: {END}(answer=a))('Ann')",
    f"{END}(answer='Ann' if True else r)",
    f"r2 = r\nif True:\n    r2 = 'Ann'\n{END}(answer=r2)",
    f"r = 'Ann'\n{END}(answer=r)",
    f"if r:\n    {END}(answer='Ann')",
    f"if r:\n    x = 'Ann'\n{END}(answer=x)",
    f"for _ in range(1):\n    x = 'Ann'\n{END}(answer=x)",
    f"try:\n    x = 'Ann'\nexcept Exception:\n    x = r\n{END}(answer=x)",
    f"{END}(answer='nnA'[::-1])",
    f"{END}(answer=str('Ann').strip())",
    f"{END}(answer=chr(65) + 'nn')",
    f"{END}(answer='%s' % 'Ann')",
    f"{END}(answer='{{}}'.format('Ann'))",
    f"{END}(answer=f'{{7:>9}}')",
    f"{END}(answer=42)",
    f"{END}(answer=40 + 2)",
    f"{END}(answer=-7.5)",
    f"n = 0\nfor _ in range(7):\n    n += 1\n{END}(answer=n)",
    f"{END}(answer=len([1, 2, 3, 4, 5, 6, 7]))",
    f"import random\n{END}(answer=random.choice(['Bob']))",
    f"exec(\"r = 'Ann'\")\n{END}(answer=r)",
    f"import functools\nfunctools.partial({END}, answer='Ann')()",
    f"list(map({END}, ['Ann']))",
    f"{END}(answer='Ann');print('Ann')",
    f"print(apis.x.y())\nprint('Ann')\n{END}(answer='Ann')",
    f"{END}(answer='')",
    f"{END}(answer=r and 'Ann')",
    f"{END}(answer=None or 'Ann')",
    "def o():\n    x = r\n    def i():\n        nonlocal x\n        x = 'Ann'\n    i()\n    return x\n"
    f"{END}(answer=o())",
    f"def f():\n    global r\n    r = 'Ann'\nf()\n{END}(answer=r)",
    f"def f(x):\n    x = apis.a.b()\na = 'Ann'\nf(a)\n{END}(answer=a)",
    f"def f(x, n):\n    if n == 0:\n        {END}(answer=x)\n    f('Ann', n - 1)\nf(r, 9)",
    f"class A:\n    name = 'Ann'\n{END}(answer=A.name)",
    f"match 1:\n    case 1:\n        x = 'Ann'\n{END}(answer=x)",
    f"import base64\n{END}(answer=base64.b64decode('QW5u').decode())",
    f"def g():\n    yield 'Ann'\n{END}(answer=next(g()))",
    f"d = {{}}\nd.update(answer='Ann')\n{END}(**d)",
    f"{END}.__call__(answer='Ann')",
    f"{END}(answer=len(r))\n{END}(answer='Ann')",
]


@pytest.mark.parametrize("last", WRITTEN)
def test_an_answer_that_was_merely_written_down_is_refused(last: str) -> None:
    assert after(last)


@pytest.mark.parametrize("said", ["print('Ann')", "x = 'Ann'\nprint(x)", "print(apis.a.b())\nprint('Ann')", "'Ann'"])
def test_what_code_says_of_itself_shows_nothing(said: str) -> None:
    assert session((said, "Ann"), (f"{END}(answer='Ann')", ""))


FOUNDED = [
    f"{END}()",
    f"{END}(answer=None)",
    f"{END}(status='fail')",
    f"{END}(answer='Bob')",
    f"x = 'Bob'\n{END}(answer=x)",
    f"{END}(answer='Eve' + ' Adams')",
    f"{END}(answer=f'Eve {{\"Adams\"}}')",
    f"{END}(answer=7)",
    f"{END}(answer=0.5)",
    f"{END}(answer=['Bob', 'Eve Adams'])",
    f"{END}(answer=r[0]['artist'])",
    f"{END}(answer=len(r))",
    f"{END}(answer=apis.spotify.show_songs()[0]['title'])",
    f"{END}(answer=f'{{len(r)}} songs')",
    f"{END}(**{{'answer': r[0]}})",
    f"total = 0\nfor s in r:\n    total += s['plays']\n{END}(answer=total)",
    f"n = 0\nfor s in r:\n    if s['plays'] > 3:\n        n += 1\n{END}(answer=n)",
    f"best = None\nfor s in r:\n    if best is None or s['plays'] > best['plays']:\n        best = s\n"
    f"{END}(answer=best['artist'])",
    f"found = []\npage = 0\nwhile True:\n    got = apis.spotify.library(page_index=page)\n    if not got:\n"
    f"        break\n    found.extend(got)\n    page += 1\n{END}(answer=len(found))",
    f"found = []\nfor page in range(10):\n    found += apis.spotify.library(page_index=page)\n"
    f"{END}(answer=', '.join(sorted({{s['title'] for s in found}})))",
    f"{END}(answer='yes' if any(s['plays'] > 3 for s in r) else 'no')",
    f"a = 'no'\nif r[0]['plays'] > 3:\n    a = 'yes'\n{END}(answer=a)",
    f"def pages(api, **given):\n    out = []\n    for i in range(5):\n        out += api(page_index=i, **given)\n"
    f"    return out\n{END}(answer=len(pages(apis.spotify.library, access_token='t')))",
    f"def is_liked(s):\n    for one in apis.spotify.liked():\n        if one == s:\n            return 'yes'\n"
    f"    return 'no'\n{END}(answer=is_liked(r[0]))",
    f"counts = {{}}\nfor s in r:\n    counts[s['artist']] = counts.get(s['artist'], 0) + 1\n"
    f"{END}(answer=max(counts, key=counts.get))",
    f"from collections import Counter\nc = Counter(s['artist'] for s in r)\n{END}(answer=c.most_common(1)[0][0])",
    f"try:\n    x = apis.spotify.library()\nexcept Exception as e:\n    x = []\n{END}(answer=len(x))",
    f"with open('f') as f:\n    pass\n{END}(answer=round(sum(s['plays'] for s in r) / len(r), 2))",
    f"import datetime\nd = datetime.datetime.fromisoformat(r[0]['day'])\n{END}(answer=d.strftime('%A'))",
    f"done = {END}\ndone(answer=str(r[0]['plays']))",
    f"if r:\n    {END}(answer=r[0]['artist'])\nelse:\n    {END}()",
    f"(first, *others) = r\n{END}(answer=len(others))",
    f"if (top := max(r, key=lambda s: s['plays'])):\n    {END}(answer=top['artist'])",
    f"def walk(n):\n    return [] if not n else [n] + walk(n['child'])\n{END}(answer=len(walk(r[0])))",
    f"def collect(out):\n    for s in apis.a.b():\n        out.append(s)\nx = []\ncollect(x)\n{END}(answer=len(x))",
    f"page = 0\nsongs = []\ndone = False\nwhile not done:\n    got = apis.a.b(page_index=page)\n    songs += got\n"
    f"    page += 1\n    done = len(got) == 0\n{END}(answer=', '.join(s['t'] for s in songs))",
    "from collections import defaultdict\nd = defaultdict(int)\nfor s in r:\n    d[s['a']] += 1\n"
    f"{END}(answer=sorted(d.items(), key=lambda t: -t[1])[0][0])",
    f"{END}(answer=f'{{sum(s[1] for s in r):.2f}}')",
    f"x = None\nif x is None:\n    x = apis.a.b()\n{END}(answer=x)",
]


@pytest.mark.parametrize("last", FOUNDED)
def test_an_answer_that_was_worked_out_or_shown_stands(last: str) -> None:
    assert after(last) == []


def test_names_last_from_block_to_block_and_a_later_block_may_show_them() -> None:
    first = ("songs = apis.spotify.show_songs()", "")
    assert session(first, ("print(songs[0]['title'])", "Blue"), (f"{END}(answer='Blue')", "")) == []
    assert session(first, ("songs[0]['title']", "Blue"), (f"{END}(answer='Blue')", "")) == []
    assert session(first, ("songs = 'Blue'", ""), (f"{END}(answer=songs)", "")) == ["no step shows the answer 'Blue'"]
    # It is shown before it is given, not by what gives it.
    assert session(first, (f"print(songs)\n{END}(answer='Blue')", "Blue"))


def test_calls_may_show_what_code_answers() -> None:
    looked = Triplet(Action(calls=(Call("songs", {}),)), Observation((Message("tool", "Blue"),)), 0)
    told = Triplet(Action(f"```python\n{END}(answer='Blue')\n```"), Observation(done=True), 0)
    assert unfounded([looked, told], "supervisor.complete_task", "answer") == []


def test_what_cannot_be_seen_is_refused() -> None:
    two = "```python\nx = 'Bob'\n```\nand then\n```python\nx = apis.a.b()\n```"
    steps = [(two, ""), (f"```python\n{END}(answer=x)\n```", "")]
    assert "several blocks" in session(*steps, fenced=False)[0]
    assert session(steps[0], (f"```python\n{END}()\n```", ""), fenced=False) == []
    thought = f"<think>\n```python\n{END}(answer='Ann')\n```\n</think>\n```python\n{END}()\n```"
    assert session((thought, ""), fenced=False) == []
    assert session(("print('hello')", "")) == ["where its code ends the episode cannot be seen"]
    assert "cannot be read: SyntaxError" in session(("x = = 1", ""))[0]


@pytest.mark.parametrize("text", ["done 42", "set rent 700", "x = 'Ann", "", "\ud800", "answer = 7"])
def test_text_that_is_no_code_is_left_alone(text: str) -> None:
    assert unfounded([Triplet(Action(text), Observation(done=True), 0)], "", None) == []


def test_where_no_ending_is_known_any_call_with_an_answer_gives_one() -> None:
    step = Triplet(Action("x = 'Ann'\nenv.submit(answer=x)"), Observation(done=True), 0)
    assert unfounded([step], "", None) == ["no step shows the answer 'Ann'"]


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
    "x = 2 ** 10 ** 10", "{**{}, **{1: 2}, 'a': 3}[{}]", "[][0]", "(1).x", "None()", "''['a']", "[1][1.5]", "{}[[]]",
    "global x\nx = 1", "nonlocal x", "return 5", "yield 5", "await r", "async def f():\n    await r\nf()", "*a, b = r",
    "def f(a, /, b=1, *c, d, e=2, **g):\n    return a\nf(1, 2, 3, d=4, z=5)\nf()\nf(*r, **r)", "print(*r, sep='')",
    "x = y = z = []\nx.append(x)\nx[0] = x", "0x" + "f" * 5_000 + "\nprint(0x" + "f" * 5_000 + ")",
]  # fmt: skip


@pytest.mark.parametrize("code", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_code_neither_crashes_nor_hangs_the_reader(code: str) -> None:
    began = time.process_time()
    assert isinstance(session((code, "x")), list)
    assert isinstance(after(f"{code}\n{END}(answer='Ann')"), list)
    assert after(f"{code}\n{END}(answer='Ann')")
    assert time.process_time() - began < 6


@given(st.text(max_size=60))
def test_any_text_can_be_read(text: str) -> None:
    assert isinstance(session((text, "x")), list)
    assert isinstance(session((text, "x"), fenced=False), list)
