"""Whatever is said to the desk, it answers; what it offers, works."""

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

import environments
from cojax.types import Action, Call, canonical
from environments.desk.office import FINISH, TOOLS, WORDS

DESK = environments.load("desk")
TASKS = DESK.tasks("dev", 20)

words = st.sampled_from(sorted(word for words in WORDS.values() for word in words))
numbers = st.integers() | st.floats(allow_nan=True, allow_infinity=True)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text() | words | st.just("x" * 1_000_000),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=8,
)
names = st.sampled_from([*TOOLS, FINISH]) | st.text()
keys = st.sampled_from(["file", "folder", "text", "note", "person", "event", "day", "address", "name", "answer"])
arguments = st.dictionaries(keys | st.text() | st.integers(), words | anything, max_size=3) | anything
calls = st.builds(Call, names | anything, arguments)
actions = st.builds(Action, st.text(), st.lists(calls, max_size=3).map(tuple), st.text())


@given(st.sampled_from(TASKS), st.lists(actions, max_size=4))
@settings(max_examples=120, deadline=None)
def test_any_action_is_answered_and_an_invalid_one_changes_nothing(task, said):
    episode = DESK.start(task)
    episode.reset()
    for action in said:
        before = canonical(episode.state())
        observation = episode.step(action)
        assert 1 <= len(observation.messages) <= max(1, len(action.calls))
        assert all(message.role == "tool" and len(message.content) <= 220 for message in observation.messages)
        assert observation.ok != observation.messages[-1].content.startswith("error: ")
        if len(observation.messages) == 1 and not observation.ok:
            assert canonical(episode.state()) == before
        assert observation.done == episode.state()["finished"]
    assert episode.evaluate().reward in (0.0, 1.0)
    assert json.loads(canonical(episode.state())) == episode.state()


def test_deep_nesting_is_only_a_wrong_argument():
    nested = "report"
    for _ in range(100_000):
        nested = [nested]
    episode = DESK.start(TASKS[0])
    assert episode.step(Action(calls=(Call("files_read", {"file": nested}),))).text == "error: expects file"
    while isinstance(nested, list):  # taken apart by hand: the interpreter would recurse
        nested = nested.pop()


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_every_affordance_works_and_they_are_bounded(seed):
    rng = random.Random(seed)
    task = rng.choice(TASKS)
    history = []
    for _ in range(rng.randint(0, 12)):
        options = after(task, history).affordances()
        history.append(rng.choice([action for action in options if action.calls[0].name != FINISH]))
    episode = after(task, history)
    offered = episode.affordances()
    assert offered == after(task, history).affordances()
    assert 50 < len(offered) <= 300
    assert len({canonical([action.calls[0].name, action.calls[0].arguments]) for action in offered}) == len(offered)
    seen = set()
    replay = DESK.start(task)
    for action in history:
        seen.add(replay.step(action).text)
    for action in offered:
        call = action.calls[0]
        for parameter, value in call.arguments.items():
            if parameter == "answer" or (parameter == "address" and call.name != "contacts_add"):
                assert value in seen
        assert after(task, history).step(action).ok


def test_a_crowded_office_offers_no_more():
    rng, task, history = random.Random(0), TASKS[0], []
    crowded = DESK.start(task)
    for _ in range(60):
        history.append(rng.choice([action for action in crowded.affordances() if adds(action)]))
        crowded.step(history[-1])
    offered = crowded.affordances()
    assert len(offered) == 300
    assert offered[-1] == Action(calls=(Call(FINISH),))
    assert all(after(task, history).step(action).ok for action in offered)


def adds(action):
    return action.calls[0].name in ("notes_add", "folders_create", "contacts_add", "calendar_add", "contacts_find")


def after(task, history):
    episode = DESK.start(task)
    for action in history:
        episode.step(action)
    return episode
