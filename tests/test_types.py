"""Records: content hashes, JSON round trips, validity."""

import dataclasses

from cojax.types import (
    Action,
    Call,
    Check,
    Group,
    Lineage,
    Task,
    Trajectory,
    Turn,
    canonical,
    from_json,
    signature,
    to_json,
)

TASK = Task("desk", "Mail  the Report", {"b": 1, "a": [2]}, (Action(calls=(Call("send", {"to": "ana"}),)),))


def test_id_is_a_content_hash_of_what_is_asked_and_where():
    again = dataclasses.replace(TASK, query="mail the report", setup={"a": [2], "b": 1}, solution=(), origin="rare")
    assert again.id == TASK.id
    assert len(TASK.id) == 16
    assert dataclasses.replace(TASK, query="mail a report").id != TASK.id
    assert dataclasses.replace(TASK, setup={"a": [2], "b": 2}).id != TASK.id
    assert dataclasses.replace(TASK, environment="bfcl").id != TASK.id


def test_id_is_stable_over_versions():
    assert Task("desk", "hello", {}).id == "b3a87e277a273885"


def test_canonical_json_sorts_keys():
    assert canonical({"b": 1, "a": "é"}) == '{"a":"\\u00e9","b":1}'


def test_json_round_trip_keeps_everything():
    task = dataclasses.replace(TASK, lineage=Lineage("p", "rare", "1-p-0", runs=(1, 2), evidence=("ok",), step=3))
    turn = Turn(Action("x", error="no call"), prompt_tokens=(1, 2), action_tokens=(3,), action_logprobs=(-0.5,))
    trajectory = Trajectory(task, "1-p-0", turns=(turn,), reward=0.5, checks=(Check("a", True),), outcome="timeout")
    assert from_json(Trajectory, to_json(trajectory)) == trajectory


def test_partial_credit_is_the_share_of_checks():
    assert Trajectory(TASK, checks=(Check("a", True), Check("b", False))).partial == 0.5
    assert Trajectory(TASK, reward=1.0).partial == 1.0


def test_lost_episodes_are_outside_the_score():
    lost = Trajectory(TASK, reward=0.0, outcome="environment_error")
    late = Trajectory(TASK, reward=0.0, outcome="timeout")
    group = Group(TASK, (Trajectory(TASK, reward=1.0), lost, late))
    assert [t.outcome for t in group.valid] == ["finished", "timeout"]
    assert group.score == 0.5
    assert Group(TASK, (lost,)).score == 0.0


def test_a_signature_reads_like_a_call():
    move = Call("files_move", {"file": "report", "folder": "taxes"})
    assert signature(Action(calls=(move, Call("finish")))) == "files_move(file=report, folder=taxes); finish()"
    assert signature(Action(text="apis.files.move()")) == "apis.files.move()"
