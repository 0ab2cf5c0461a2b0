"""The simulation of steps: closed forms, what can never happen, and an engine that takes as long."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulate import paced
from benchmarks.simulate.measured import Cost
from benchmarks.simulate.rollout import Rollout, Work
from benchmarks.simulate.servers import Rates, Server, make_constant
from benchmarks.simulate.steps import System, simulate_steps
from cojax.environment import EngineError
from cojax.rollout.engine import Sampling

ONE = make_constant(1.0)


def played(groups, *, servers=1, conversations=1_000, quorum=1.0, rate=ONE, slots=1_000):
    return Rollout(groups, [Server(rate, slots) for _ in range(servers)], conversations, quorum).play()


def episode(*turns: tuple[float, float], opening: float = 0.0, verdict: float = 0.0) -> Work:
    return Work(opening, turns, verdict)


def drawn(seed: int, tasks: int = 6, size: int = 4) -> list[list[Work]]:
    rng = random.Random(seed)
    return [
        [
            episode(*((rng.expovariate(1.0), rng.random()) for _ in range(rng.randint(1, 5))), opening=rng.random())
            for _ in range(size)
        ]
        for _ in range(tasks)
    ]


# ---- closed forms


def test_one_conversation_takes_the_sum_of_its_parts():
    # 1 to open, three turns of 4 / 2 on the server and 0.5 in the world, 2 to judge.
    found = played([[episode((4, 0.5), (4, 0.5), (4, 0.5), opening=1, verdict=2)]], rate=make_constant(2.0))
    assert found.seconds == 1 + 3 * (2 + 0.5) + 2 == 10.5
    assert found.engine == 6


def test_requests_at_once_share_the_server():
    # Both get half until the shorter one ends at 2; the longer has 1 left.
    assert played([[episode((1, 0)), episode((2, 0))]]).seconds == 3
    # A third arrives at 1: by then each has 1/2. All get a third; the first two end at 2.5, the third has 1/2 left.
    assert played([[episode((1, 0)), episode((1, 0)), episode((1, 0), opening=1)]]).seconds == 3
    assert played([[episode((5, 0)) for _ in range(7)]]).seconds == pytest.approx(35)


def test_a_server_that_batches_takes_no_longer_for_more():
    perfect = Rates(((1.0, 1.0), (8.0, 8.0)))
    assert [played([[episode((5, 0))] * n], rate=perfect).seconds for n in (1, 3, 8)] == pytest.approx([5, 5, 5])
    assert played([[episode((5, 0))] * 16], rate=perfect).seconds == pytest.approx(10)


def test_requests_beyond_the_slots_wait_in_order():
    # Two run to 2, then the third alone to 3.
    assert played([[episode((1, 0))] * 3], slots=2).seconds == 3


def test_a_request_that_leaves_frees_its_share_and_its_slot():
    server: Server[str] = Server(ONE, slots=2)
    for name in "abc":
        server.arrive(0.0, 4.0, name)
    server.leave(2.0, "a")
    # b has 3 of 4 left and shares with c: it ends at 2 + 6, when c has 1 left.
    assert server.ends() == 8.0
    assert [server.end(8.0), server.ends(), server.end(9.0), server.ends()] == ["b", 9.0, "c", None]
    assert (len(server), server.busy) == (0, 9.0)


def test_conversations_at_once_and_servers():
    four = [[episode((1, 1))] * 4]
    assert played(four, conversations=1).seconds == 8
    # Two at once share the server: 2 + 1, twice.
    assert played(four, conversations=2).seconds == 6
    # On two servers they do not: 1 + 1, twice.
    assert played(four, conversations=2, servers=2).seconds == 4


def test_rates_between_measured_numbers():
    rate = Rates(((2.0, 4.0), (6.0, 8.0)))
    assert [rate(n) for n in (1, 2, 4, 6, 60)] == [2, 4, 6, 8, 8]
    for points in ((), ((2.0, 1.0), (1.0, 1.0)), ((0.0, 1.0),), ((1.0, 0.0),)):
        with pytest.raises(ValueError, match="expected"):
            Rates(points)


def test_throughput_of_the_repairman_model():
    # n conversations, exponential works of mean 1 on one server of rate 1, exponential worlds of mean z: the server is
    # idle for the share p₀ = 1 / Σₖ n! / (n − k)! zᵏ⁻ⁿ …, here by its balance equations.
    n, z, turns = 4, 3.0, 20_000
    weights = [math.perm(n, k) / z**k for k in range(n + 1)]
    expected = 1 - weights[0] / sum(weights)
    rng = random.Random(1)
    group = [episode(*((rng.expovariate(1.0), rng.expovariate(1 / z)) for _ in range(turns))) for _ in range(n)]
    found = played([group])
    work = sum(work for one in group for work, _ in one.turns)
    assert work / found.seconds == pytest.approx(expected, rel=0.02)
    assert found.engine == pytest.approx(work)


def fixed(**changes) -> System:
    """Rollout 10, update 4, sync 1, evolution 20, host 2."""
    parts = {
        "groups": lambda rng: [[Work(0.0, ((10.0, 0.0),), 0.0, 5, reward)] for reward in (0.0, 1.0)],
        "rate": make_constant(2.0), "servers": 1, "conversations": 2, "update": lambda rng, tokens: 4.0,
        "sync": lambda rng: 1.0, "evolution": lambda rng: 20.0, "host": lambda rng, episodes: float(episodes),
        "evolve_every": 3,
    }  # fmt: skip
    return System(**{**parts, **changes})


def test_steps_of_constant_times():
    assert [step.seconds for step in simulate_steps(fixed(), 6)] == [17, 17, 37, 17, 17, 37]
    # The first step waits for its own rollout, then rollouts run beside updates: 10 + 10 + 3, then 10 + 3; the last
    # step has nothing to play ahead: 4 + 3.
    assert [step.seconds for step in simulate_steps(fixed(staleness=1, evolve_every=9), 4)] == [23, 13, 13, 7]
    # Two or more steps ahead, the servers never wait for sync and host (3), and load weights themselves: 10 + 1 a step.
    for staleness in (2, 3, 4):
        seconds = [step.seconds for step in simulate_steps(fixed(staleness=staleness, evolve_every=99), 10)]
        assert seconds == [22, *[10] * (staleness - 1), *[11] * (8 - staleness), 12, 7]
    # Where the update is longer, the trainer does: 12 + 3 a step, however far the servers are ahead.
    long = fixed(staleness=4, evolve_every=99, update=lambda rng, tokens: 12.0)
    assert [step.seconds for step in simulate_steps(long, 10)][6:] == [15] * 4
    # Beside the next step's update (4) and rollout (10): 6 and 10 more are waited for. The last has no next step.
    beside = fixed(staleness=1, evolve_beside=True, evolve_every=2)
    assert [step.evolution for step in simulate_steps(beside, 4)] == [0, 0, 10, 20]
    assert [step.evolution for step in simulate_steps(fixed(evolve_beside=True, evolve_every=2), 4)] == [0, 0, 16, 20]
    assert [step.seconds for step in simulate_steps(fixed(pace=lambda rng: 3.0, evolve_every=9), 1)] == [37]


def test_an_update_reads_the_live_groups_alone():
    seen = []
    two = [[Work(0, ((1, 0),), 0, 10, r) for r in rewards] for rewards in ((0, 1), (1, 1))]
    simulate_steps(fixed(groups=lambda rng: two, update=lambda rng, tokens: seen.append(tokens) or 1.0), 1)
    assert seen == [20]


# ---- what can never happen


@given(
    st.integers(0, 1_000), st.integers(1, 5), st.integers(1, 40), st.sampled_from((0.25, 0.5, 0.75, 1.0)),
)  # fmt: skip
def test_no_episode_is_lost(seed: int, servers: int, conversations: int, quorum: float):
    groups = drawn(seed)
    found = played(groups, servers=servers, conversations=conversations, quorum=quorum)
    assert found.finished + found.cut + found.unbegun == 24
    assert found.finished >= 24 * quorum
    assert found.cut < conversations
    if quorum == 1.0:
        assert (found.finished, found.cut, found.unbegun) == (24, 0, 0)
    assert found.engine <= found.seconds
    longest = max(e.opening + sum(w + s for w, s in e.turns) for g in groups for e in g) if quorum == 1 else 0
    assert found.seconds >= longest - 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_more_servers_speed_or_a_smaller_quorum_never_take_longer(seed: int):
    groups = drawn(seed)
    for times in (
        [played(groups, servers=n).seconds for n in (1, 2, 4, 24)],
        [played(groups, rate=make_constant(rate)).seconds for rate in (0.5, 1.0, 2.0, 4.0)],
        [played(groups, quorum=quorum).seconds for quorum in (1.0, 0.75, 0.5, 0.25)],
    ):
        assert times == sorted(times, reverse=True)
        assert times[-1] < times[0]


def test_the_same_seed_gives_the_same_steps():
    made = fixed(groups=lambda rng: drawn(rng.randrange(10**6)), update=Cost(1.0, 0.0, (0.5, 1.0, 2.0)))
    one, again, other = (simulate_steps(made, 5, seed) for seed in (7, 7, 8))
    assert one == again
    assert one != other


# ---- the engine that takes as long


def test_the_paced_engine_ends_every_request_and_repeats_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paced, "SERVER_RATES", make_constant(1e5))
    engine = paced.PacedEngine([(1, 2, 9), (3, 4, 5, 6)], server_count=2, vocabulary=10, length=8)
    sampling = Sampling(max_tokens=3, stop_tokens=(9,))

    def sampled(number: int) -> tuple[tuple[int, ...], str]:
        done = engine.generate((7,), sampling, session=f"s{number}", seed=(number,))
        engine.release(f"s{number}")
        return done.tokens, done.finish_reason

    with ThreadPoolExecutor(8) as threads:
        first, again = (list(threads.map(sampled, range(40))) for _ in range(2))
    assert first == again
    assert set(first) == {((1, 2, 9), "stop"), ((3, 4, 5), "length")}
    assert engine.busy_seconds > 0
    engine.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        engine.generate((7,), sampling, session="late", seed=(0,))
