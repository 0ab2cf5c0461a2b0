"""Servers that fall out and come back: none holds up another, and none serves other weights unnoticed."""

import asyncio
import dataclasses
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from commands import Commands
from compiling import drawn
from fake_sglang import CONFIG, LIMITS, PARAMS, FakeServer, ask, hang_on, until, weights
from patience import patience

from cojax.environment import EngineError
from cojax.policy.parameters import hash_leaves, to_hf
from cojax.policy.transformer import Params
from cojax.rollout.engine import Weights
from cojax.rollout.sglang.client import Connections
from cojax.rollout.sglang.engine import SGLangEngine, WeightsFolder, find_newest_version
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.server import LabelledWeights, ServerProcess
from cojax.settings.tree import SGLangSettings


def fingerprinted(version: int, params: Params) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, params), fingerprint=lambda: hash_leaves(params))


def test_a_sync_does_not_wait_for_a_server_that_starts_which_takes_what_is_then_current(launched, tmp_path) -> None:
    limits = SGLangSettings(startup_deadline=20.0, sync_deadline=2.0, probe_every=0.05)
    engine = SGLangEngine(
        CONFIG,
        folder=tmp_path,
        max_length=64,
        launch=launched.launch,
        settings=dataclasses.replace(limits, servers=2),
        timeout_s=10.0,
    )
    try:
        engine.load(weights(0))
        first, second = engine.fleet.servers
        assert first.is_up
        assert second.is_up
        launched.hold.touch()
        first.process.kill()
        until(lambda: first.state == "recovering" and len(launched.started()) == 3)
        began = time.monotonic()
        for version in (1, 2, 3):
            engine.load(weights(version))
        assert time.monotonic() - began < patience(1.2)
        assert second.is_up
        assert not first.is_up
        # The folder that it starts on stays until it has started.
        assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["0", "2", "3"]
        launched.release.touch()
        until(lambda: first.is_up)
        assert first.restarts_left == limits.restarts - 1
        labels = [httpx.get(f"{server.process.url}/model_info").json()["weight_version"] for server in (first, second)]
        assert labels[0] == labels[1] == engine.fleet.target.label
    finally:
        engine.close()


def test_a_port_that_is_taken_for_a_moment_does_not_cost_all_restarts(launched, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("cojax.rollout.sglang.fleet._RETRY_S", 0.1)
    holder = socket.create_server(("127.0.0.1", 0))
    launch = dataclasses.replace(launched.launch, port=holder.getsockname()[1])
    limits = SGLangSettings(startup_deadline=20.0, sync_deadline=2.0, probe_every=0.05, restarts=4)
    engine = SGLangEngine(CONFIG, folder=tmp_path, max_length=64, launch=launch, settings=limits)
    loader = threading.Thread(target=engine.load, args=(weights(0),))
    began = time.monotonic()
    loader.start()
    try:
        until(lambda: engine.fleet.servers[0].restarts_left == limits.restarts - 2)
        assert time.monotonic() - began > 0.3, "it waits twice as long each time"
        holder.close()
        loader.join(patience(10))
        assert engine.fleet.servers[0].is_up
        assert engine.fleet.servers[0].restarts_left >= 1
    finally:
        engine.close()
        loader.join()


def test_while_a_server_starts_the_others_are_watched(launched, tmp_path: Path) -> None:
    limits = SGLangSettings(startup_deadline=20.0, sync_deadline=2.0, probe_every=0.05)
    engine = SGLangEngine(
        CONFIG, folder=tmp_path, max_length=64, launch=launched.launch, settings=dataclasses.replace(limits, servers=2)
    )
    try:
        engine.load(weights(0))
        first, second = engine.fleet.servers
        launched.hold.touch()
        first.process.kill()
        until(lambda: len(launched.started()) == 3)
        launched.hold.unlink()
        second.process.kill()
        until(lambda: len(launched.started()) == 4 and second.is_up)
        assert first.state == "recovering"
    finally:
        engine.close()


def test_an_attached_server_that_hangs_in_a_sync_gives_its_requests_to_another(pair, make) -> None:
    engine = make(pair, limits=SGLangSettings(sync_deadline=0.5, probe_every=60.0))
    engine.load(weights(0))
    over, results = threading.Event(), []
    for session in ("a", "b"):
        ask(engine, session)
    behave = hang_on(over, "generate", "update_weights_from_disk", "health")
    pair[0].behave = behave
    threads = [threading.Thread(target=lambda s=s: results.append(ask(engine, s))) for s in ("a", "b")]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    until(lambda: any(server.requests for server in engine.fleet.servers))
    engine.load(weights(1))
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < patience(2.5), "the request waited for a server that hangs"
    assert [completion.tokens for completion in results] == [(7, 7, 7)] * 2
    over.set()


def test_two_runs_do_not_share_a_folder(pair, make, tmp_path: Path) -> None:
    engine = make(pair[:1])
    with pytest.raises(ValueError, match=r"another run keeps its weights in .*choose another --config\.sglang\.folder"):
        make(pair[1:])
    engine.close()
    make(pair[1:]).load(weights(0))


HOLDER = """
import time
from pathlib import Path
from cojax.rollout.sglang.engine import WeightsFolder
store = WeightsFolder(Path())
print("mine", flush=True)
time.sleep(60)
"""


def test_a_dead_run_lets_go_of_its_folder(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "holder.py").write_text(HOLDER)
    holder = commands.start("holder", folder=tmp_path)
    until(lambda: holder.printed() == "mine\n")
    with pytest.raises(ValueError, match="another run"):
        WeightsFolder(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=10)
    WeightsFolder(tmp_path).close()


def test_a_call_that_races_close_always_ends(pair, make, tmp_path: Path) -> None:
    for number in range(10):
        engine = make(pair, folder=tmp_path / str(number))
        engine.load(weights(0))
        ended: list[bool] = []

        def call(engine: SGLangEngine = engine, ended: list[bool] = ended) -> None:
            try:
                while True:
                    ask(engine, str(threading.get_ident()))
            except EngineError as error:
                ended.append("the engine was closed" in str(error))

        threads = [threading.Thread(target=call, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.004 * number)
        engine.close()
        for thread in threads:
            thread.join(patience(5))
        assert ended == [True] * 8


def test_no_process_is_started_once_stopped(launched, tmp_path: Path) -> None:
    process = ServerProcess(launched.launch)
    process.stop()
    with pytest.raises(OSError, match="server 0 was stopped for good"):
        process.start(tmp_path, "x")
    assert not process.is_running
    assert not launched.started()


def load_until_closed(engine: SGLangEngine) -> None:
    with pytest.raises(EngineError, match="the engine was closed"):
        engine.load(weights(0))


def test_closing_while_servers_start_leaves_none(launched, tmp_path: Path) -> None:
    launched.hold.touch()
    for number in range(3):
        engine = SGLangEngine(
            CONFIG, folder=tmp_path / str(number), max_length=64, launch=launched.launch, settings=LIMITS
        )
        loader = threading.Thread(target=load_until_closed, args=(engine,))
        loader.start()
        if number:
            until(lambda engine=engine: engine.fleet.target is not None)
        time.sleep(0.003 * number)
        engine.close()
        loader.join(patience(5))
        assert not loader.is_alive()
        [server] = engine.fleet.servers
        assert not server.process.is_running


def test_weights_that_are_served_already_cost_nothing(pair, make) -> None:
    engine = make(pair)
    engine.load(fingerprinted(0, PARAMS))
    again = fingerprinted(0, {**PARAMS})
    written: list[int] = []
    engine.load(Weights(0, lambda: written.append(1) or iter(()), fingerprint=again.fingerprint))
    assert not written
    assert pair[0].count("update_weights_from_disk") == 1
    engine.load(fingerprinted(1, PARAMS))
    assert pair[0].count("update_weights_from_disk") == 2, "another version has another label"
    engine.load(fingerprinted(1, drawn(CONFIG, 1)))
    assert pair[0].count("update_weights_from_disk") == 3, "other numbers of one version"
    engine.load(weights(1))
    assert pair[0].count("update_weights_from_disk") == 4, "nothing is known of what they are"
    assert ask(engine).weights_version == 1


def test_weights_of_a_load_that_failed_are_not_taken_for_served(pair, make) -> None:
    engine = make(pair[:1])
    refuse = lambda path, body, answer: 400 if path == "update_weights_from_disk" else 200  # noqa: E731
    pair[0].behave = refuse
    with pytest.raises(EngineError):
        engine.load(fingerprinted(0, PARAMS))
    pair[0].behave = lambda path, body, answer: 200
    engine.load(fingerprinted(0, PARAMS))
    assert ask(engine).weights_version == 0


def test_the_newest_version_is_the_one_written_last_with_its_label(tmp_path: Path) -> None:
    assert find_newest_version(tmp_path) is None
    store = WeightsFolder(tmp_path)
    for version, label in ((7, "a"), (3, "b")):  # as after a resume
        store.write(weights(version), CONFIG, "", label)
        assert find_newest_version(tmp_path) == LabelledWeights(tmp_path / "weights" / str(version), label)
    store.close()


def test_versions_that_vanish_under_ones_eyes_give_way_to_their_successors(tmp_path: Path) -> None:
    store, stop, failed = WeightsFolder(tmp_path), threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            try:
                found = find_newest_version(tmp_path)
                if found is None or found.label != found.folder.name:
                    failed.append(found)
            except Exception as error:
                failed.append(error)

    store.write(weights(0), CONFIG, "", "0")
    watcher = threading.Thread(target=look)
    watcher.start()
    for version in range(1, 40):
        written = store.write(weights(version % 3), CONFIG, "", str(version % 3))
        store.prune([written.folder])
    stop.set()
    watcher.join()
    store.close()
    assert not [found for found in failed if found is not None]


def test_servers_that_start_with_the_trainer_or_again_during_a_sync_are_waited_for(pair, make) -> None:
    ports = [server.port for server in pair]
    for server in pair:
        server.close()
    engine = make(pair)
    for version in (0, 1):
        loader = threading.Thread(target=engine.load, args=(weights(version),))
        loader.start()
        until(lambda version=version: engine.fleet.target and engine.fleet.target.label.endswith(f"-{version}"))
        time.sleep(0.2)  # of a sync that finds nobody
        pair[0] = FakeServer(ports[0])
        loader.join()
        assert pair[0].count("update_weights_from_disk") == 1
        assert ask(engine).weights_version == version
        pair[0].close()


def test_who_is_not_there_is_waited_for_as_long_as_a_start_may_take_and_who_refuses_is_not(pair, make) -> None:
    engine = make(pair, limits=SGLangSettings(startup_deadline=0.5, sync_deadline=2.0, probe_every=0.1))
    pair[0].close()
    began = time.monotonic()
    pair[1].behave = lambda path, body, answer: 400 if path == "pause_generation" else 200
    with pytest.raises(EngineError, match=rf"{pair[0].url}.*start them first; waited sglang\.startup_deadline=0\.5 s"):
        engine.load(weights(0))
    assert time.monotonic() - began > 0.5
    only = make(
        pair[1:],
        limits=SGLangSettings(startup_deadline=60.0, sync_deadline=2.0, probe_every=0.1),
        folder=engine._weights_folder._versions_folder,
    )
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"answered 400(?!.*start them first)"):
        only.load(weights(0))
    assert time.monotonic() - began < patience(10)


def test_the_fault_that_counts_is_told_and_no_server_stays_paused(pair, make, monkeypatch) -> None:
    monkeypatch.setattr("cojax.rollout.sglang.client._QUICK_TIMEOUT_S", 0.3)
    engine = make(pair[:1], limits=SGLangSettings(startup_deadline=0.5, sync_deadline=2.0, probe_every=60.0))
    pair[0].behave = lambda path, body, answer: {"update_weights_from_disk": 400, "continue_generation": 500}.get(
        path, 200
    )
    with pytest.raises(EngineError, match="update_weights_from_disk answered 400"):
        engine.load(weights(0))
    # A pause that nobody confirms may have come about.
    pair[0].behave = hang_on(over := threading.Event(), "pause_generation")
    with pytest.raises(EngineError, match=r"pause_generation did not answer within 0\.3 s"):
        engine.load(weights(1))
    until(lambda: not pair[0].paused)
    over.set()


def test_a_server_that_skips_a_version_is_back_with_the_next(pair, make) -> None:
    engine = make(pair, follow=True, limits=SGLangSettings(startup_deadline=5.0, sync_deadline=60.0, probe_every=0.1))

    def load(version: int, *who: FakeServer) -> None:
        loader = threading.Thread(target=engine.load, args=(weights(version),))
        loader.start()
        until(lambda: engine.fleet.target is not None and engine.fleet.target.label.endswith(f"-{version}"))
        for server in who:
            server.version = engine.fleet.target.label
        loader.join()

    load(0, *pair)
    first = engine.fleet.servers[0]
    pair[0].version = "another's"
    until(lambda: first.state == "recovering")  # it waits for a label that never comes
    load(1, *pair)
    until(lambda: first.is_up)
    assert first.loaded_label == engine.fleet.target.label


def test_a_fleet_closes_also_where_an_alarm_rings_at_that_moment() -> None:
    async def closed(moments: int) -> None:
        fleet = Fleet(Connections(), ["http://127.0.0.1:9"], [], LIMITS)
        fleet._ensure_watch(fleet.servers[0])
        await asyncio.sleep(0.01)
        fleet.servers[0].check_now.set()
        for _ in range(moments):
            await asyncio.sleep(0)
        await asyncio.wait_for(fleet.close(), 5)

    for moments in range(6):
        asyncio.run(closed(moments))
