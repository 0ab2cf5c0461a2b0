"""The local engine: the same bits in any company, sessions, stops, weights, failures."""

import dataclasses
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from compiling import drawn
from patience import patience

from cojax.environment import EngineError, OutOfContext
from cojax.policy import logprobs
from cojax.policy.config import FAMILIES, ModelConfig
from cojax.policy.family import FULL, QWEN3, SLIDING, Family
from cojax.policy.parameters import to_hf
from cojax.policy.transformer import Params
from cojax.rollout import batching, forwards
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.local import LocalEngine

CONFIG = ModelConfig(101, 64, 128, 2, 4, 2, 16, max_position_embeddings=512)
SLOTS, LENGTH = 8, 160


token_logprobs = jax.jit(logprobs.token_logprobs, static_argnums=0, static_argnames="temperature")


@functools.cache
def params(seed: int) -> Params:
    return drawn(CONFIG, seed)


def weights(version: int) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, params(version)))


@pytest.fixture(params=[1, 2], ids=["one lane", "two lanes"])
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    running = LocalEngine(
        CONFIG, slots=SLOTS, lanes=request.param, max_length=LENGTH, prefill_rows=4, prefill_chunks=(8, 32)
    )
    running.load(weights(0))
    yield running
    running.close()


def converse(engine: LocalEngine, number: int, turns: int = 3) -> list[Completion]:
    """A conversation that follows from its number and the engine's answers alone."""
    draw = random.Random(number)
    session, tokens, completions = f"conversation {number}", [], []
    for turn in range(turns):
        tokens += [draw.randrange(101) for _ in range(draw.randint(1, 45))]
        sampling = Sampling(draw.choice([0.0, 0.7, 1.0]), draw.randint(1, 9), (5, 6, 7))
        completions.append(engine.generate(tokens, sampling, session=session, seed=(number, turn)))
        tokens += completions[-1].tokens
    engine.release(session)
    return completions


def all_at_once(engine: LocalEngine, numbers: list[int]) -> dict[int, list[Completion]]:
    found: dict[int, list[Completion]] = {}

    def run(number: int) -> None:
        found[number] = converse(engine, number)

    threads = [threading.Thread(target=run, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_results_are_the_same_bits_in_any_company(engine: LocalEngine) -> None:
    """Alone, all at once (more conversations than slots), and all at once in other orders, so in other slots."""
    numbers = list(range(3 * SLOTS))
    full = all_at_once(engine, numbers)
    assert sorted(full) == numbers
    for seed in range(2):
        random.Random(seed).shuffle(numbers)
        assert all_at_once(engine, numbers) == full
    for number in random.Random(2).sample(numbers, 8):
        assert converse(engine, number) == full[number]


@pytest.mark.parametrize("decodes", [0, 5])
def test_results_do_not_depend_on_scheduling(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, decodes: int
) -> None:
    numbers = list(range(SLOTS))
    usual = all_at_once(engine, numbers)
    monkeypatch.setattr(batching, "_DECODES_PER_PREFILL", decodes)
    assert all_at_once(engine, numbers) == usual


def test_what_an_earlier_session_left_behind_is_never_seen(engine: LocalEngine) -> None:
    before = converse(engine, 1)
    for number in range(100, 100 + SLOTS):  # fill every slot to the brim
        prompt = [number % 101] * (LENGTH - 1)
        engine.generate(prompt, Sampling(1.0, 1), session=str(number), seed=(number,))
    for number in range(100, 100 + SLOTS):
        engine.release(str(number))
    assert converse(engine, 1) == before


@pytest.mark.compiles
@pytest.mark.parametrize("engine", [1], indirect=True)  # lanes run the same programs
def test_logprobs_are_the_learners(engine: LocalEngine) -> None:
    prompt = [random.Random(0).randrange(101) for _ in range(50)]
    first = engine.generate(prompt, Sampling(0.7, 20), session="a", seed=(1,))
    second_prompt = [*prompt, *first.tokens, 4, 5, 6]
    second = engine.generate(second_prompt, Sampling(0.7, 20), session="a", seed=(2,))
    tokens = np.array([[*second_prompt, *second.tokens]], np.int32)
    positions, segments = np.arange(tokens.size, dtype=np.int32)[None], np.ones_like(tokens)
    found = token_logprobs(CONFIG, params(0), tokens, positions, segments, temperature=0.7)[0]
    np.testing.assert_allclose(found[50:70], first.logprobs, atol=2e-5, rtol=0)
    np.testing.assert_allclose(found[73:], second.logprobs, atol=2e-5, rtol=0)


def test_logprobs_are_the_learners_where_layers_have_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "windowed", Family("windowed", "", QWEN3.rows, layers=(SLIDING, FULL)))  # type: ignore[arg-type]
    config = dataclasses.replace(CONFIG, model_type="windowed", sliding_window=5)
    made, prompt = drawn(config, 0), [random.Random(0).randrange(101) for _ in range(40)]
    running = LocalEngine(config, slots=2, max_length=64, lanes=1, prefill_rows=1, prefill_chunks=(8,))
    running.load(Weights(0, lambda: to_hf(config, made)))
    found = running.generate(prompt, Sampling(1.0, 12), session="a", seed=(1,))
    running.close()
    tokens = np.array([[*prompt, *found.tokens]], np.int32)
    positions, segments = np.arange(tokens.size, dtype=np.int32)[None], np.ones_like(tokens)
    expected = token_logprobs(config, made, tokens, positions, segments)[0, 40:]
    np.testing.assert_allclose(found.logprobs, expected, atol=2e-5, rtol=0)


def test_greedy_takes_the_most_likely_token(engine: LocalEngine) -> None:
    completion = engine.generate([1, 2, 3], Sampling(0.0, 5), session="a", seed=(1,))
    again = engine.generate([1, 2, 3], Sampling(0.0, 5), session="b", seed=(2,))
    assert completion.tokens == again.tokens
    tokens = np.array([[1, 2, 3, *completion.tokens]], np.int32)
    positions, segments = np.arange(8, dtype=np.int32)[None], np.ones_like(tokens)
    score = functools.partial(token_logprobs, CONFIG, params(0))
    found = np.asarray(score(tokens, positions, segments))[0, 3:]
    np.testing.assert_allclose(found, completion.logprobs, atol=1e-5, rtol=0)
    for other in range(0, 101, 7):
        changed = tokens.copy()
        changed[0, 3] = other
        assert score(changed, positions, segments)[0, 3] <= found[0] + 1e-6


def test_a_seed_repeats_and_another_differs(engine: LocalEngine) -> None:
    first, again, other = (
        engine.generate([1, 2, 3], Sampling(1.0, 12), session=str(number), seed=seed)
        for number, seed in enumerate([(1, 2), (1, 2), (1, 3)])
    )
    assert first == again
    assert first.tokens != other.tokens


def test_stops_with_the_stop_token_included(engine: LocalEngine) -> None:
    free = engine.generate([1, 2, 3], Sampling(1.0, 12), session="a", seed=(1,))
    assert (free.finish_reason, len(free.tokens)) == ("length", 12)
    stop = free.tokens[4]
    stopped = engine.generate([1, 2, 3], Sampling(1.0, 12, (stop,)), session="b", seed=(1,))
    end = free.tokens.index(stop) + 1
    assert stopped == Completion(free.tokens[:end], free.logprobs[:end], 0, "stop")


def test_ends_at_the_engines_length(engine: LocalEngine) -> None:
    completion = engine.generate([1] * (LENGTH - 3), Sampling(1.0, 12), session="a", seed=(1,))
    assert (len(completion.tokens), completion.finish_reason) == (3, "length")
    with pytest.raises(OutOfContext, match="160 tokens leaves no room"):
        engine.generate([1] * (LENGTH - 3) + list(completion.tokens), Sampling(), session="a", seed=(2,))


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], {}, "prompt is empty"),
        ([1, 101], {}, "the vocabulary has 0–100"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1, 2.7], {}, "the prompt holds float; expected tokens, which are whole numbers"),
        ([1, True], {}, "the prompt holds bool; expected tokens"),
        (np.array([1.0]), {}, "the prompt holds float64; expected tokens"),
        (["1"], {}, "the prompt holds str; expected tokens"),
    ],
)
def test_refuses_a_bad_request(engine: LocalEngine, prompt: Any, sampling: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine.generate(prompt, Sampling(**sampling), session="a", seed=(1,))


def test_tokens_of_an_array_are_tokens(engine: LocalEngine) -> None:
    first = engine.generate(np.array([1, 2], np.int32), Sampling(0.0, 1), session="a", seed=(1,))  # type: ignore[arg-type]
    assert first == engine.generate([1, 2], Sampling(0.0, 1), session="b", seed=(1,))


def test_a_prompt_must_extend_its_session(engine: LocalEngine) -> None:
    said = engine.generate([1, 2, 3], Sampling(1.0, 4), session="a", seed=(1,)).tokens
    with pytest.raises(ValueError, match="does not extend its first 7 tokens"):
        engine.generate([1, 2, 4, *said], Sampling(), session="a", seed=(1,))
    engine.generate([1, 2, 3, *said], Sampling(1.0, 4), session="a", seed=(2,))
    engine.release("a")
    engine.generate([1, 2, 4, *said], Sampling(1.0, 4), session="a", seed=(1,))


def test_new_weights_serve_open_sessions_from_the_next_call(engine: LocalEngine) -> None:
    old = engine.generate([1, 2, 3], Sampling(1.0, 8), session="a", seed=(1,))
    engine.load(weights(1))
    prompt = [1, 2, 3, *old.tokens, 9]
    continued = engine.generate(prompt, Sampling(1.0, 8), session="a", seed=(2,))
    fresh = engine.generate(prompt, Sampling(1.0, 8), session="b", seed=(2,))
    assert (old.weights_version, continued.weights_version) == (0, 1)
    assert continued == fresh  # nothing of the old weights' cache is left in it


def test_a_completion_comes_from_one_version(engine: LocalEngine) -> None:
    """Conversations that run while weights change give for each version exactly what that version gives alone."""
    stop, found = threading.Event(), []

    def ask(number: int) -> None:
        while not stop.is_set():
            completion = engine.generate([number], Sampling(1.0, 40), session=str(number), seed=(1,))
            engine.release(str(number))
            found.append((number, completion))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for version in (1, 0, 1, 0, 1):
        engine.load(weights(version))
    stop.set()
    for thread in threads:
        thread.join()
    expected = {}
    for version in (1, 0):
        engine.load(weights(version))
        for number in range(4):
            alone = engine.generate([number], Sampling(1.0, 40), session="alone", seed=(1,))
            engine.release("alone")
            expected[number, version] = alone
    assert {completion.weights_version for _, completion in found} == {0, 1}
    for number, completion in found:
        assert completion == expected[number, completion.weights_version]


def test_weights_are_the_engines_own(engine: LocalEngine) -> None:
    """The trainer may overwrite its arrays after load."""
    arrays = dict(to_hf(CONFIG, params(0)))
    engine.load(Weights(5, lambda: iter(arrays.items())))
    before = engine.generate([1, 2, 3], Sampling(1.0, 8), session="a", seed=(1,))
    for array in arrays.values():
        array[:] = 0
    assert engine.generate([1, 2, 3], Sampling(1.0, 8), session="b", seed=(1,)) == before


def test_weights_that_are_not_finite_are_refused(engine: LocalEngine) -> None:
    arrays = dict(to_hf(CONFIG, params(0)))
    arrays["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    with pytest.raises(ValueError, match="layers/feed_forward/up/kernel is not finite"):
        engine.load(Weights(9, lambda: iter(arrays.items())))
    assert engine.generate([1], Sampling(1.0, 2), session="a", seed=(1,)).weights_version == 0


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Runs the call in a thread; its result or exception will be the list's only item."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(30)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def is_generating(engine: LocalEngine, session: str) -> bool:
    """Whether a lane has a request of the session. One that has just been given a slot has none yet."""
    return any(state.request is not None for lane in engine._lanes if (state := lane._sessions.get(session)))


def test_a_session_waits_for_a_slot(engine: LocalEngine) -> None:
    for number in range(SLOTS):
        engine.generate([number], Sampling(1.0, 1), session=str(number), seed=(1,))
    thread, outcome = in_thread(lambda: engine.generate([1], Sampling(1.0, 2), session="late", seed=(1,)))
    wait_until(lambda: "late" in engine._waiting_events)
    assert not outcome
    engine.release("7")
    thread.join(patience(30))
    assert isinstance(outcome[0], Completion)


def test_release_aborts_a_running_call(engine: LocalEngine) -> None:
    usual = engine.generate([2], Sampling(1.0, 9), session="b", seed=(1,))
    engine.release("b")
    for _ in range(2 * SLOTS):  # no slot is lost
        thread, outcome = in_thread(lambda: engine.generate([1], Sampling(1.0, LENGTH), session="a", seed=(1,)))
        wait_until(lambda: is_generating(engine, "a"))
        engine.release("a")
        thread.join(patience(30))
        assert isinstance(outcome[0], EngineError)
        assert "released while generating" in str(outcome[0])
    assert engine.generate([2], Sampling(1.0, 9), session="b", seed=(1,)) == usual


def test_release_during_the_last_forward_loses_no_slot(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = forwards.decode

    def decode_and_release(*arguments: object) -> object:
        engine.release("a")
        return real(*arguments)

    monkeypatch.setattr(forwards, "decode", decode_and_release)
    for _ in range(SLOTS):
        with pytest.raises(EngineError, match="released while generating"):
            engine.generate([1], Sampling(1.0, 1), session="a", seed=(1,))
    thread, outcome = in_thread(lambda: engine.generate([1], Sampling(1.0, 1), session="b", seed=(1,)))
    thread.join(patience(10))
    assert outcome


def test_one_call_at_a_time_in_a_session(engine: LocalEngine) -> None:
    thread, _ = in_thread(lambda: engine.generate([1], Sampling(1.0, LENGTH), session="a", seed=(1,)))
    wait_until(lambda: is_generating(engine, "a"))
    with pytest.raises(ValueError, match="still generating"):
        engine.generate([1, 2], Sampling(), session="a", seed=(1,))
    engine.release("a")
    thread.join(patience(30))


def test_close_fails_whoever_waits(engine: LocalEngine) -> None:
    thread, outcome = in_thread(lambda: engine.generate([1], Sampling(1.0, LENGTH), session="a", seed=(1,)))
    wait_until(lambda: "a" in engine._lane_by_session)
    engine.close()
    thread.join(patience(30))
    assert isinstance(outcome[0], EngineError)
    with pytest.raises(EngineError, match="closed"):
        engine.generate([1], Sampling(), session="b", seed=(1,))
    with pytest.raises(EngineError, match="closed"):
        engine.load(weights(0))
    engine.close()


def test_a_failing_forward_fails_every_waiter(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room for the forward")

    monkeypatch.setattr(forwards, "decode", broken)
    calls = [in_thread(lambda n=n: engine.generate([n], Sampling(1.0, 5), session=str(n), seed=(1,))) for n in range(4)]
    for thread, outcome in calls:
        thread.join(patience(30))
        assert isinstance(outcome[0], EngineError)
        assert "MemoryError: no room for the forward" in str(outcome[0])


def test_needs_weights_and_sizes_that_fit() -> None:
    idle = LocalEngine(CONFIG, slots=2, max_length=32)
    with pytest.raises(EngineError, match="call load first"):
        idle.generate([1], Sampling(), session="a", seed=(1,))
    idle.close()
    with pytest.raises(ValueError, match="max_position_embeddings 512"):
        LocalEngine(CONFIG, max_length=513)
    with pytest.raises(ValueError, match="at least 1"):
        LocalEngine(CONFIG, slots=0)
    with pytest.raises(ValueError, match="no multiple of lanes 3"):
        LocalEngine(CONFIG, slots=16, lanes=3)


def test_busy_seconds_count_forwards_only(engine: LocalEngine) -> None:
    engine.generate([1], Sampling(1.0, 3), session="a", seed=(1,))
    before, began = engine.busy_seconds, time.perf_counter()
    time.sleep(0.2)
    assert engine.busy_seconds == before
    engine.generate([1], Sampling(1.0, 30), session="b", seed=(1,))
    assert 0 < engine.busy_seconds - before < time.perf_counter() - began - 0.19
