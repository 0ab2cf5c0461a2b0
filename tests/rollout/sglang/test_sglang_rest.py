"""Servers that share accelerators with the learner: they give memory back, and have it again before new weights."""

import json
import threading
from pathlib import Path

import pytest
from fake_sglang import CONFIG, PARAMS, FakeServer, ask, until, weights
from patience import patience

from cojax.environment import EngineError
from cojax.policy.parameters import hash_leaves, to_hf
from cojax.rollout.engine import Weights
from cojax.rollout.sglang.server import Server
from cojax.settings.tree import SGLangSettings

ALL = {"weights", "kv_cache", "cuda_graph"}
QUIET = SGLangSettings(sync_deadline=2.0, probe_every=60.0)


def since(server: FakeServer, start: int) -> list[tuple[str, dict]]:
    return list(zip(server.calls[start:], server.bodies[start:], strict=True))


def test_memory_goes_once_the_server_is_idle_and_comes_back_weights_first(pair, make) -> None:
    engine = make(pair, release_memory=True, limits=QUIET)
    engine.load(weights(0))
    start = len(pair[0].calls)
    engine.rest()
    assert pair[0].released == pair[1].released == ALL
    assert [name for name, _ in since(pair[0], start)] == [
        "server_info",
        "pause_generation",
        "release_memory_occupation",
    ]
    start = len(pair[0].calls)
    engine.load(weights(1))
    calls = since(pair[0], start)
    assert [(name, body.get("tags")) for name, body in calls] == [
        ("server_info", None),  # can it
        ("server_info", None),  # is it the same
        ("pause_generation", None),
        ("resume_memory_occupation", ["weights"]),
        ("update_weights_from_disk", None),
        ("resume_memory_occupation", ["cuda_graph", "kv_cache"]),
        ("continue_generation", None),
        ("model_info", None),
    ]
    assert not pair[0].released | pair[1].released
    assert ask(engine).weights_version == 1


def test_weights_that_were_served_before_a_rest_are_sent_but_not_written_again(pair, make) -> None:
    engine = make(pair[:1], release_memory=True, limits=QUIET)
    engine.load(Weights(0, lambda: to_hf(CONFIG, PARAMS), fingerprint=lambda: hash_leaves(PARAMS)))
    engine.rest()
    written: list[int] = []
    engine.load(Weights(0, lambda: iter(written.append(1) or ()), fingerprint=lambda: hash_leaves(PARAMS)))
    assert not written
    assert pair[0].count("update_weights_from_disk") == 2
    assert ask(engine).weights_version == 0


def test_a_server_between_coming_up_and_its_rest_is_no_reason_to_leave_all_asleep(pair, make) -> None:
    engine = make(pair, release_memory=True, limits=QUIET)
    engine.load(Weights(0, lambda: to_hf(CONFIG, PARAMS), fingerprint=lambda: hash_leaves(PARAMS)))
    rest, held = engine.fleet._rest_server, []

    async def later(server: Server) -> None:
        if server is engine.fleet.servers[0]:
            held.append(server)
        else:
            await rest(server)

    engine.fleet._rest_server = later
    engine.rest()
    assert held[0].is_up
    engine.load(Weights(0, lambda: to_hf(CONFIG, PARAMS), fingerprint=lambda: hash_leaves(PARAMS)))
    assert not pair[1].released
    assert all(server.is_up for server in engine.fleet.servers)


def test_a_server_that_was_started_again_meanwhile_is_not_given_its_memory_twice(pair, make) -> None:
    """A real one does not survive that."""
    engine = make(pair[:1], release_memory=True, limits=QUIET)
    engine.load(weights(0))
    engine.rest()
    pair[0].close()
    pair[0] = FakeServer(pair[0].port)
    engine.load(weights(1))
    assert pair[0].count("resume_memory_occupation") == 0
    assert ask(engine).weights_version == 1


def test_servers_that_a_killed_trainer_left_asleep_are_woken_by_the_next(pair, make, tmp_path: Path) -> None:
    engine = make(pair, release_memory=True, limits=QUIET)
    engine.load(weights(0))
    engine.rest()
    # What a killed one leaves: the record, and servers that nobody wakes.
    record = (tmp_path / "asleep.json").read_bytes()
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "asleep.json").write_bytes(record)
    pair[1].close()
    pair[1] = FakeServer(pair[1].port)  # started again, it is awake
    successor = make(pair, folder=tmp_path / "next", limits=QUIET)
    successor.load(weights(1))
    assert all(server.is_up for server in successor.fleet.servers)
    assert not pair[0].released | pair[1].released
    assert pair[1].count("resume_memory_occupation") == 0
    assert json.loads((tmp_path / "next" / "asleep.json").read_text()) == {}
    # Of one that was killed while a server took its weights again, only the rest is missing.
    (tmp_path / "last").mkdir()
    pair[0].released = {"kv_cache"}
    incarnation = json.dumps([state["startup_time"] for state in pair[0].about["internal_states"]])
    (tmp_path / "last" / "asleep.json").write_text(json.dumps({pair[0].url: [incarnation, ["kv_cache"]]}))
    last = make(pair, folder=tmp_path / "last", limits=QUIET)
    last.load(weights(2))
    assert not pair[0].released
    assert last.fleet.servers[0].is_up


def test_a_rest_that_cannot_be_noted_is_not_taken_and_damaged_notes_are_told(pair, make, tmp_path, caplog) -> None:
    (tmp_path / "asleep.json").mkdir()
    engine = make(pair[:1], release_memory=True, limits=QUIET)
    assert "asleep.json cannot be read" in caplog.text
    engine.load(weights(0))
    engine.rest()
    assert "did not give its memory back" in caplog.text
    assert pair[0].count("release_memory_occupation") == 0
    assert not pair[0].paused


def test_a_load_waits_for_a_rest_that_is_under_way(pair, make) -> None:
    engine = make(pair, release_memory=True)
    engine.load(weights(0))
    pair[0].close()
    until(lambda: not engine.fleet.servers[0].is_up)
    engine.rest()
    asked = threading.Event()

    def behave(path: str, body: dict, answer: dict) -> int:
        # Asks which process it is, for the rest: what follows must not come between an update's steps.
        if path == "server_info" and engine.fleet.servers[0].state == "resting" and not asked.is_set():
            asked.set()
            until(lambda: engine.fleet._is_syncing)
        return 200

    pair[0] = FakeServer(pair[0].port)
    pair[0].behave = behave
    assert asked.wait(patience(10))
    engine.load(weights(1))
    until(lambda: pair[0].count("release_memory_occupation") == 1)
    until(lambda: all(server.is_up for server in engine.fleet.servers))
    assert not pair[0].released
    assert {ask(engine, f"s{number}").weights_version for number in range(4)} == {1}


def test_a_server_that_comes_back_during_the_rest_rests_too(pair, make) -> None:
    engine = make(pair, release_memory=True)
    engine.load(weights(0))
    pair[0].close()
    until(lambda: not engine.fleet.servers[0].is_up)
    engine.rest()
    pair[0] = FakeServer(pair[0].port)
    until(lambda: pair[0].released == ALL)
    assert engine.fleet.servers[0].state == "resting"
    engine.load(weights(1))
    assert all(server.is_up for server in engine.fleet.servers)


def test_what_fails_half_way_is_brought_back_by_its_watch(pair, make) -> None:
    engine = make(pair, release_memory=True)
    engine.load(weights(0))
    engine.rest()
    pair[0].behave = lambda path, body, answer: 400 if path == "update_weights_from_disk" else 200
    engine.load(weights(1))
    assert not engine.fleet.servers[0].is_up
    assert pair[0].paused, "it must not go on without memory for its cache"
    pair[0].behave = lambda path, body, answer: 200
    until(lambda: engine.fleet.servers[0].is_up)
    assert not pair[0].released
    assert not pair[0].paused


def test_servers_are_left_with_their_memory(pair, make) -> None:
    engine = make(pair, release_memory=True, limits=QUIET)
    engine.load(weights(0))
    engine.rest()
    engine.close()
    assert [(server.released, server.paused) for server in pair] == [(set(), False)] * 2


def test_a_server_that_cannot_is_an_error_that_names_the_fix(pair, make) -> None:
    engine = make(pair[:1], release_memory=True)
    pair[0].about["enable_memory_saver"] = False
    with pytest.raises(EngineError, match=r"keeps its memory: start it with --enable-memory-saver, or unset sglang\."):
        engine.load(weights(0))
    assert pair[0].count("update_weights_from_disk") == 0
    pair[0].about["device"] = "cpu"
    engine.load(weights(0))


def test_by_default_nothing_is_given_back(pair, make) -> None:
    engine = make(pair[:1], limits=QUIET)
    engine.rest()
    engine.load(weights(0))
    engine.rest()
    assert not pair[0].released
    assert ask(engine).tokens == (7, 7, 7)
    with pytest.raises(ValueError, match="they cannot give their memory back"):
        make(pair, follow=True, release_memory=True, folder=Path("/nowhere"))
