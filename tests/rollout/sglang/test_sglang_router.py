"""Completions by way of a router, everything else to the servers themselves."""

import threading
import time

import pytest
from fake_sglang import FakeServer, ask, hang_on, until, weights
from patience import patience

from cojax.environment import EngineError
from cojax.settings.tree import SGLangSettings


def test_completions_go_through_the_router_and_weights_to_each_server(pair, make, router) -> None:
    engine = make(pair, router=router.url)
    engine.load(weights(0))
    for turn in range(3):
        for number in range(8):
            assert ask(engine, f"s{number}").tokens == (7, 7, 7), turn
    # A conversation keeps its key, and so its server and prefix; another has another.
    assert [router.keys.count(key) for key in set(router.keys)] == [3] * 8
    assert sum(server.count("generate") for server in pair) == 24
    assert min(server.count("generate") for server in pair) > 0
    assert [server.count("update_weights_from_disk") for server in pair] == [1, 1]


def test_what_is_given_up_is_aborted_wherever_it_is(pair, make, router) -> None:
    engine = make(pair, router=router.url, timeout_s=0.5)
    engine.load(weights(0))
    over = threading.Event()
    for server in pair:
        server.behave = hang_on(over, "generate")
    with pytest.raises(EngineError, match=r"no completion within 0\.5 s"):
        ask(engine)
    rids = {body["rid"] for server in pair for body in server.bodies if "input_ids" in body}
    until(lambda: all({"rid": rid} in server.bodies for server in pair for rid in rids))
    over.set()


def test_a_server_that_forgot_its_weights_is_found_behind_the_router(pair, make, router) -> None:
    engine = make(pair, router=router.url, limits=SGLangSettings(probe_every=60.0))
    engine.load(weights(0))
    label = pair[0].version
    pair[0].version = pair[1].version = "somebody else's"
    assert ask(engine).weights_version == 0
    until(lambda: pair[0].version == pair[1].version == label)


def test_what_is_wholly_from_old_weights_is_sampled_anew(pair, make, router) -> None:
    engine = make(pair, router=router.url, mixed=True, limits=SGLangSettings(probe_every=60.0))
    engine.load(weights(0))
    old = pair[0].version
    for version in (1, 2):
        engine.load(weights(version))
    current = pair[0].version
    for server in pair:
        server.version = old
    timer = threading.Timer(0.3, lambda: [setattr(server, "version", current) for server in pair])
    timer.start()
    assert ask(engine).weights_version == 2
    timer.join()


def test_a_server_that_hangs_gives_its_requests_back(pair, make, router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cojax.rollout.sglang.client._HEALTH_TIMEOUT_S", 0.2)
    engine = make(pair, router=router.url)
    engine.load(weights(0))
    ask(engine, "a")
    home = next(server for server in pair if server.count("generate"))
    over, healthy, first = threading.Event(), threading.Event(), [1]

    def behave(path: str, body: dict, answer: dict) -> int:
        if path == "generate" and first:
            first.clear()
            over.wait(patience(10))
        if path == "health":
            healthy.wait(patience(10))
        return 200

    home.behave = behave
    # Given back to the router, it may come to the same server: by then that one answers.
    threading.Timer(1.5, healthy.set).start()
    began = time.monotonic()
    assert ask(engine, "a").tokens == (7, 7, 7)
    assert time.monotonic() - began < patience(8)
    over.set()


def test_a_router_that_is_gone_is_named(pair: list[FakeServer], make, router) -> None:
    engine = make(pair, router=router.url, max_attempts=2)
    engine.load(weights(0))
    router.close()
    with pytest.raises(EngineError, match=rf"no completion in 2 attempts, the last: {router.url}/generate"):
        ask(engine)


def test_servers_are_those_behind_the_router_and_come_and_go(pair, make, router) -> None:
    engine = make([], router=router.url)
    engine.load(weights(0))
    assert [server.name for server in engine.fleet.servers] == [server.url for server in pair]
    joined = FakeServer()
    gone = pair.pop(0)
    try:
        pair.append(joined)  # the router's own list
        until(
            lambda: {server.name for server in engine.fleet.servers if server.is_up} == {server.url for server in pair}
        )
        assert joined.version == engine.fleet.target.label
        for number in range(8):
            assert ask(engine, f"s{number}").tokens == (7, 7, 7)
        engine.load(weights(1))
        assert [server.version for server in pair] == [engine.fleet.target.label] * 2
        assert gone.version != joined.version
        assert (gone.count("generate"), joined.count("generate") > 0) == (0, True)
    finally:
        gone.close()


def test_a_router_without_servers_is_named_after_a_while(make, router, pair, monkeypatch) -> None:
    monkeypatch.setattr("cojax.rollout.sglang.fleet._DISCOVERY_POLL_S", 0.2)
    servers = [pair.pop() for _ in range(2)]
    engine = make([], router=router.url, limits=SGLangSettings(startup_deadline=0.5))
    with pytest.raises(EngineError, match=rf"no SGLang server is behind the router {router.url}: it names none"):
        engine.load(weights(0))
    pair.extend(servers)
