"""Calls seen to change the server and not the world, and records that no honest worker sends: none earns a reward."""

import json
from collections.abc import Callable

import pytest

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.types import Action, Task, Trajectory
from environments.appworld.environment import AppWorld, AppWorldEpisode
from tests.environments.appworld.test_security import WORLD

pytestmark = pytest.mark.real
Forge = Callable[..., tuple[Trajectory, AppWorldEpisode]]

LOGIN = """
me = apis.supervisor.show_profile()
passwords = {a["account_name"]: a["password"] for a in apis.supervisor.show_account_passwords()}
access = apis.spotify.login(username=me["email"], password=passwords["spotify"])["access_token"]
said = []
def attempt(api, **arguments):
    try:
        said.append(str(api(**arguments)))
    except Exception as error:
        said.append(f"failed: {error}")
"""
HARM = 'attempt(apis.spotify.create_playlist, title="Harm", access_token=access)\n'
# To another database, which the world is not judged by, and back to its own.
AWAY = """
own = ":memory:task_output-" + TASK
attempt(apis.spotify.like_song, song_id="../../dbs?", to_db_home_path=":memory:scratch", from_db_home_path=own)
"""
BACK = 'attempt(apis.spotify.like_song, song_id="../../dbs?", to_db_home_path=own)\n'
TOLD = "print(chr(10).join(said))"


@pytest.fixture(scope="module")
def forge(appworld: AppWorld, task: Task) -> Forge:
    """The trajectory of blocks of code, then of the task's own solution, and the episode."""

    def forge(*blocks: str, task: Task = task) -> tuple[Trajectory, AppWorldEpisode]:
        started: list[AppWorldEpisode] = []

        class Kept:
            name = appworld.name

            def start(self, task: Task) -> AppWorldEpisode:
                started.append(appworld.start(task))
                return started[0]

        code = [Action(f"```python\nTASK = {task.setup['task']!r}\n{block}\n```") for block in blocks]
        actions = [*code, *task.solution]
        return play(Kept(), task, follow(actions), max_turns=len(actions)), started[0]

    return forge


def told(trajectory: Trajectory) -> str:
    return trajectory.turns[0].observation.text


def test_harm_done_in_another_database_counts(forge: Forge):
    """The control first: the same harm in the open."""
    assert forge(LOGIN + HARM)[0].reward == 0.0
    trajectory, _ = forge(LOGIN + AWAY + HARM + BACK + TOLD)
    assert (trajectory.outcome, trajectory.reward) == ("finished", 0.0), told(trajectory)
    assert [line[:6] for line in told(trajectory).splitlines() if "status" in line] == ["failed", "failed"]
    assert trajectory.checks[-1].passed is False


ADMINISTRATION = {
    "dbs": 'apis.spotify.show_song, song_id="../../dbs?"',
    "dbs/save": 'apis.spotify.like_song, song_id="../../dbs/save?", from_db_home_path="a", to_db_home_path="b"',
    "dbs/cache": 'apis.spotify.unlike_song, song_id="../../dbs/cache?"',
    "seed": 'apis.spotify.like_song, song_id="../../seed?", seed=7',
    "date_time": 'apis.spotify.like_song, song_id="../../date_time?", date_and_time="2020-01-01T00:00:00"',
    "schemas": 'apis.spotify.like_song, song_id="../../show_api_response_schemas?", show_api_response_schemas=False',
    "admin": 'apis.spotify.like_song, song_id="../../admin/validate_card?", owner_name="x", card_number=10**15, '
    "expiry_year=2030, expiry_month=1, cvv_number=100",
    "documentation": 'apis.spotify.show_song, song_id="../../openapi.json?"',
    "another API": 'apis.spotify.show_song, song_id=""',
    "another app": 'apis.spotify.show_song, song_id="../../supervisor/profile?"',
    "quoted": 'apis.spotify.show_song, song_id="..%2f..%2fsupervisor%2fprofile%3f"',
    "a named slot": 'apis.spotify.remove_song_from_playlist, playlist_id="{song_id}", song_id="../../../../dbs?"',
    "a made-up name": 'apis.simple_note.add_content_to_note, **{"note_id}/{append_or_prepend": "1"}',
    "the requester": 'lambda: requester.get("/dbs")',
    "the requester by name": 'lambda: requester.request("admin", "validate_card", raise_on_failure=False)',
}


def test_nothing_but_documented_routes_answers(forge: Forge):
    """What is refused reads as an API's own refusal, is no record, and takes nothing from the honest solution."""
    attempts = "".join(f"attempt({one})\n" for one in ADMINISTRATION.values())
    trajectory, episode = forge(LOGIN + attempts + 'print(chr(10).join(one.replace(chr(10), " ") for one in said))')
    answers = dict(zip(ADMINISTRATION, told(trajectory).splitlines(), strict=True))
    let_in = {name: answer for name, answer in answers.items() if "Response status code is 40" not in answer}
    # It asks for no exception, and gets the message alone.
    assert list(let_in) == ["the requester by name"], let_in
    assert "API not found" in let_in["the requester by name"]
    assert trajectory.reward == 1.0
    assert [call.name for call in episode.calls[:4]] == [
        "supervisor.show_profile",
        "supervisor.show_account_passwords",
        "spotify.login",
        "supervisor.show_account_passwords",
    ]
    assert all(check.passed for check in trajectory.checks)


def test_the_judge_believes_no_record_of_a_way_round(forge: Forge):
    """The worker where code runs is not trusted: it can report any call."""
    record = 'world.calls.append({"app": "spotify", "api": "like_song", "digest": "", "arguments": ARGUMENTS})\n'
    away = {"song_id": "../../dbs?", "to_db_home_path": ":memory:scratch", "from_db_home_path": "OWN"}
    back = {"song_id": "../../dbs?", "to_db_home_path": "OWN"}
    ways = [record.replace("ARGUMENTS", json.dumps(one)).replace('"OWN"', "own") for one in (away, back)]
    own = 'own = ":memory:task_output-" + TASK\n'
    trajectory, episode = forge(LOGIN + WORLD + own + ways[0] + HARM + ways[1] + TOLD)
    assert sum(call.arguments["arguments"].get("song_id") == "../../dbs?" for call in episode.calls) == 2
    assert trajectory.reward == 0.0
    failed = [check.name for check in trajectory.checks if not check.passed]
    assert failed[-1] == "answered alike again: spotify.like_song"
    assert len(failed) == 2


def test_no_token_is_forged(appworld: AppWorld, task: Task):
    """The key that signs access tokens is no secret; a token stands for someone who logged in, in play and judge."""
    forging = """
jwt = type(world).__init__.__globals__["sys"].modules["jwt"]
token = jwt.encode({"sub": "spotify+" + NAME, "exp": 2**33}, "SECRET", algorithm="HS256")
try:
    print(apis.spotify.create_playlist(title="Harm", access_token=token))
except Exception as error:
    print(error)
world.calls.append({"app": "spotify", "api": "create_playlist", "digest": "",
                    "arguments": {"title": "Harm", "access_token": token}})
"""
    name = "NAME = apis.supervisor.show_profile()['email']\n"
    episode = appworld.start(task)
    try:
        episode.reset()
        said = episode.step(Action(f"```python\n{WORLD}{name}{forging}\n```")).text
        assert "Response status code is 401" in said
        assert episode.state()["tables"] == {}
    finally:
        episode.close()


def test_an_effect_counts_though_its_reply_was_lost(forge: Forge):
    """A call that reached its API is recorded, whatever became of the reply."""
    losing = """
import builtins
def broken(*texts, **more): raise ValueError("no reply")
shown, builtins.print = builtins.print, broken
try:
    requester.request("spotify", "create_playlist", title="Harm", access_token=access, show=True)
except ValueError as error:
    said.append(str(error))
builtins.print = shown
"""
    trajectory, episode = forge(LOGIN + losing + TOLD)
    assert told(trajectory) == "no reply"
    assert "spotify.create_playlist" in [call.name for call in episode.calls]
    assert trajectory.reward == 0.0


def test_more_than_an_episode_may_call_is_refused_where_it_is_called(forge: Forge):
    """So that a policy is told of it, and what it did before is judged."""
    large = 'for _ in range(4): attempt(apis.spotify.login, username="x" * 500_000, password="")\n'
    trajectory, episode = forge(LOGIN + large + "print([one[:40] for one in said])")
    assert told(trajectory).count("failed: Response status code is 422") == 3, told(trajectory)
    assert told(trajectory).count("failed: an episode makes at most 3,000") == 1
    assert sum(call.name == "spotify.login" for call in episode.calls) == 5
    assert (trajectory.outcome, trajectory.reward) == ("finished", 1.0)


REPORTS = {
    "a name that is no text": '[{"app": "spotify", "api": "\\ud800", "arguments": {}, "digest": ""}]',
    "a name with marks": '[{"app": "spotify", "api": "like\\nsong", "arguments": {}, "digest": ""}]',
    "many small values": "[" + "{}," * 1_000_000 + "{}]",
    "a long number": '[{"app": "a", "api": "b", "arguments": {"a": ' + "1" * 5_000 + '}, "digest": ""}]',
}


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_that_no_honest_worker_sends_is_a_failed_step(forge: Forge, report):
    module = 'type(world).__init__.__globals__["sys"].modules["environments.appworld.inside"]'
    lie = REPORTS[report] if len(REPORTS[report]) < 10_000 else None
    text = repr(lie) if lie else '"[" + "{}," * 1_000_000 + "{}]"'
    forging = f'{module}.json = type("json", (), {{"dumps": staticmethod(lambda value, **more: {text})}})\n'
    trajectory, _ = forge(WORLD + forging)
    assert (trajectory.outcome, trajectory.reward) == ("timeout", 0.0), trajectory.outcome
    assert "the reply to step is none" in trajectory.error


ODD = """
odd = [[[[]]], {"a": {"b": []}}, 10**30, 10**400, -1, True, None, 1e308, float("nan"), float("-inf")]
odd += ["\\ud800", "x" * 10**5]
kinds = [
    (apis.spotify.show_song, ["song_id"]),
    (apis.spotify.search_songs, ["query", "page_limit"]),
    (apis.spotify.create_playlist, ["title", "access_token"]),
    (apis.spotify.login, ["username", "password"]),
    (apis.supervisor.show_profile, ["", "self", "Authorization", "access_token"]),
    (apis.supervisor.complete_task, ["answer", "status"]),
]
for api, names in kinds:
    for name in names:
        for one in odd:
            attempt(api, **{"song_id": 1, "title": "t", "access_token": access, name: one})
"""


def test_arguments_of_odd_kinds_cost_nobody_the_verdict(forge: Forge):
    """Lists, objects, huge numbers and half surrogates, as every kind of argument and as the answer."""
    trajectory, episode = forge(LOGIN + ODD + "print(len(said))")
    assert (trajectory.outcome, trajectory.reward) == ("finished", 0.0), trajectory
    assert told(trajectory) == "156"
    assert [check.name for check in trajectory.checks[:1]] == ["the task is completed without an answer"]
    assert len(episode.calls) > 100
