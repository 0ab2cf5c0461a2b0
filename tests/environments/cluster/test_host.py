"""The actor of a node, in this process: it makes the environment, plays episodes, and says what their calls count."""

import asyncio
import json
import threading

import pytest
from counter_environment import CounterEnvironment
from patience import patience

import environments
from cojax.environment import LimitExceeded, excuse
from cojax.types import Task, to_json
from environments.cluster import host as messages
from environments.cluster.host import Host, hash_code


def make():
    return CounterEnvironment(on_step=lambda task, step: STEPS[task.query]())


def made(name: str, **settings) -> tuple[Host, dict]:
    host = Host()
    order = {"name": name, "settings": settings, "code": hash_code(name)}
    return host, json.loads(asyncio.run(host.make(json.dumps(order).encode())))


async def asked(host: Host, episode: int, op: str, *arguments):
    return messages.decode_reply(await host.call(messages.encode_request(1, episode, op, list(arguments))), 1, episode)


def test_it_says_what_the_environment_is():
    _, found = made("desk", isolated=False)
    described = found["described"]
    assert (described["name"], described["charted"], described["demonstrated"]) == ("desk", True, True)
    assert (described["runs_policy_code"], described["layers"]) == (False, {})


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"name": "desk", "settings": {"walls": 4}}, "has no setting"),
        ({"name": "desk", "settings": {}, "code": "0" * 64}, r"its code .* is not the trainer's \(000000000000\)"),
        ({"name": "no.such:make", "settings": {}, "code": ""}, "not found"),
    ],
)
def test_it_says_why_the_environment_cannot_be_made(order, said):
    found = json.loads(asyncio.run(Host().make(json.dumps({"code": hash_code("desk"), **order}).encode())))
    assert found["failure"] == "START"
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found["message"])


def test_an_episode_is_played_by_its_number():
    host, _ = made("desk")
    (task,) = environments.load("desk").tasks("eval", 1)

    async def play():
        opened = await asked(host, 4, "reset", to_json(task))
        steps = [await asked(host, 4, "step", to_json(action)) for action in task.solution]
        verdict = await asked(host, 4, "evaluate")
        tasks = await asked(host, 0, "tasks", "eval", 1, 0)
        await host.end(4)
        return opened[1], steps[-1][1], verdict[1], tasks[1]

    opened, last, verdict, tasks = asyncio.run(play())
    assert opened.keys() == {"messages", "tools"}
    assert (last["done"], verdict["reward"]) == (True, 1.0)
    assert tasks == to_json([task])


STEPS = {"limit": lambda: (_ for _ in ()).throw(LimitExceeded("too much")), "excuse": lambda: excuse(5.0)}


def test_failures_and_excused_time_are_the_calls_own():
    host = Host()
    name = f"{__name__}:make"
    order = {"name": name, "settings": {}, "code": hash_code(name)}

    async def play():
        assert "described" in json.loads(await host.make(json.dumps(order).encode()))
        found = {}
        for number, query in enumerate(STEPS, 1):
            await asked(host, number, "reset", to_json(Task("counter", query, {"target": 1})))
            found[query] = await asked(host, number, "step", {"calls": [{"name": "add", "arguments": {}}]})
        return found

    found = asyncio.run(play())
    assert (type(found["limit"][2]), str(found["limit"][2])) == (LimitExceeded, "too much")
    assert found["excuse"][2] is None
    assert found["excuse"][0] == 0.0


def test_a_call_under_way_is_counted_and_other_episodes_go_on():
    host, _ = made("desk")
    entered, leave = threading.Event(), threading.Event()

    async def play():
        (task,) = environments.load("desk").tasks("eval", 1)
        operations = host._make_operations
        host._make_operations = lambda: {**operations(), "state": lambda: (entered.set(), leave.wait(patience(60)))[1]}
        await asked(host, 1, "reset", to_json(task))
        hanging = asyncio.create_task(host.call(messages.encode_request(9, 1, "state", [])))
        await asyncio.to_thread(entered.wait, 60)
        await asked(host, 2, "reset", to_json(task))
        counted = messages.decode_progress(await host.beat())
        leave.set()
        return counted, messages.decode_reply(await hanging, 9, 1), messages.decode_progress(await host.beat())

    counted, reply, after = asyncio.run(play())
    assert counted.keys() == {"9"}
    assert reply[1] is True
    assert after == {}


def test_a_call_behind_a_hanging_one_counts_as_well_and_its_wait_is_not_charged():
    host, _ = made("desk")
    entered, leave = threading.Event(), threading.Event()

    async def play():
        host._service_operations = {"tools": lambda: [entered.set(), leave.wait(patience(60))], "tasks": lambda: []}
        hanging = asyncio.create_task(host.call(messages.encode_request(1, 0, "tools", [])))
        await asyncio.to_thread(entered.wait, 60)
        behind = asyncio.create_task(host.call(messages.encode_request(2, 0, "tasks", [])))
        await asyncio.sleep(0.3)
        counted = messages.decode_progress(await host.beat())
        leave.set()
        await hanging
        return counted, messages.decode_reply(await behind, 2, 0), messages.decode_progress(await host.beat())

    counted, reply, after = asyncio.run(play())
    assert counted.keys() == {"1", "2"}
    assert 0.3 <= counted["2"] <= counted["1"]
    assert reply[0] < counted["2"]
    assert reply[1:] == ([], None)
    assert after == {}
