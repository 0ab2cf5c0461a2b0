"""An environment of a few functions: episodes, verdicts, splits, and worlds that misbehave."""

from __future__ import annotations

import copy
import itertools
from typing import Literal

import pytest

from cojax.environment import EnvironmentFailure, Traits, play
from cojax.environment.replay import follow
from cojax.types import Action, Call, Check, Evaluation, Message, Task
from environments.tools import ToolEnvironment

Day = Literal["monday", "tuesday"]
SETUP = {"items": {"milk": {"day": "monday"}, "tea": {"day": "tuesday"}}}


def move(world, title: str, day: Day) -> None:
    """Move an item to another day."""
    world["items"][title]["day"] = day


def show(world, title: str) -> dict:
    return world["items"][title]


def add(world, title: str, day: Day = "monday") -> str:
    if title in world["items"]:
        raise ValueError(f"{title} is there already")
    world["items"][title] = {"day": day}
    return "added"


def todo(**settings) -> ToolEnvironment:
    tools = settings.pop("tools", [add, move, show])
    return ToolEnvironment("todo", tools, settings.pop("open", dict), settings.pop("setups", [SETUP]), **settings)


def call(name, **arguments) -> Action:
    return Action(calls=(Call(name, arguments),))


def task(*solution, setup=SETUP, query="do it") -> Task:
    return Task("todo", query, setup, solution)


def played(environment, of, *actions):
    return play(environment, of, follow(actions), max_turns=len(actions))


MOVED = task(call("move", title="milk", day="tuesday"), call("finish"))


def test_an_episode_carries_out_calls_and_ends_with_finish():
    episode = todo(instructions="Keep the list.").start(MOVED)
    assert episode.reset() == (Message("system", "Keep the list."), Message("user", "do it"))
    assert [tool["function"]["name"] for tool in episode.tools()] == ["add", "move", "show", "finish"]
    assert episode.step(call("show", title="tea")).text == '{"day": "tuesday"}'
    assert episode.step(call("move", title="milk", day="tuesday")).text == "ok"
    assert not episode.step(Action("I am done.")).ok
    assert episode.step(call("finish", answer="yes")).done
    assert episode.step(call("finish")).text == "error: the episode is over"
    moved = {"items": {"milk": {"day": "tuesday"}, "tea": {"day": "tuesday"}}}
    assert episode.state() == {"world": moved, "answer": "yes", "finished": True}


@pytest.mark.parametrize(
    ("actions", "reward", "failed"),
    [
        ((call("move", title="milk", day="tuesday"), call("finish")), 1.0, []),
        ((call("show", title="tea"), call("move", title="milk", day="tuesday"), call("finish")), 1.0, []),
        ((call("move", title="milk", day="tuesday"), call("finish", answer="done")), 1.0, []),
        ((call("move", title="milk", day="tuesday"),), 0.0, ["finished"]),
        ((call("finish"),), 0.0, ["items/milk/day"]),
        (
            (call("move", title="milk", day="tuesday"), call("add", title="soap"), call("finish")),
            0.0, ["all else as expected"],
        ),
    ],
)  # fmt: skip
def test_success_is_the_end_that_the_solution_reaches_in_a_second_world(actions, reward, failed):
    found = played(todo(), MOVED, *actions)
    assert found.reward == reward
    assert [check.name for check in found.checks if not check.passed] == failed


@pytest.mark.parametrize(
    ("actions", "partial"),
    [
        ((call("finish"),), 0.0),
        ((call("move", title="milk", day="tuesday"),), 0.5),
        ((call("move", title="milk", day="tuesday"), call("add", title="soap")), 1 / 3),
        ((call("move", title="milk", day="tuesday"), call("finish", answer="tuesday")), 1.0),
        ((call("finish", answer="tuesday"),), 0.5),
    ],
)
def test_the_partial_reward_is_the_changes_made_over_those_wanted_and_those_wrong(actions, partial):
    told = task(call("move", title="milk", day="tuesday"), call("finish", answer="tuesday"))
    assert played(todo(), told, *actions).partial == pytest.approx(partial)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [('{"day": "tuesday"}', 1.0), ('{ "day":"tuesday" }', 1.0), ('{"day": "monday"}', 0.0), ("", 0.0), (None, 0.0)],
)
def test_an_answer_is_compared_as_json(answer, reward):
    told = task(call("show", title="tea"), call("finish", answer='{"day": "tuesday"}'))
    given = call("finish") if answer is None else call("finish", answer=answer)
    assert played(todo(), told, given).reward == reward


def test_an_answer_is_compared_without_case_and_space():
    told = task(call("finish", answer="Tuesday  noon"))
    assert played(todo(), told, call("finish", answer=" tuesday noon")).reward == 1.0


def test_the_end_of_a_solution_is_computed_once():
    opened = []
    environment = todo(open=lambda setup: opened.append(1) or setup)
    for _ in range(3):
        assert played(environment, MOVED, *MOVED.solution).reward == 1.0
    assert len(opened) == 4


def test_a_task_without_a_solution_earns_nothing():
    found = played(todo(), task(), call("finish"))
    assert (found.reward, found.checks) == (0.0, ())


def test_a_judge_decides_or_leaves_the_verdict_to_the_replay():
    def judge(of, world, answer, finished):
        if of.query != "judged":
            return None
        return Evaluation(0.5, (Check("half", True),)) if answer is None else float(answer == "7" and finished)

    environment = todo(judge=judge)
    assert played(environment, task(query="judged"), call("finish", answer="7")).reward == 1.0
    assert played(environment, task(query="judged"), call("finish")).checks == (Check("half", True),)
    assert played(environment, MOVED, *MOVED.solution).reward == 1.0


def test_all_calls_of_an_action_are_carried_out_also_after_a_refused_one():
    episode = todo().start(MOVED)
    episode.reset()
    calls = (Call("add", {"title": "tea"}), Call("add", {"title": "soap"}), Call("fly", {}))
    observation = episode.step(Action(calls=calls))
    assert [message.content for message in observation.messages] == [
        "error: tea is there already", "added", "error: there is no tool 'fly'",
    ]  # fmt: skip
    assert not observation.ok
    many = episode.step(Action(calls=(Call("show", {"title": "tea"}),) * 100))
    assert (len(many.messages), many.ok) == (65, False)
    assert many.messages[-1].content == "error: only 64 calls at once; the rest were not carried out"


def test_an_ending_of_the_world_ends_the_episode_and_carries_the_answer():
    def done(world, summary: str):
        world["closed"] = summary

    environment = todo(tools=[move, done], ending="done")
    assert [tool["function"]["name"] for tool in environment.tools()] == ["move", "done"]
    episode = environment.start(MOVED)
    episode.reset()
    assert not episode.step(call("done")).done
    assert episode.step(call("done", summary="all")).done
    assert (episode.state()["answer"], episode.state()["world"]["closed"]) == ("all", "all")


def test_a_world_may_end_the_episode_and_is_closed_once():
    class World:
        closed = 0

        def __init__(self, setup):
            self.moves = 0

        def call(self, name, arguments):
            self.moves += 1
            return f"{name} {arguments['command']}"

        def state(self):
            return [self.moves]

        def over(self):
            return self.moves == 2

        def close(self):
            World.closed += 1

    act = {"name": "act", "parameters": {"properties": {"command": {"type": "string"}}, "required": ["command"]}}
    environment = ToolEnvironment("maze", [act], World, [{}])
    found = played(environment, task(), call("act", command="go"), call("act", command="take lamp"))
    assert (found.outcome, found.turns[0].observation.text) == ("finished", "act go")
    assert World.closed == 1
    assert environment.traits.commands == {"act": "command"}
    assert environment.start(task()).close() is None


def test_commands_are_those_that_the_environment_states_or_a_single_free_text():
    assert todo().traits.commands == {}
    assert todo(traits=Traits(commands={"show": "title"})).traits.commands == {"show": "title"}
    assert todo(tools=[show]).traits == Traits(worded_alike=True, commands={"show": "title"}, ending="finish")
    assert todo(tools=[add]).traits.commands == {}


def test_setups_are_the_tasks_of_the_seed_split_each_once():
    setups = [{"items": {}, "n": n % 5} for n in range(20)]
    found = todo(setups=setups).tasks("seed", 100, 3)
    assert sorted(one.setup["n"] for one in found) == [0, 1, 2, 3, 4]
    assert all((one.query, one.solution) == ("", ()) for one in found)
    assert todo(setups=iter(setups)).tasks("seed", 2, 3) == found[:2]
    assert todo(setups=setups).tasks("seed", 5, 4) != found
    assert [todo().tasks(split, 5) for split in ("eval", "dev", "challenge")] == [(), (), ()]
    with pytest.raises(ValueError, match="'todo' has no split 'test'; it has seed, dev, eval, challenge"):
        todo().tasks("test", 1)


def test_known_tasks_are_divided_by_their_setups():
    known = [
        {
            "query": f"q{n}",
            "setup": {"items": {}, "n": n // 2},
            "solution": [{"name": "add", "arguments": {"title": "x"}}],
        }
        for n in range(60)
    ]
    environment = todo(splits=known)
    dev, final = environment.tasks("dev", 100), environment.tasks("eval", 100)
    assert (len(dev), len(final)) == (20, 40)
    assert not {one.setup["n"] for one in dev} & {one.setup["n"] for one in final}
    assert played(environment, dev[0], *dev[0].solution).reward == 1.0
    named = todo(splits={"test": known[:3], "eval": [MOVED]})
    assert len(named.tasks("test", 10)) == 3
    assert named.tasks("eval", 10) == (MOVED,)
    with pytest.raises(ValueError, match="expected query, setup and solution"):
        todo(splits=[{"query": "q"}])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"setups": []}, "environment 'todo' has no setups; expected at least one"),
        ({"setups": [{"a": {1, 2}}]}, "setup 1 is no JSON: Object of type set"),
        ({"setups": [{}, {"a": float("nan")}]}, "setup 2 is no JSON"),
        ({"setups": [["a"]]}, r"setup 1 is \['a'\]; expected a JSON object"),
        ({"tools": []}, "there are no tools"),
        ({"tools": [move, move]}, "two tools are called 'move'"),
        ({"tools": [lambda world: 1]}, "has no name; define it with `def`"),
        ({"tools": [3]}, "tool 1 is of type int; expected a function or a document"),
        ({"tools": [{"name": "two words", "parameters": {}}]}, "tool 1 has the name 'two words'"),
        ({"tools": [{"name": "x", "parameters": ["a"]}]}, "expected a JSON schema of an object"),
        ({"tools": [{"name": "x", "parameters": {"properties": {"a": {3}}}}]}, "'x' are not JSON"),
    ],
)
def test_what_makes_no_environment_is_refused_at_once(settings, why):
    with pytest.raises(ValueError, match=why):
        todo(**settings)


def test_functions_that_can_be_no_tools_are_refused_by_name():
    def alone():
        pass

    def open_ended(world, *titles):
        pass

    def unreadable(world, when: Nowhere):  # noqa: F821
        pass

    def strange(world, callback: itertools.count):
        pass

    for function, why in (
        (alone, "'alone' takes no world"),
        (open_ended, "'open_ended' has the parameter 'titles', which has no fixed name"),
        (unreadable, "the type hints of tool 'unreadable' cannot be read: name 'Nowhere'"),
        (strange, "the type hints of tool 'strange' make no JSON schema"),
    ):
        with pytest.raises(ValueError, match=why):
            todo(tools=[function])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"title": 3, "day": "monday"}, "error: title: Input should be a valid string"),
        ({"title": "milk", "day": "sunday"}, "error: day: Input should be 'monday' or 'tuesday'"),
        ({"title": "milk"}, "error: day: Missing required keyword only argument"),
        ({"title": "milk", "day": "monday", "at": 3}, "error: at: Unexpected keyword argument"),
        ({"title": "wine", "day": "monday"}, "error: KeyError: 'wine'"),
        ({1: 2}, "error: "),
        (["milk"], "error: expected an object of arguments for move"),
        (None, "error: expected an object of arguments for move"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(arguments, why):
    episode = todo().start(MOVED)
    episode.reset()
    before = episode.state()
    observation = episode.step(Action(calls=(Call("move", arguments),)))
    assert (observation.ok, observation.text.startswith(why)) == (False, True), observation.text
    assert episode.state() == before


class Hostile:
    """A world whose tool, or state, does what the setup says."""

    def __init__(self, setup):
        if setup.get("open"):
            raise OSError("no such world")
        self.setup, self.calls = setup, 0

    def call(self, name, arguments):
        self.calls += 1
        return eval(self.setup["does"]) if self.setup.get("does") else "fine"

    def state(self):
        return eval(self.setup["state"]) if self.setup.get("state") else {"calls": self.calls}


DOCUMENT = {"name": "act", "parameters": {}}


@pytest.mark.parametrize(
    ("setup", "outcome", "says"),
    [
        ({}, "finished", "fine"),
        ({"does": "1/0"}, "finished", "error: ZeroDivisionError: division by zero"),
        ({"does": "None"}, "finished", "ok"),
        ({"does": "[1, 'a', None]"}, "finished", '[1, "a", null]'),
        ({"does": "'\\ud800'"}, "finished", "?"),
        ({"does": "'äöü 漢字'"}, "finished", "äöü 漢字"),
        ({"does": "'x' * 10**7"}, "finished", "x" * 16_000 + "\n[184025 characters cut]"),
        ({"does": "object()"}, "environment_error", "tool 'act' returned object; expected text, JSON or None"),
        ({"does": "float('inf')"}, "environment_error", "tool 'act' returned float"),
        ({"does": "exit()"}, "environment_error", "SystemExit"),
        ({"open": True}, "environment_error", "reset: OSError: no such world"),
        ({"state": "{1, 2}"}, "environment_error", "the world's state is no JSON: Object of type set"),
        ({"state": "{'a': float('nan')}"}, "environment_error", "the world's state is no JSON"),
    ],
)
def test_a_world_that_misbehaves_ends_in_a_typed_outcome(setup, outcome, says):
    environment = ToolEnvironment("hostile", [DOCUMENT], Hostile, [setup])
    of = Task("hostile", "act", setup, (call("act"), call("finish")))
    found = played(environment, of, call("act"), call("finish"))
    assert found.outcome == outcome
    said = found.error if outcome == "environment_error" else found.turns[0].observation.text
    assert says in said


def test_a_world_without_a_state_is_an_error_that_names_it():
    environment = ToolEnvironment("bare", [DOCUMENT], lambda setup: 7, [{}])
    found = played(environment, task(setup={}), call("finish"))
    assert "`open` returned int, which has no state()" in found.error


def test_a_broken_world_is_a_failure_and_no_refusal():
    def fail(world):
        raise EnvironmentFailure("the server is gone")

    found = played(todo(tools=[fail]), task(), call("fail"))
    assert (found.outcome, found.error) == ("environment_error", "step: the server is gone")


def test_an_open_that_draws_at_random_fails_its_own_solution():
    numbers = itertools.count()
    environment = todo(open=lambda setup: {**copy.deepcopy(setup), "number": next(numbers)})
    found = played(environment, MOVED, *MOVED.solution)
    assert found.reward == 0.0
    assert [check.name for check in found.checks if not check.passed] == ["all else as expected"]


def test_names_with_a_slash_hide_no_difference():
    def put(world, key: str, value: int) -> None:
        world["a"][key] = value

    setup = {"a": {"b": 1}, "a/b": {"c": 1}}
    environment = todo(tools=[put], setups=[setup])
    of = task(call("put", key="b", value=2), call("finish"), setup=setup)
    assert played(environment, of, *of.solution).reward == 1.0
    more = call("put", key="b/c", value=3)
    assert played(environment, of, of.solution[0], more, of.solution[1]).reward == 0.0


def test_an_answer_that_is_no_json_is_refused():
    episode = todo().start(MOVED)
    episode.reset()
    assert episode.step(call("finish", answer=float("nan"))).text.startswith("error: the answer is no JSON")
    assert episode.step(call("finish", answer={"b": 1, "a": None})).done
    assert episode.state()["answer"] == '{"a":null,"b":1}'


def test_the_setup_stays_as_it_was():
    setup = copy.deepcopy(SETUP)
    environment = todo(open=lambda given: given, setups=[setup])
    assert played(environment, task(*MOVED.solution, setup=setup), *MOVED.solution).reward == 1.0
    assert setup == SETUP


def test_a_solution_that_calls_no_tool_is_refused():
    wrong = {"query": "move milk", "setup": SETUP, "solution": [{"name": "mvoe", "arguments": {}}]}
    for splits in ([wrong], {"eval": [wrong]}, {"eval": [task(call("mvoe"), call("finish"))]}):
        with pytest.raises(
            ValueError, match="calls 'mvoe', which is not a tool; the tools are add, finish, move, show"
        ):
            todo(splits=splits)
