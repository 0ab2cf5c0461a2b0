import collections
import dataclasses
import random
from collections.abc import Sequence

import pytest
from broken_desks import BrokenDesk, always, every
from records import DESK, call

import environments
from cojax.environment import play
from cojax.environment.replay import follow, replay
from cojax.explorer.scripted.explorer import ScriptedExplorer, vary
from cojax.types import Action, Call, Evaluation, ExplorationContext, Message, Observation, Task, Triplet

DESK_ENVIRONMENT = environments.load("desk")
EXPLORER = ScriptedExplorer(neighbours=DESK_ENVIRONMENT.neighbours)
PLACE = Task("desk", "", DESK)
SEND = (call("contacts_find", person="ana"), call("mail_send", address="box11", text="amber"), call("finish"))
PARENT = Task("desk", "mail amber to ana", DESK, SEND)


def context(*focus: str, kind: str = "boundary") -> ExplorationContext:
    return ExplorationContext(PARENT, kind, focus_patterns=focus)  # type: ignore[arg-type]


def tools_used(explored) -> collections.Counter[str]:
    return collections.Counter(triplet.action.calls[0].name for triplet in explored.triplets)


def test_runs_are_independent_and_every_explored_action_works() -> None:
    explored = EXPLORER.explore(DESK_ENVIRONMENT, PLACE, None, (0,))
    assert collections.Counter(triplet.run for triplet in explored.triplets) == {
        0: 5,
        1: 5,
        2: 5,
        3: 5,
    }  # 3 for a draft, 2 beyond
    assert all(triplet.observation.ok for triplet in explored.triplets)
    assert explored.failures == ()
    assert "finish" not in tools_used(explored)
    runs = [[t.action for t in explored.triplets if t.run == run] for run in range(4)]
    assert all(runs[0] != other for other in runs[1:])


def test_the_seed_decides() -> None:
    assert EXPLORER.explore(DESK_ENVIRONMENT, PLACE, None, (3, 1)) == EXPLORER.explore(
        DESK_ENVIRONMENT, PLACE, None, (3, 1)
    )
    assert EXPLORER.explore(DESK_ENVIRONMENT, PLACE, None, (3, 1)) != EXPLORER.explore(
        DESK_ENVIRONMENT, PLACE, None, (3, 2)
    )


def test_unguided_runs_follow_their_weights() -> None:
    loose = dataclasses.replace(EXPLORER, runs=20, chase=0.0)
    only = tools_used(loose.explore(DESK_ENVIRONMENT, PLACE, None, (0,), {"files_read": 1.0, "notes_add": 1.0}))
    assert set(only) == {"files_read", "notes_add"}
    uniform = tools_used(loose.explore(DESK_ENVIRONMENT, PLACE, None, (0,), None))
    skewed = tools_used(loose.explore(DESK_ENVIRONMENT, PLACE, None, (0,), DESK_ENVIRONMENT.popularity()))
    assert len(uniform) >= 20
    assert max(skewed.values()) > 2 * max(uniform.values())


def test_guided_runs_go_to_the_focus_and_its_neighbours() -> None:
    many = dataclasses.replace(EXPLORER, runs=30)
    unguided = tools_used(many.explore(DESK_ENVIRONMENT, PLACE, None, (0,)))
    guided = tools_used(many.explore(DESK_ENVIRONMENT, PARENT, context("calendar_move", kind="rare"), (0,)))
    assert guided["calendar_move"] > 2 * unguided["calendar_move"]
    calendar = [name for name in guided if name.startswith("calendar_")]
    assert sum(guided[name] for name in calendar) > 1.5 * sum(unguided[name] for name in calendar)


def test_a_made_up_tool_in_the_focus_does_no_harm() -> None:
    explored = EXPLORER.explore(DESK_ENVIRONMENT, PARENT, context("files_fly", "mail_flag"), (0,))
    assert len(explored.triplets) == 24  # 4 runs of 2 + 2 + 2


def test_what_failed_is_not_repeated() -> None:
    banned = dataclasses.replace(context("mail_flag", kind="rare"), do_not_repeat=("mail_flag(sender=ana)",))
    explored = dataclasses.replace(EXPLORER, runs=20).explore(DESK_ENVIRONMENT, PARENT, banned, (0,))
    assert call("mail_flag", sender="ana") not in [triplet.action for triplet in explored.triplets]


def test_a_rehearsal_drops_replaces_and_adds() -> None:
    drawn = [vary(["a", "b", "c"], iter("xyzuvw"), 0.4, random.Random(seed)) for seed in range(1000)]
    assert {len(plan) for plan in drawn} == {0, 1, 2, 3, 4}
    assert 2.8 < sum(map(len, drawn)) / 1000 < 3.0  # 3 − 3 · 0.2 + 0.5 = 2.9
    assert vary(["a", "b"], iter("x"), 0.0, random.Random(1)) in (["a", "b"], ["x", "a", "b"])


@pytest.mark.parametrize("seed", range(5))
def test_drafts_are_distinct_worded_and_solved_by_their_own_solution(seed: int) -> None:
    explored = EXPLORER.explore(DESK_ENVIRONMENT, PLACE, None, (seed,))
    drafts = tuple(EXPLORER.abstract(explored, DESK_ENVIRONMENT, 3))
    assert len({draft.query for draft in drafts}) == len(drafts) == 3
    for draft in drafts:
        task = Task(draft.environment, draft.query, draft.setup, draft.solution)
        run = replay(DESK_ENVIRONMENT, task, draft.solution)
        assert run.complete
        assert run.trajectory.reward == 1.0
        assert 2 <= len(draft.solution) <= 4  # 1 to `short` actions, and the ending
        assert draft.solution[-1].calls[0].name == "finish"


def test_guided_drafts_touch_the_focus_and_do_not_drift_to_the_longest() -> None:
    sizes, touched = [], 0
    for seed in range(30):
        guided = context("mail_send")
        explored = EXPLORER.explore(DESK_ENVIRONMENT, PARENT, guided, (seed,))
        for draft in EXPLORER.abstract(explored, DESK_ENVIRONMENT, 1):
            sizes.append(len(draft.solution) - 1)
            touched += any(action.calls[0].name == "mail_send" for action in draft.solution)
    assert len(sizes) >= 28
    assert touched >= 0.6 * len(sizes)
    assert min(sizes) >= 1
    assert max(sizes) <= 6
    assert 1.5 <= sum(sizes) / len(sizes) <= 3.5  # the parent has 2


def test_lost_runs_are_counted_and_the_others_kept() -> None:
    explored = EXPLORER.explore(BrokenDesk(on=every("reset", 2)), PLACE, None, (0,))
    assert explored.failures == ("reset: OSError: reset is on fire",) * 2
    assert {triplet.run for triplet in explored.triplets} == {0, 2}
    nothing = EXPLORER.explore(BrokenDesk(on=always("affordances")), PLACE, None, (0,))
    assert nothing.triplets == ()
    assert len(nothing.failures) == 4


def test_reflection_reads_a_real_episode() -> None:
    slip = (call("mail_send", address="ana", text="amber"), call("finish"))
    failed = play(DESK_ENVIRONMENT, PARENT, follow(slip), max_turns=2, episode="e1")
    reflected = EXPLORER.reflect(failed, "trajectory")
    assert reflected.focus_patterns == ("mail_send",)
    assert reflected.do_not_repeat == ("mail_send(address=ana, text=amber)",)
    assert "mail_send(address=ana, text=amber): error" in reflected.failure_cause
    assert "checks failed" in reflected.failure_cause


class Bells:
    """A belfry whose user takes several turns, "1,2/3": an action without calls ends one."""

    name = "bells"

    def tools(self) -> tuple:
        return ({"type": "function", "function": {"name": "ring", "parameters": {"properties": {"bell": {}}}}},)

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return ()

    def start(self, task: Task) -> "Ringing":
        return Ringing(task.query.count("/"))

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        words = "".join(str(call.arguments["bell"]) for step in steps for call in step.action.calls or [SLASH])
        return words[:-1] if words.endswith("/") and words != "/" and "//" not in words else None


SLASH = Call("turn", {"bell": "/"})


class Ringing:
    def __init__(self, turns: int) -> None:
        self.left, self.rung = turns, ""

    def reset(self) -> tuple[Message, ...]:
        return (Message("user", ""),)

    def tools(self) -> tuple:
        return Bells().tools()

    def step(self, action: Action) -> Observation:
        self.rung += "".join(str(call.arguments["bell"]) for call in action.calls)
        self.left -= not action.calls
        return Observation((Message("tool", "dong"),), done=self.left < 0)

    def state(self) -> dict:
        return {"rung": self.rung, "left": self.left}

    def affordances(self) -> tuple[Action, ...]:
        return (*(Action(calls=(Call("ring", {"bell": bell}),)) for bell in range(1, 8)), Action())

    def evaluate(self) -> Evaluation:
        return Evaluation(0.0)

    def close(self) -> None:
        pass


def drafts_of_bells(chance: float) -> list[tuple[str, int]]:
    explorer = ScriptedExplorer(ending="", cut=chance)
    place = Task("bells", "", {})
    drafts = []
    for seed in range(20):
        explored = explorer.explore(Bells(), place, None, (seed,))
        drafts += explorer.abstract(explored, Bells(), 2)
    return [(draft.query, sum(not action.calls for action in draft.solution)) for draft in drafts]


def test_an_action_without_calls_ends_drafts_of_one_turn() -> None:
    drafts = drafts_of_bells(0.0)
    assert len(drafts) == 40
    assert {endings for _, endings in drafts} == {1}
    assert not any("/" in query for query, _ in drafts)


def test_drafts_are_cut_into_several_turns_and_replayed_with_as_many() -> None:
    drafts = drafts_of_bells(0.5)
    assert all(query.count("/") + 1 == endings for query, endings in drafts)
    assert {endings for _, endings in drafts} == {1, 2, 3}
    assert {query.count("/") - len(query) // 2 for query, _ in drafts_of_bells(1.0)} == {0}  # after every step


def test_cuts_need_an_ending_without_calls() -> None:
    with pytest.raises(ValueError, match="the tool 'finish' ends the episode"):
        ScriptedExplorer(cut=0.5)
    with pytest.raises(ValueError, match="expected a probability"):
        ScriptedExplorer(ending="", cut=1.5)
