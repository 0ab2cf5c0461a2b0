"""Official tasks of retail and airline as conversations: a scripted endpoint plays the customer, the wheel judges."""

from collections.abc import Iterator
from typing import Any

import pytest
from chat_server import Answer, ChatServer, serving

import environments
from cojax.environment import play, traits_of
from cojax.environment.replay import follow
from cojax.environment.wrapping import Wrapped
from cojax.types import Action, Call, Task, Trajectory
from environments.worker import IsolatedEnvironment

pytestmark = pytest.mark.real
GREETING = "Hi! How can I help you today?"
# Numbers that the customer says too.
NUMBERS: list[str] = []


def customer(body: dict[str, Any], server: ChatServer) -> Answer:
    """Says what they want, agrees twice, and ends the conversation."""
    said = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
    words = ["It is about my booking.", f"Yes, {NUMBERS}.", "Yes.", "Thank you. ###STOP###"]
    return Answer(words[min(len(said), 3)])


Case = tuple[str, Task, tuple[Action, ...], str]


def chosen(domain: str, written: IsolatedEnvironment) -> Case:
    """A task that changes the database and whose customer asks for a number besides; its calls, and the number."""
    changing = {"retail": "return_delivered_order_items", "airline": "cancel_reservation"}[domain]
    for task in written.tasks("base", 1000):
        made = [action.calls[0] for action in task.solution]  # those of the agent, and `done`
        if changing in {call.name for call in made} and made[-2].name == "reply":
            calls, number = task.solution[:-2], made[-2].arguments["message"]
            NUMBERS[:] = number.split(", ")
            return domain, task, calls, number
    raise AssertionError(f"no task calls {changing}")


@pytest.fixture(scope="module", params=["retail", "airline"])
def talking(request: pytest.FixtureRequest) -> Iterator[tuple[Case, Wrapped, ChatServer]]:
    written = environments.load("tau2", domain=request.param)
    assert isinstance(written, IsolatedEnvironment)
    case = chosen(request.param, written)
    written.close()
    with serving(customer) as server:
        environment = environments.load(
            "tau2", domain=request.param, user="model", user_url=server.url, user_model="scripted"
        )
        assert isinstance(environment, Wrapped)
        assert isinstance(environment.environment, IsolatedEnvironment)
        (task,) = [one for one in environment.tasks("base", 1000) if one.query == case[1].query]
        yield (case[0], task, *case[2:]), environment, server
        environment.environment.close()


def run(environment: Wrapped, task: Task, *actions: Action) -> Trajectory:
    return play(environment, task, follow(actions), max_turns=len(actions))


def says(text: str) -> Action:
    return Action(text, error="no tool call found")


def test_reference_actions_in_a_conversation_earn_the_official_verdict(talking):
    (_, task, calls, number), environment, server = talking
    server.bodies.clear()
    played = run(environment, task, says("May I?"), *calls[:-1], says("Sure?"), calls[-1], says(number))
    assert (played.outcome, played.reward) == ("finished", 1.0)
    system, greeting, first = played.opening
    assert "<policy>" in system.content
    assert "Send a message to the user." in system.content
    assert task.query not in "".join(message.content for message in played.opening)
    assert (greeting.role, greeting.content, first.content) == ("assistant", GREETING, "It is about my booking.")
    told = server.bodies[0]["messages"][0]["content"]
    assert told.startswith("# User Simulation Guidelines")
    assert told.rstrip().endswith("</scenario>")
    assert "Reason for call:" in told
    assert [message["content"] for message in server.bodies[3]["messages"][1:]] == [
        GREETING, "It is about my booking.", "May I?", f"Yes, {NUMBERS}.", "Sure?", "Yes.", number,
    ]  # fmt: skip


def test_a_missing_change_an_unsaid_number_and_a_conversation_without_end_earn_nothing(talking):
    (_, task, calls, number), environment, _ = talking
    ends = [says("One."), says("Two."), says("Three.")]
    changes = [one for one in calls if not one.calls[0].name.startswith(("get_", "find_", "search_", "calculate"))]
    less = [one for one in calls if one is not changes[0]]
    assert run(environment, task, *less, says(number), *ends[1:]).reward == 0.0
    open_ended = run(environment, task, *calls, says(number))
    assert (open_ended.outcome, open_ended.reward, open_ended.partial) == ("truncated", 0.0, 1.0)
    unsaid = run(environment, task, *calls, *ends)
    # That the customer said the number counts for nothing.
    assert NUMBERS[0] in unsaid.turns[-3].observation.text
    assert (unsaid.outcome, unsaid.reward) == ("finished", 0.0)
    assert [check.name for check in unsaid.checks if not check.passed] == [f"communicates {one}" for one in NUMBERS]


def test_an_agent_has_the_official_tools_alone_and_written_tasks_have_no_customer(talking):
    (domain, *_), environment, server = talking
    episode = environment.start(environment.tasks("base", 1)[0])
    episode.reset()
    names = {tool["function"]["name"] for tool in episode.tools()}
    shown = episode.step(Action(calls=(Call("done"), Call("reply", {"message": "Hi"}))))
    episode.close()
    assert "transfer_to_human_agents" in names
    assert not names & {"done", "reply"}
    assert shown.text == "error: there is no tool 'done'\nerror: there is no tool 'reply'"
    asked = server.requests
    setup = environment.tasks("seed", 1)[0].setup
    written = Task("tau2", "Please do nothing.", setup, (Action(calls=(Call("done"),)),))
    played = run(environment, written, Action(calls=(Call("reply", {"message": "Hi"}),)), *written.solution)
    assert played.opening[-1].content == "Please do nothing."
    assert (played.reward, server.requests) == (1.0, asked)
    assert traits_of(environment).worded_alike
    assert len(environment.tasks("base", 1000)) == {"retail": 114, "airline": 50}[domain]
