"""Tasks, demonstrations and the language: every skill, every split."""

import collections
import itertools
import random

import pytest
from desk_queries import read

import environments
from cojax.environment import play
from cojax.types import Action, Call, Task, Triplet, Turn, content_hash, normalise, to_json
from environments.desk import generator, office
from environments.desk.episode import DeskEpisode
from environments.desk.office import TOOLS, WORDS
from environments.desk.skills import SKILLS

DESK = environments.load("desk")
# Tasks of each split; those of the last are long, and take long to draw.
SPLITS = {"seed": 300, "dev": 300, "eval": 300, "challenge": 100}


@pytest.fixture(scope="module")
def tasks():
    return {split: DESK.tasks(split, count) for split, count in SPLITS.items()}


def earned(task, actions):
    remaining = iter(actions)
    trajectory = play(DESK, task, lambda *_: Turn(next(remaining)), max_turns=len(actions))
    return trajectory.reward


def done(task):
    episode = DESK.start(task)
    return [Triplet(action, episode.step(action), 0) for action in task.solution]


def triplet(name, arguments, observed):
    episode = DeskEpisode(Task("desk", "", office.new_office(random.Random(0))))
    refused = episode.step(Action())  # for an Observation of the right shape
    message = type(refused.messages[0])("tool", observed)
    return Triplet(Action(calls=(Call(name, arguments),)), type(refused)((message,)), 0)


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.wording)
def test_each_skill_is_solvable_and_every_change_of_it_matters(skill):
    rng = random.Random(skill.wording)
    branches = collections.Counter()
    for _ in range(20):
        setup = office.new_office(rng)
        plan = generator._draw_plan([skill], setup, rng)
        calls = generator.solve(plan, setup) if plan else None
        if calls is None:
            continue
        query = skill.word_query(plan[0][1])
        task = Task("desk", query, setup, tuple(Action(calls=(call,)) for call in calls))
        assert earned(task, task.solution) == 1.0
        assert read(query) == plan
        matter = [i for i, call in enumerate(calls) if call.name != "finish" and not TOOLS[call.name].gives]
        assert len(matter) == (0 if skill.is_answer else 1)
        for index in matter:
            assert earned(task, task.solution[:index] + task.solution[index + 1 :]) == 0.0
        if skill.is_answer:
            assert earned(task, (Action(calls=(Call("finish"),)),)) == 0.0
        demonstration = generator.play_demonstration(task, plan, (1.0, 1.0), rng)
        assert earned(task, demonstration) == 0.0, (query, demonstration)
        assert earned(task, generator.play_demonstration(task, plan, (0.0, 0.0), rng)) == 1.0
        branches[calls[-2].name] += 1
    assert len(branches) == len(skill.branches)
    assert sum(branches.values()) >= 15


def test_the_table_is_as_rich_as_promised():
    looking = [skill for skill in SKILLS if not skill.is_answer and any(t.bound_name for t in skill.branches[0])]
    applications = [{TOOLS[t.tool_name].application for t in skill.branches[0]} for skill in looking]
    assert len(SKILLS) == 30
    assert len(TOOLS) == 26
    assert len(looking) == 10
    assert sum(len(used) > 1 for used in applications) == 6
    assert sum(skill.equal_names is not None for skill in SKILLS) == 2
    assert sum(skill.is_answer for skill in SKILLS) == 4


@pytest.mark.parametrize("split", SPLITS)
def test_solutions_earn_their_reward_within_the_limits(tasks, split):
    most = generator.SPLITS[split].max_calls
    for task in tasks[split]:
        assert earned(task, task.solution) == 1.0
        assert len(task.solution) <= most + 1
        assert task.solution[-1].calls[0].name == "finish"
        assert (task.environment, task.origin, task.lineage) == ("desk", "seed", None)
    lengths = collections.Counter(len(read(task.query)) for task in tasks[split])
    assert set(lengths) == set(generator.SPLITS[split].length_weights)


def test_splits_share_no_query_and_ids_are_distinct(tasks):
    for split, count in SPLITS.items():
        assert len({task.id for task in tasks[split]}) == count
    for one, other in itertools.combinations(SPLITS, 2):
        assert not {normalise(t.query) for t in tasks[one]} & {normalise(t.query) for t in tasks[other]}
    other_seed = DESK.tasks("seed", 300, seed=7)
    assert len({task.id for task in other_seed} & {task.id for task in tasks["seed"]}) == 0
    assert not {t.query for t in other_seed} & {t.query for t in tasks["eval"]}


def test_tasks_are_the_same_every_time_and_a_larger_count_extends(tasks):
    again = environments.load("desk").tasks("dev", 120)
    assert again == tasks["dev"][:120]
    assert [task.solution for task in again] == [task.solution for task in tasks["dev"][:120]]
    # Frozen: these must never change, or published figures on the evaluation split lose their meaning.
    assert content_hash([task.id for task in tasks["eval"]]) == "41f91e8586cd31a2"
    assert content_hash([to_json(task.solution) for task in tasks["eval"]]) == "dcab7988c0ee2946"


def test_skills_are_uniform_on_dev_skewed_on_seed_and_rare_on_challenge(tasks):
    def share_of_popular(split):
        skills = [skill for task in tasks[split] for skill, _ in read(task.query)]
        return sum(SKILLS.index(skill) < 15 for skill in skills) / len(skills)

    assert 0.45 < share_of_popular("dev") < 0.55
    assert 0.53 < share_of_popular("seed") < 0.63
    assert share_of_popular("challenge") < 0.40


@pytest.mark.parametrize("arguments", [("train", 1), ("", 1)])
def test_an_unknown_split_is_refused(arguments):
    with pytest.raises(ValueError, match="not found; available: seed, dev, eval, challenge"):
        DESK.tasks(*arguments)


@pytest.mark.parametrize("split", SPLITS)
def test_the_phrase_of_a_solution_means_that_solution(tasks, split):
    same = 0
    for task in tasks[split]:
        query = DESK.phrase(done(task))
        assert query is not None, task.query
        assert generator.solve(read(query), task.setup) == tuple(action.calls[0] for action in task.solution)
        same += query == task.query
    # Only the words that a condition leaves open may differ.
    assert same > SPLITS[split] / 2


def test_the_phrase_of_a_random_walk_means_what_the_walk_did():
    """Walks keep their changes and the look-ups that a grammar can explain; read back, they reach the same office."""
    rng, phrased = random.Random(3), 0
    for number in range(200):
        task = Task("desk", "", office.new_office(rng))
        episode, steps = DESK.start(task), []
        for _ in range(rng.randint(1, 6)):
            options = [action for action in episode.affordances() if action.calls[0].name != "finish"]
            by_tool = collections.defaultdict(list)
            for action in options:
                by_tool[action.calls[0].name].append(action)
            action = rng.choice(by_tool[rng.choice(sorted(by_tool))])
            steps.append(Triplet(action, episode.step(action), number))
        query = DESK.phrase(steps)
        if query is None:
            continue
        phrased += 1
        calls = generator.solve(read(query), task.setup)
        assert calls is not None, (query, steps)
        replay = DeskEpisode(task)
        for call in calls[:-1]:
            assert replay.step(Action(calls=(call,))).ok
        assert replay.state() == episode.state(), (query, steps)
    assert phrased > 30


FIND = ("contacts_find", {"person": "ana"}, "box11")
SEND = ("mail_send", {"address": "box11", "text": "mint"}, "ok")
DROP = ("notes_delete", {"note": "memo"}, "ok")
READ = ("files_read", {"file": "report"}, "amber")


@pytest.mark.parametrize(
    ("steps", "query"),
    [
        ([FIND, SEND], "mail mint to ana"),
        ([FIND, DROP, SEND], "delete note memo, then mail mint to ana"),
        ([FIND, SEND, SEND], "mail mint to ana, then mail mint to ana"),
        ([READ, FIND, SEND], None),
        ([SEND], None),
        ([FIND], None),
        ([FIND, ("finish", {"answer": "box11"}, "ok")], "tell the address of ana"),
        ([FIND, ("finish", {"answer": "box12"}, "ok")], None),
        ([FIND, ("finish", {}, "ok")], None),
        ([DROP, ("finish", {}, "ok")], "delete note memo"),
        ([("finish", {}, "ok"), DROP], None),
        ([("finish", {}, "ok")], None),
        ([], None),
        ([("notes_delete", {"note": "scribbles"}, "ok")], None),
        ([READ, ("notes_add", {"note": "todo", "text": "amber"}, "ok")], "note text of report as todo"),
        # The text was looked up before it changed: no query says "the text that report had".
        (
            [
                READ,
                ("files_write", {"file": "report", "text": "mint"}, "ok"),
                ("notes_add", {"note": "todo", "text": "amber"}, "ok"),
            ],
            None,
        ),
        (
            [("calendar_day", {"event": "standup"}, "monday"), ("calendar_cancel", {"event": "standup"}, "ok")],
            "if standup is on monday cancel it otherwise postpone it to FREE",
        ),
        (
            [
                ("calendar_day", {"event": "standup"}, "monday"),
                ("calendar_move", {"event": "standup", "day": "friday"}, "ok"),
            ],
            "if standup is on FREE cancel it otherwise postpone it to friday",
        ),
    ],
)
def test_phrase(steps, query):
    phrased = DESK.phrase([triplet(*step) for step in steps])
    if query and "FREE" in query:
        free = (set(phrased.split()) - set(query.split())).pop()
        assert free in set(WORDS["day"]) - {"monday", "friday"} or (free == "friday" and "friday" not in query)
        phrased = phrased.replace(free, "FREE")
    assert phrased == query


def test_phrase_has_no_words_for_a_refused_call():
    episode = DeskEpisode(DESK.tasks("dev", 1)[0])
    refused = Action(calls=(Call("notes_delete", {"note": "nothing"}),))
    assert DESK.phrase([Triplet(refused, episode.step(refused), 0)]) is None


def test_read_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="clause 'move ana to archive' matches no skill"):
        read("cancel standup, then move ana to archive")


def test_demonstrations_are_noisier_for_rare_skills():
    rewards = collections.defaultdict(list)
    for task, actions in DESK.demonstrations(1000, seed=1):
        assert actions[-1].calls[0].name == "finish"
        plan = read(task.query)
        if len(plan) == 1:
            rewards[SKILLS.index(plan[0][0]) // 10].append(earned(task, actions))
    share = {third: sum(values) / len(values) for third, values in rewards.items()}
    # Expected: 1 − the mean noise of each third, .22, .48 and .74.
    assert share[0] == pytest.approx(0.78, abs=0.07)
    assert share[1] == pytest.approx(0.52, abs=0.12)
    assert share[2] == pytest.approx(0.26, abs=0.12)


def test_demonstrations_repeat_and_extend():
    first = list(DESK.demonstrations(30, seed=2))
    assert list(DESK.demonstrations(40, seed=2))[:30] == first
    assert [task.id for task, _ in first] == [task.id for task in DESK.tasks("seed", 30, seed=2)]
    clean = list(DESK.demonstrations(30, seed=2, noise=(0.0, 0.0)))
    assert all(actions == task.solution for task, actions in clean)


def test_popularity_is_skewed_and_neighbours_share_an_application():
    popularity = DESK.popularity()
    assert set(popularity) == {*TOOLS, "finish"}
    ranked = sorted(popularity.values(), reverse=True)
    assert ranked[:3] == pytest.approx([1.0, 0.4061, 0.2397], abs=1e-4)
    assert next(iter(popularity)) == "files_move"
    assert DESK.neighbours("folders_share") == ("folders_create",)
    assert len(DESK.neighbours("files_read")) == 6
    assert DESK.neighbours("finish") == ()


def test_the_lexicon_holds_every_word_that_is_ever_said(tasks):
    values, texts = DESK.lexicon()
    said = set(values)
    for text in texts:
        said.update(text.replace(",", " ").replace(":", " ").split())
    heard = set()
    for task in itertools.chain.from_iterable(tasks.values()):
        heard.update(task.query.replace(",", " ").split())
        for step in done(task):
            heard.update(step.observation.text.split())
    for task, actions in DESK.demonstrations(200, seed=3, noise=(1.0, 1.0)):
        episode = DESK.start(task)
        for action in actions:
            heard.update(episode.step(action).text.replace(":", " ").split())
            heard.update(action.calls[0].arguments.values())
    assert heard <= said
    assert len(values) == len(set(values)) == 151
    assert len(said) == 208
    wordings = {word for skill in SKILLS for word in skill.wording.split() if "{" not in word}
    assert not wordings & set(values)


def test_reserved_shelves_of_a_new_office():
    setup = office.new_office(random.Random(1))
    assert {shelf: len(setup[shelf]) for shelf in office.SHELVES} == {
        "files": 4,
        "folders": 3,
        "notes": 3,
        "contacts": 4,
        "calendar": 3,
        "mail": 3,
        "sent": 0,
    }
