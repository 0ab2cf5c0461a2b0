"""Runs inside the benchmark's own virtual environment; skipped where the wheel is not installed."""

import collections
import dataclasses
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

wheel = pytest.importorskip("bfcl_eval", reason="runs where python -m environments.install bfcl put the wheel")

from cojax.environment import Charted, Environment, play  # noqa: E402
from cojax.environment.replay import follow, replay  # noqa: E402
from cojax.explorer.scripted.explorer import ScriptedExplorer  # noqa: E402
from cojax.types import Action, Call, Task, Trajectory, canonical, from_json, normalise, to_json  # noqa: E402
from cojax.validation import Validation  # noqa: E402
from environments.bfcl import inside, official  # noqa: E402
from environments.bfcl.episode import SEPARATOR, split_turns  # noqa: E402

pytestmark = pytest.mark.real
BFCL = inside.make()
# Task id → the benchmark's own id.
NAMES = {
    task.id: entry["id"]
    for category, entries in official.load().entries.items()
    for task, (entry, _) in zip(BFCL.tasks(category, len(entries)), entries, strict=True)
}
END = Action()


def one(*calls: Call) -> Action:
    return Action(calls=calls)


def run(of: Task, *actions: Action) -> Trajectory:
    return play(BFCL, of, follow(actions), max_turns=len(actions))


def official_task(category: str, name: str) -> Task:
    return next(t for t in BFCL.tasks(category, 200) if NAMES[t.id] == name)


@pytest.mark.parametrize("category", official.CATEGORIES)
def test_official_answers_pass_and_stand_in_official_order(category: str) -> None:
    tasks = BFCL.tasks(category, 1000)
    assert len({t.id for t in tasks}) == len(tasks) == 200
    assert [NAMES[t.id] for t in tasks] == [f"multi_turn_{category}_{number}" for number in range(200)]
    failures = [NAMES[t.id] for t in tasks if run(t, *t.solution).reward != 1.0]
    assert failures == []


def test_the_only_calls_that_can_be_left_out_in_base() -> None:
    passed = []
    for t in BFCL.tasks("base", 200):
        for i, action in enumerate(t.solution):
            if action.calls and run(t, *t.solution[:i], *t.solution[i + 1 :]).reward == 1.0:
                passed.append((NAMES[t.id], action.calls[0].name))
    # Its result was shown in the turn before.
    assert passed == [("multi_turn_base_113", "get_watchlist")]


@pytest.mark.parametrize("category", official.CATEGORIES)
def test_verdicts_are_those_of_the_official_checker(category: str) -> None:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    rng = random.Random(category)
    verdicts = collections.Counter()
    entries = {entry["id"]: (entry, answer) for entry, answer in official.load().entries[category]}
    for t in BFCL.tasks(category, 200)[::4]:
        question, answer = entries[NAMES[t.id]]
        turns = [list(calls) for calls in split_turns(t.solution)]
        chosen = rng.choice([calls for calls in turns if calls])
        match rng.randrange(4):
            case 0:
                chosen.pop(rng.randrange(len(chosen)))
            case 1:
                chosen.append(rng.choice(chosen))
            case 2:
                rng.shuffle(chosen)
            case 3:
                chosen.insert(0, Call("no_such_tool", {"a": 1}))
        spoken = [[f"{c.name}({','.join(f'{k}={v!r}' for k, v in c.arguments.items())})" for c in cs] for cs in turns]
        theirs = multi_turn_checker(
            [[[text] for text in texts] for texts in spoken],
            answer["ground_truth"],
            question,
            category,
            f"checked_{category}",
        )
        ours = run(t, *(action for calls in turns for action in ((one(*calls), END) if calls else (END,))))
        verdicts[ours.reward, theirs["valid"]] += 1
    assert set(verdicts) == {(0.0, False), (1.0, True)}


def test_setups_are_plain_json_and_hold_what_starts_them() -> None:
    for t in BFCL.tasks("miss_func", 200) + BFCL.tasks("long_context", 200):
        assert set(t.setup) <= {"classes", "config", "long", "withheld"}
        assert set(t.setup["config"]) <= set(t.setup["classes"])
        again = from_json(Task, json.loads(json.dumps(to_json(t))))
        assert again == t
        assert again.solution == t.solution
    assert run(again, *again.solution).reward == 1.0


def test_long_turns_are_spread_over_the_steps_there_are() -> None:
    lengths = [
        (len(calls), steps)
        for t in BFCL.tasks("long_context", 200)
        for calls, steps in zip(split_turns(t.solution), _steps(t), strict=True)
        if len(calls) > 20
    ]
    assert max(length for length, _ in lengths) == 34
    assert {steps for _, steps in lengths} == {20}


def _steps(t: Task) -> list[int]:
    """Actions with calls in each turn."""
    bounds = [-1, *(i for i, action in enumerate(t.solution) if not action.calls)]
    return [stop - start - 1 for start, stop in itertools.pairwise(bounds)]


def test_splits() -> None:
    base = BFCL.tasks("base", 200)
    dev, held_out = BFCL.tasks("dev", 1000), BFCL.tasks("held_out", 1000)
    assert len(dev) == len(held_out) == 100
    assert {t.id for t in (*dev, *held_out)} == {t.id for t in base}
    assert BFCL.tasks("eval", 7, seed=5) == base[:7]
    assert BFCL.tasks("challenge", 3) == BFCL.tasks("long_context", 3)
    assert inside.make("miss_param", 0.25).tasks("eval", 3) == BFCL.tasks("miss_param", 3)
    assert len(inside.make(dev_fraction=0.25).tasks("dev", 1000)) == 50
    with pytest.raises(ValueError, match="available: base, miss_func"):
        BFCL.tasks("train", 1)
    with pytest.raises(ValueError, match="available: base, miss_func"):
        inside.make("simple")


def test_seed_places_hold_no_question_and_no_answer() -> None:
    places = BFCL.tasks("seed", 1000, seed=1)
    assert len({t.id for t in places}) == len(places) == 198  # two scenarios are there twice
    assert {(t.query, t.solution) for t in places} == {("", ())}
    assert BFCL.tasks("seed", 5, seed=1) == places[:5] != BFCL.tasks("seed", 5, seed=2)
    assert {canonical(t.setup) for t in places} == {canonical(t.setup) for t in BFCL.tasks("base", 200)}


def test_it_is_charted_and_documents_128_tools() -> None:
    assert isinstance(BFCL, Charted)
    named: Environment = BFCL
    tools = {entry["function"]["name"]: entry["function"] for entry in named.tools()}
    assert len(tools) == 128
    assert not [name for name, tool in tools.items() if set(tool) != {"name", "description", "parameters"}]
    assert tools["edit_ticket"]["parameters"]["properties"]["updates"]["type"] == "object"
    assert tools["fund_account"]["parameters"]["properties"]["amount"]["type"] == "number"
    assert not {"dict", "float", "tuple", "any"} & _types(list(tools.values()))
    popularity = BFCL.popularity()
    assert popularity["cat"] == 1.0
    assert popularity["cp"] == 3**-1.3
    assert set(popularity) == set(tools)
    assert len(BFCL.neighbours("cat")) == 17
    assert "cat" not in BFCL.neighbours("cat")


def _types(node: object) -> set[str]:
    if isinstance(node, dict):
        here = {node["type"]} if isinstance(node.get("type"), str) else set()
        return here.union(*(_types(inner) for inner in node.values()))
    return set().union(*map(_types, node)) if isinstance(node, list) else set()


def test_what_an_official_answer_calls_early_is_not_withheld() -> None:
    assert official_task("miss_func", "multi_turn_miss_func_49").setup["withheld"] == {"3": ["wc", "cat"]}
    assert official_task("miss_func", "multi_turn_miss_func_0").setup["withheld"] == {"3": ["sort"]}


def test_synthesized_dialogues_survive_validation() -> None:
    explorer = ScriptedExplorer(ending="", cut=0.5, neighbours=BFCL.neighbours)
    turns = collections.Counter()
    for number, place in enumerate(BFCL.tasks("seed", 8)):
        explored = explorer.explore(BFCL, place, None, (number,))
        for draft in explorer.abstract(explored, BFCL, 2):
            verdict, made = Validation(BFCL)(draft, lambda _: False, explorer)
            assert verdict.status == "accepted", verdict.evidence
            assert made is not None
            assert replay(BFCL, made, made.solution).trajectory.reward == 1.0
            assert run(made, *dataclasses.replace(made).solution[1:]).reward < 1.0
            turns[made.query.count(SEPARATOR) + 1] += 1
    assert sum(turns.values()) == 16
    assert max(turns) >= 2


def test_the_separator_survives_normalisation() -> None:
    assert normalise(SEPARATOR) == "[next turn]"


def test_an_action_without_calls_ends_a_turn() -> None:
    ls, pwd = Call("ls"), Call("pwd")
    assert split_turns((END, one(ls, pwd), one(ls), END, one(pwd))) == [(), (ls, pwd, ls), (pwd,)]


def test_nothing_is_imported_after_it_is_made() -> None:
    code = """
import sys
from cojax.environment import play
from cojax.environment.replay import follow
from environments.bfcl import inside
bfcl = inside.make()
before = set(sys.modules)
for task in (task for category in inside.CATEGORIES for task in bfcl.tasks(category, 200)):
    play(bfcl, task, follow(task.solution), max_turns=len(task.solution))
for place in bfcl.tasks("seed", 40):
    bfcl.start(place).affordances()
sys.exit(f"imported late: {late}" if (late := set(sys.modules) - before) else 0)
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)


def test_making_it_writes_nothing_among_the_packages() -> None:
    root = Path(wheel.__file__).parent.parent
    assert not any((root / name).exists() for name in ("result", "score", ".file_locks"))
