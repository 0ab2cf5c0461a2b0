"""Servers over HTTP: what they need, one world at a time or several, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import mcp_plays
import pytest
from mcp_plays import FINISH, call, over_http
from patience import patience

from cojax.environment import EnvironmentFailure
from environments.mcp import make
from environments.tools import ToolEnvironment

pytestmark = pytest.mark.real
TEA = call("add", title="tea", day="friday")
TEA_ON_MONDAY = call("add", title="tea", day="monday")
WRITE = call("write", text="a")
LISTS = {"reset": "clear", "state": "everything"}
FILE = {"reset": "clear", "state": "text", "lookups": "look,text"}


@pytest.fixture(scope="module")
def lists() -> Iterator[str]:
    with over_http("lists_server.py") as url:
        yield url


def hostile(url: str) -> ToolEnvironment:
    return make(url=url, unconfined=True, deadline=8.0, **FILE)


def test_every_episode_begins_after_a_reset_which_no_policy_can_call(lists: str) -> None:
    environment = make(url=lists, unconfined=True, **LISTS)
    assert environment.traits.concurrency == 1
    assert [tool["function"]["name"] for tool in environment.tools()] == [
        "add", "move", "tick", "show", "everything", "clear_in_part", "list_resources", "read_resource", "finish",
    ]  # fmt: skip
    for _ in range(2):
        assert mcp_plays.played(environment, (TEA, FINISH), TEA, FINISH).reward == 1.0
        assert mcp_plays.played(environment, (TEA, FINISH), TEA_ON_MONDAY, FINISH).reward == 0.0
    found = mcp_plays.played(environment, (TEA, FINISH), TEA, call("clear"), FINISH)
    assert found.turns[1].observation.text == "error: there is no tool 'clear'"
    assert found.reward == 1.0
    assert found.opening[0].content == "Keep the list in order."


def test_resources_can_be_listed_and_read(lists: str) -> None:
    environment = make(url=lists, unconfined=True, **LISTS)
    actions = (call("list_resources"), TEA, call("read_resource", uri="list://titles"), call("read_resource", uri="x"))
    found = mcp_plays.played(environment, (FINISH,), *actions)
    assert [(turn.observation.ok, turn.observation.text) for turn in found.turns] == [
        (True, '{"resources": [{"uri": "list://titles", "name": "titles", "description": "The titles on the list."}]}'),
        (True, "ok"),
        (True, '["tea"]'),
        (False, "error: Unknown resource: x"),
    ]


@pytest.mark.parametrize(("given", "lacks"), [({}, "reset and state"), ({"reset": "clear"}, "state")])
def test_without_a_reset_and_a_state_nothing_is_trained_on(lists: str, given: dict[str, str], lacks: str) -> None:
    says = rf"has no {lacks}: .* so nothing is trained on and no task is synthesized\..* It offers add, move, tick,"
    with pytest.raises(ValueError, match=says):
        make(url=lists, unconfined=True, **given)


def test_calls_that_the_server_does_not_offer_are_refused(lists: str) -> None:
    with pytest.raises(ValueError, match="reset names 'forget'; the server offers add, move"):
        make(url=lists, unconfined=True, reset="forget", state="everything")
    with pytest.raises(ValueError, match=r'expected \{"name": TOOL, "arguments": \{…\}\}'):
        make(url=lists, unconfined=True, reset="clear", state='[{"tool": "everything"}]')
    with pytest.raises(ValueError, match="setups names 'put'"):
        make(url=lists, unconfined=True, setups='[{"calls": [{"name": "put"}]}]', **LISTS)


def test_worlds_of_the_only_state_wait_for_each_other(lists: str) -> None:
    environment = make(url=lists, unconfined=True, **LISTS)
    (setup,) = environment.tasks("seed", 1)
    first, second = environment.start(setup), environment.start(setup)
    first.reset()
    first.step(TEA)
    began, opened = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        second.reset()
        opened.set()

    waits = threading.Thread(target=wait)
    waits.start()
    began.wait()
    assert first.state()["world"] == {"items": {"tea": {"day": "friday", "done": False}}}
    assert not opened.is_set()
    first.close()
    assert opened.wait(patience(60.0))
    assert second.state()["world"] == {"items": {}}
    second.close()
    waits.join()


def test_a_world_whose_thread_opens_another_is_over(lists: str) -> None:
    environment = make(url=lists, unconfined=True, **LISTS)
    (setup,) = environment.tasks("seed", 1)
    first, second = environment.start(setup), environment.start(setup)
    first.reset()
    second.reset()
    with pytest.raises(EnvironmentFailure, match="passed its server on to another; expected one world at a time"):
        first.step(TEA)
    first.close()
    assert second.step(TEA).ok
    second.close()


def test_several_at_a_time_need_sessions_with_states_of_their_own(lists: str) -> None:
    with pytest.raises(ValueError, match="concurrency is 4, but another session resets the state of the first"):
        make(url=lists, unconfined=True, concurrency=4, **LISTS)
    with over_http("lists_server.py", "each") as url:
        environment = make(url=url, unconfined=True, concurrency=4, **LISTS)
        assert environment.traits.concurrency == 4
        assert mcp_plays.played(environment, (TEA, FINISH), TEA, FINISH).reward == 1.0


def test_a_reset_that_does_not_reset_is_no_episode() -> None:
    with over_http("lists_server.py") as url:
        environment = make(url=url, unconfined=True, reset="clear_in_part", state="everything", lookups="show")
        assert mcp_plays.played(environment, (), TEA).outcome == "truncated"
        found = mcp_plays.played(environment, (), TEA)
    assert found.outcome == "environment_error"
    assert found.error.startswith('reset: after clear_in_part() the state is {"items":{"tea":')
    assert found.error.endswith('and after the first one it was {"items":{}}; expected the same state after each reset')


def test_a_server_that_asks_for_credentials_gets_those_that_are_named_or_none(monkeypatch) -> None:
    with over_http("lists_server.py", TEST_TOKEN="Bearer a secret") as url:
        with pytest.raises(EnvironmentFailure, match=r"HTTP status 401: it asks for credentials; .* in `headers`"):
            make(url=url, unconfined=True, **LISTS)
        monkeypatch.setenv("LISTS_ADDRESS", url)
        monkeypatch.setenv("LISTS_TOKEN", "Bearer a secret")
        settings = {"url": "$LISTS_ADDRESS", "headers": "Authorization=LISTS_TOKEN"}
        assert make(unconfined=True, **settings, **LISTS).traits.concurrency == 1


@pytest.mark.parametrize(("tool", "after"), [("hang", "finished"), ("flood", "environment_error")])
def test_a_server_that_hangs_or_floods_is_the_action_s_doing(tmp_path: Path, tool: str, after: str) -> None:
    with over_http("hostile_server.py", folder=tmp_path) as url:
        environment = hostile(url)
        found = mcp_plays.played(environment, (WRITE, FINISH), call(tool))
        assert (found.outcome, found.error) == ("timeout", "step: TIMEOUT: step took longer than 8 s")
        # One that floods goes on doing so, and answers nothing else.
        assert mcp_plays.played(environment, (WRITE, FINISH), WRITE, FINISH).outcome == after


def test_requests_for_the_client_s_own_model_folders_and_user_are_refused(tmp_path: Path) -> None:
    with over_http("hostile_server.py", folder=tmp_path) as url:
        asked = ("ask_model", "ask_roots", "ask_user", "lie")
        found = mcp_plays.played(hostile(url), (WRITE, FINISH), *map(call, asked), WRITE, FINISH)
    assert [turn.observation.text for turn in found.turns[:4]] == [
        "error: Sampling not supported",
        "error: List roots not supported",
        "error: Elicitation not supported",
        "error: Error: nothing is there",
    ]
    assert found.reward == 1.0


def test_a_server_that_dies_ends_the_episode_and_the_next_says_so(tmp_path: Path) -> None:
    with over_http("hostile_server.py", folder=tmp_path) as url:
        environment = hostile(url)
        found = mcp_plays.played(environment, (WRITE, FINISH), call("die"))
        assert found.outcome == "timeout"
        assert "step: the connection to the server is lost" in found.error
        after = mcp_plays.played(environment, (WRITE, FINISH), WRITE, FINISH)
        assert after.outcome == "environment_error"
        assert "does not start: All connection attempts failed" in after.error
