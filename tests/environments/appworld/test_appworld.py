"""AppWorld by the path that training uses: code blocks, the calls they make, the benchmark's verdict."""

import dataclasses
import threading
from collections.abc import Callable

import pytest

import environments
from cojax.environment import Charted, EnvironmentFailure, play
from cojax.environment.replay import follow, replay
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, Task, Trajectory
from cojax.validation import Validation
from environments.appworld import data as roots
from environments.appworld.environment import AppWorld
from environments.appworld.skills import ENDING
from environments.worker import isolate
from environments.worker.venv import interpreter

pytestmark = pytest.mark.real
Run = Callable[..., Trajectory]
LOGIN = """
accounts = {a["account_name"]: a["password"] for a in apis.supervisor.show_account_passwords()}
me = apis.supervisor.show_profile()
token = apis.spotify.login(username=me["email"], password=accounts["spotify"])["access_token"]
"""


def skill(name: str, **arguments: object) -> Action:
    return Action(calls=(Call(name, arguments),))


@pytest.fixture(scope="module")
def place(appworld: AppWorld) -> Task:
    return appworld.tasks("seed", 1)[0]


def synthesized(place: Task, query: str, *solution: Action) -> Task:
    return dataclasses.replace(place, query=query, solution=solution)


def test_the_splits_are_the_benchmarks_and_seeds_show_no_question(appworld: AppWorld):
    assert isinstance(appworld, Charted)
    train, seeds = appworld.tasks("train", 1_000), appworld.tasks("seed", 1_000, seed=3)
    assert {task.setup["task"] for task in train} == {task.setup["scenario"] for task in seeds}
    assert seeds != appworld.tasks("seed", 1_000, seed=4)
    assert all(task.query == "" and not task.solution for task in seeds)
    assert appworld.tasks("eval", 5) == appworld.tasks("test_normal", 5)
    held_out = {task.setup["task"] for split in ("dev", "eval", "challenge") for task in appworld.tasks(split, 1_000)}
    assert held_out
    assert not held_out & {task.setup["scenario"] for task in seeds}
    with pytest.raises(ValueError, match="available: seed, train"):
        appworld.tasks("all", 1)


def test_solutions_are_shown_to_checks_alone(appworld: AppWorld):
    plain = environments.load("appworld", data="tiny")
    try:
        assert not any(task.solution for task in plain.tasks("train", 100))
        assert [task.id for task in plain.tasks("train", 9)] == [task.id for task in appworld.tasks("train", 9)]
    finally:
        plain.close()


def test_variables_last_errors_are_told_and_completing_ends(run: Run):
    trajectory = run(
        "x = 6", "print(x * 7)", "print(y)", "import os\nos.system('true')", "apis.supervisor.complete_task()"
    )
    first, second, third, fourth, fifth = (turn.observation for turn in trajectory.turns)
    assert (first.text, first.ok) == ("Execution successful.", True)
    assert second.text == "42"
    assert not third.ok
    assert "NameError: name 'y' is not defined" in third.text
    assert "environments" not in third.text
    assert not fourth.ok
    assert "not allowed" in fourth.text
    assert fifth.done
    assert trajectory.outcome == "finished"


def test_code_that_goes_on_after_completing_still_counts_and_the_next_action_does_not(appworld: AppWorld, task: Task):
    episode = appworld.start(task)
    episode.reset()
    assert episode.step(Action("```python\napis.supervisor.complete_task()\nprint('on')\n```")).done
    again = episode.step(Action("```python\nprint('more')\n```"))
    assert (again.done, again.ok) == (True, False)
    assert "more" not in again.text
    episode.close()


def test_a_synthesized_task_is_the_worlds_own(appworld: AppWorld, place: Task):
    """The benchmark's instruction would contradict the query."""
    task = synthesized(place, "Sing.", skill(ENDING))
    block = "```python\nprint(apis.supervisor.show_active_task()['instruction'])\n```"
    trajectory = play(appworld, task, follow([Action(block)]), max_turns=1)
    assert trajectory.turns[0].observation.text == "Sing."
    assert trajectory.opening[0].content.endswith("Task: Sing.")


def test_calls_made_again_are_answered_alike_whatever_the_code_drew(run: Run, appworld: AppWorld, task: Task):
    """Tokens, codes and shuffles hang on the calls alone, not on what code drew from the same stream."""
    drawing = "import random\nrandom.seed(5)\n" + LOGIN + "random.random()\n" + LOGIN
    drawing += "print([random.random() for _ in range(3)], apis.spotify.shuffle_song_queue(access_token=token))"
    episode = appworld.start(task)
    episode.reset()
    observation = episode.step(Action(f"```python\n{drawing}\n```"))
    assert observation.ok, observation
    assert len(episode.calls) == 7
    assert list(episode.state()["tables"]) == ["spotify.MusicPlayer"]
    assert episode.differing == []
    episode.close()


def test_a_child_that_died_after_completing_is_judged_all_the_same(appworld: AppWorld, task: Task):
    episode = appworld.start(task)
    episode.reset()
    for action in task.solution:
        episode.step(action)
    episode.playing.close()
    assert episode.evaluate().reward == 1.0
    episode.close()


def test_another_way_to_the_same_end_earns_the_reward_and_less_or_more_does_not(appworld: AppWorld, place: Task):
    like, other = (skill("spotify.like_song", title=title) for title in _unliked(appworld, place))
    task = synthesized(place, "Like it.", like, skill(ENDING))

    def reward(*actions: Action) -> tuple[float, list[str]]:
        found = play(appworld, task, follow(actions), max_turns=len(actions))
        return found.reward, [check.name for check in found.checks if not check.passed]

    title = like.calls[0].arguments["title"]
    by_hand = Action(
        f"```python\n{LOGIN}\napis.spotify.search_artists(query='a')\n"
        f"song = [s for s in apis.spotify.search_songs(query={title!r}) if s['title'] == {title!r}][0]\n"
        "apis.spotify.like_song(song_id=song['song_id'], access_token=token)\napis.supervisor.complete_task()\n```"
    )
    assert reward(like, skill(ENDING)) == (1.0, [])
    assert reward(by_hand) == (1.0, [])
    assert reward(skill(ENDING))[0] == 0.0
    assert reward(like)[1] == ["completed"]
    assert reward(other, skill(ENDING))[0] == 0.0
    assert reward(like, other, skill(ENDING))[0] == 0.0
    assert reward(like, skill(ENDING, answer="yes"))[1] == ["answer"]


def test_new_rows_are_told_by_what_they_hold_not_by_their_ids(appworld: AppWorld, place: Task):
    """Two playlists, made in either order, have each other's ids; what refers to them goes along."""
    titles = _unliked(appworld, place)
    makes = [skill("spotify.create_playlist", playlist=name) for name in ("Slow Sundays", "Late Trains")]
    fills = [
        skill("spotify.add_song_to_playlist", title=title, playlist=name)
        for title, name in zip(titles, ("Slow Sundays", "Late Trains"), strict=True)
    ]
    task = synthesized(place, "Make two playlists.", *makes, *fills, skill(ENDING))
    straight = replay(appworld, task, (*makes, *fills, skill(ENDING)))
    turned = replay(appworld, task, (*reversed(makes), *reversed(fills), skill(ENDING)))
    assert straight.trajectory.reward == turned.trajectory.reward == 1.0
    assert straight.states[-1] == turned.states[-1]
    crossed = [
        skill("spotify.add_song_to_playlist", title=title, playlist=name)
        for title, name in zip(titles, ("Late Trains", "Slow Sundays"), strict=True)
    ]
    assert replay(appworld, task, (*makes, *crossed, skill(ENDING))).trajectory.reward == 0.0


def test_of_when_something_was_it_is_told_whether_it_was(appworld: AppWorld, place: Task):
    """Denying a request leaves nothing but the time of it."""
    asks = LOGIN.replace("spotify", "venmo") + (
        "friend = apis.venmo.search_friends(access_token=token)[0]['email']\n"
        "apis.venmo.create_payment_request(user_email=friend, amount=5, description='tea', access_token=token)"
    )
    episode = appworld.start(place)
    episode.reset()
    assert episode.step(Action(f"```python\n{asks}\n```")).ok
    (row,) = episode.state()["tables"]["venmo.PaymentRequest"]["added"]
    assert {name: row[name] for name in ("created_at", "approved_at", "denied_at")} == {
        "created_at": True, "approved_at": False, "denied_at": False,
    }  # fmt: skip
    assert "last_logged_in" not in str(episode.state())
    episode.close()


def test_many_episodes_of_one_synthesized_task_share_its_reference(appworld: AppWorld, place: Task):
    title, _ = _unliked(appworld, place)
    actions = (skill("spotify.like_song", title=title), skill(ENDING))
    task = synthesized(place, "Like that one.", *actions)
    rewards: list[float] = []
    threads = [
        threading.Thread(target=lambda: rewards.append(play(appworld, task, follow(actions), max_turns=2).reward))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0] * 4


def test_the_scripted_explorer_finds_tasks_that_validation_accepts(appworld: AppWorld, place: Task):
    explorer = ScriptedExplorer(runs=2, steps=3, ending=ENDING, neighbours=appworld.neighbours)
    exploration = explorer.explore(appworld, place, None, (7,), appworld.popularity())
    assert exploration.failures == ()
    validate = Validation(appworld)
    verdicts = [validate(draft, lambda id: False, explorer) for draft in explorer.abstract(exploration, appworld, 3)]
    accepted = [task for verdict, task in verdicts if task is not None]
    assert accepted, verdicts
    assert all(task.setup == place.setup and task.query for task in accepted)


def test_where_ground_truth_could_be_read_nothing_starts(appworld: AppWorld):
    """A child that is not enclosed reads what any user may."""
    data = str(roots.find_public_root("tiny") / "data")
    with pytest.raises(EnvironmentFailure, match="could read the ground truth"):
        isolate(
            "environments.appworld.inside",
            python=interpreter("appworld", environments.appworld.RECIPE),
            enclosed=False,
            data=data,
            truth="/etc",
            seconds=1.0,
        ).tools()


def test_a_setup_of_another_kind_is_refused(appworld: AppWorld):
    with pytest.raises(ValueError, match="expected"):
        appworld.start(Task("appworld", "x", {"task": "a_1", "scenario": "b_1"}))
    lost = play(appworld, Task("appworld", "x", {"scenario": "../../etc"}), follow([]), max_turns=1)
    assert lost.outcome == "environment_error"


def _unliked(appworld: AppWorld, place: Task) -> list[str]:
    """Two songs that the supervisor neither likes nor has on a new playlist."""
    episode = appworld.start(place)
    episode.reset()
    block = LOGIN + (
        "liked = apis.spotify.show_liked_songs(access_token=token, page_limit=20)\n"
        "songs = [s['title'] for p in range(4) for s in apis.spotify.search_songs(page_index=p)]\n"
        "print('|'.join([s for s in songs if s not in {one['title'] for one in liked}][:2]))"
    )
    titles = episode.step(Action(f"```python\n{block}\n```")).text.split("|")
    episode.close()
    return titles
