"""The grown desk: generated suites, their tasks and language; and that without suites the desk is the one it was."""

import collections
import itertools
import random

import pytest
from desk_queries import read

import environments
from cojax import registry
from cojax.environment import play
from cojax.types import Action, Call, Task, Triplet, Turn, content_hash, normalise
from environments.desk import Desk, generator, growth
from environments.desk.skills import find_suite

GROWN = environments.load("desk", suites=6)
SUITES = growth.make_suites(6, 5, 0)
SPLITS = ("seed", "dev", "eval", "challenge")
SKILLS = [(suite, skill) for suite in SUITES[:2] for skill in suite.skills]


@pytest.fixture(scope="module")
def tasks():
    # Those of the last split are long, and take long to draw.
    return {split: GROWN.tasks(split, count) for split, count in zip(SPLITS, (80, 80, 80, 20), strict=True)}


def played(task, actions, world=GROWN):
    remaining = iter(actions)
    return play(world, task, lambda *_: Turn(next(remaining)), max_turns=len(actions))


def test_suites_are_as_rich_as_promised_and_the_same_every_time():
    tools = [entry["function"]["name"] for entry in GROWN.tools()]
    assert (len(tools), len(set(tools)), sum(len(suite.skills) for suite in SUITES)) == (316, 316, 386)
    assert content_hash([suite.skills[0].wording for suite in SUITES]) == "e0f836648699b534"
    others = growth.make_suites(6, 5, 1)
    assert not set(SUITES[0].tools) & set(others[0].tools)
    needed = {template.tool_name for suite in SUITES for skill in suite.skills for branch in skill.branches
              for template in branch}  # fmt: skip
    # Two distractors for each of thirty applications, and every other tool is needed by a skill.
    assert len(set(tools) - needed) == 60
    assert collections.Counter(len(tool.slots) for suite in SUITES for tool in suite.tools.values()).keys() == {1, 2, 3}


def test_a_record_has_values_of_its_own_and_no_two_kinds_share_a_word():
    suite = SUITES[0]
    office = suite.new_office(random.Random(3))
    assert {shelf: len(records) for shelf, records in office.items()} == dict.fromkeys(suite.shelves, 3)
    names = [name for records in office.values() for name in records]
    assert len(names) == len(set(names)) == 15


@pytest.mark.parametrize(("suite", "skill"), SKILLS, ids=lambda value: getattr(value, "wording", ""))
def test_each_skill_is_solvable_and_a_bungled_demonstration_fails(suite, skill):
    rng = random.Random(skill.wording)
    branches = collections.Counter()
    for _ in range(12):
        setup = suite.new_office(rng)
        plan = generator._draw_plan([skill], setup, rng, suite)
        if not plan:
            continue
        calls = generator.solve(plan, setup, suite)
        query = skill.word_query(plan[0][1])
        task = Task("desk", query, setup, tuple(Action(calls=(call,)) for call in calls))
        assert played(task, task.solution).reward == 1.0
        assert read(query, suite) == plan
        bungled = generator.play_demonstration(task, plan, (1.0, 1.0), rng, suite)
        assert played(task, bungled).reward == 0.0, (query, bungled)
        branches[calls[-2].name] += 1
    assert len(branches) == len(skill.branches)
    assert sum(branches.values()) >= 9


def test_tasks_have_at_most_six_actions_and_are_worded_by_their_own_calls(tasks):
    for split, some in tasks.items():
        assert max(len(task.solution) for task in some) == 7  # finish is the seventh
        for task in some:
            trajectory = played(task, task.solution)
            assert trajectory.reward == 1.0
            # Of a condition that holds, the call does not show the value that was asked about.
            if "otherwise" not in task.query:
                steps = [Triplet(turn.action, turn.observation, 0) for turn in trajectory.turns]
                assert GROWN.phrase(steps) == task.query, split
    for one, other in itertools.combinations(tasks, 2):
        assert not {normalise(t.query) for t in tasks[one]} & {normalise(t.query) for t in tasks[other]}


def test_an_episode_offers_its_suite_alone_and_every_affordance_works(tasks):
    for task in tasks["seed"][:4]:
        suite = find_suite(task.setup, SUITES)
        episode = GROWN.start(task)
        assert [entry["function"]["name"] for entry in episode.tools()] == [*suite.tools, "finish"]
        offered = episode.affordances()
        assert 100 < len(offered) <= 300
        for action in offered[:: len(offered) // 20]:
            assert GROWN.start(task).step(action).ok, action
        foreign = next(name for other in SUITES if other is not suite for name in other.tools)
        assert episode.step(Action(calls=(Call(foreign, {"record": "report"}),))).text == "error: no such tool"


def test_popularity_is_by_suite_and_neighbours_are_of_the_application():
    popularity = GROWN.popularity()
    assert len(popularity) == 316
    assert sum(value == 1.0 for value in popularity.values()) == 6
    assert min(popularity, key=popularity.__getitem__) == "finish"
    tool = next(iter(SUITES[2].tools))
    assert {name.split("_")[0] for name in GROWN.neighbours(tool)} == {tool.split("_")[0]}


def test_every_word_is_in_the_lexicon(tasks):
    values, texts = GROWN.lexicon()
    known = {word.strip(",:") for text in (*values, *texts) for word in text.split()}
    for task in itertools.chain.from_iterable(tasks.values()):
        assert {word.strip(",") for word in task.query.split()} <= known


def test_without_suites_it_is_the_desk_of_the_demo():
    today = environments.load("desk", suites=0)
    assert content_hash([task.id for task in today.tasks("eval", 300)]) == "41f91e8586cd31a2"
    demonstrations = [
        [action.calls[0].name for action in actions] for _, actions in today.demonstrations(50, 21, (0.1, 0.85))
    ]
    assert content_hash(demonstrations) == "4dc246ecc9708ef7"


def test_a_steep_demonstrator_makes_its_mistakes_in_the_least_popular_skills_alone():
    right: dict[bool, list[bool]] = {True: [], False: []}
    suites = growth.make_suites(2, 5, 0)
    splits = generator.grow_splits(1, 0.0, 0.0)
    for task, actions in Desk(suites, splits, 8.0).demonstrations(400, 1, (0.0, 1.0)):
        ((skill, _),) = read(task.query, suite := find_suite(task.setup, suites))
        place = suite.skills.index(skill) / (len(suite.skills) - 1)
        right[place > 0.5].append(actions == task.solution)
    # The integral of x ** 8 over each half, divided by its length: .0004 and .222.
    assert sum(right[False]) >= len(right[False]) - 2
    assert sum(right[True]) / len(right[True]) == pytest.approx(0.78, abs=0.08)


def test_an_isolated_grown_desk_has_the_same_tasks_and_demonstrations():
    world = environments.load("desk", suites=2, applications=3, steep=3.0, isolated=True)
    same = environments.load("desk", suites=2, applications=3, steep=3.0)
    assert world.tasks("dev", 20) == same.tasks("dev", 20)
    assert list(world.demonstrations(20, 1, (0.1, 0.85))) == list(same.demonstrations(20, 1, (0.1, 0.85)))
    assert played(world.tasks("dev", 1)[0], world.tasks("dev", 1)[0].solution, world).reward == 1.0


@pytest.mark.parametrize(("name", "value"), [("suites", 41), ("applications", 6), ("longest", 0), ("more", 1.5)])
def test_settings_of_which_no_desk_can_be_made(name, value):
    with pytest.raises(ValueError, match=rf"environment\.{name} is {value}; expected "):
        environments.load("desk", **{name: value})
    assert registry.settings(environments.maker("desk"))[name].default is not registry.REQUIRED


def test_a_setting_that_only_a_grown_desk_reads_is_refused_on_the_other():
    with pytest.raises(ValueError, match=r"environment\.more is 0\.8, but only a grown desk reads it; set environment"):
        environments.load("desk", more=0.8)
    assert environments.load("desk", more=0.45, isolated=False).name == "desk"
