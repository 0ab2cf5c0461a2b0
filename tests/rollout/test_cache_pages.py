"""A cache that holds fewer tokens than all conversations could take: they wait and make room, and no bit changes."""

import functools
import random
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from compiling import drawn
from patience import patience

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.rollout.batching import STEPS_PER_CALL, Batcher, Request, Session, draw_uniforms
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.local import LocalEngine
from cojax.rollout.pages import CacheShape

CONFIG = ModelConfig(101, 16, 16, 1, 2, 1, 8, max_position_embeddings=32_768)
SLOTS, LENGTH = 5, 640
NUMBERS = range(6)


@functools.cache
def params(seed: int):
    return drawn(CONFIG, seed)


def weights(version: int) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, params(version)))


@pytest.fixture
def make() -> Iterator[Callable[..., LocalEngine]]:
    engines = []

    def make(**settings) -> LocalEngine:
        settings = {"slots": SLOTS, "max_length": LENGTH, "prefill_rows": 2, "prefill_chunks": (16, 96), **settings}
        engines.append(LocalEngine(CONFIG, **settings))
        engines[-1].load(weights(0))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def play(engine: LocalEngine, number: int) -> list[Completion]:
    """Two turns; conversations of one remainder by 2 begin with the same 200 tokens."""
    draw, tokens, completions = random.Random(number), random.Random(number % 2).choices(range(101), k=200), []
    for turn in range(2):
        tokens += [draw.randrange(101) for _ in range(draw.randint(1, 60))]
        completions.append(engine.generate(tokens, Sampling(1.0, 70), session=str(number), seed=(number, turn)))
        tokens += completions[-1].tokens
    engine.release(str(number))
    return completions


def play_all(engine: LocalEngine, numbers: Sequence[int]) -> dict[int, list[Completion]]:
    found: dict[int, list[Completion]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: play(engine, n)})) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
    assert sorted(found) == sorted(numbers)
    return found


def test_conversations_that_make_room_sample_the_same_bits(make) -> None:
    """Each takes up to 460 of the 704 tokens that the cache holds."""
    roomy, narrow = make(), make(cache_tokens=704)
    found = play_all(narrow, NUMBERS)
    (batcher,) = narrow._lanes[0].batchers
    assert batcher.saved > 3
    assert found == play_all(roomy, NUMBERS)
    assert roomy._lanes[0].batchers[0].saved == 0
    assert found[4] == play(narrow, 4)
    # All earlier releases come before this request, which takes a page; nothing is left on the host.
    narrow.generate([1], Sampling(1.0, 1), session="last", seed=(0,))
    assert batcher._pages.free_count == 10
    assert not narrow._lanes[0].forwards._saved


def test_new_weights_drop_what_made_room(make) -> None:
    """The third conversation finds no page before the first makes room; under new weights all begin anew."""

    def sample(engine: LocalEngine) -> list[Completion]:
        for number in range(3):
            engine.generate([number] * 300, Sampling(1.0, 4), session=str(number), seed=(number,))
        engine.load(weights(1))
        tokens = [9] * 300
        return [engine.generate(tokens, Sampling(1.0, 4), session=f"new {n}", seed=(n,)) for n in range(2)]

    narrow = make(cache_tokens=704)
    assert sample(narrow) == sample(make())
    narrow.release("0")
    narrow.generate([1], Sampling(1.0, 1), session="last", seed=(0,))
    assert not narrow._lanes[0].forwards._saved


def test_a_prefix_of_whole_pages_takes_no_page_twice(make) -> None:
    """480 common tokens are 30 chunks, of which 28 fill 7 pages; the rest of the prompt is an eighth page of each."""
    engine = make(cache_tokens=64 * 15, prefill_chunks=(16,))
    common = random.Random(0).choices(range(101), k=480)
    for number in range(SLOTS):
        engine.generate([*common, number], Sampling(1.0, 1), session=str(number), seed=(number,))
    (batcher,) = engine._lanes[0].batchers
    assert batcher._pages.free_count == 15 - 7 - SLOTS
    assert batcher.saved == 0
    assert engine.reused_tokens == (SLOTS - 1) * 480


def test_a_turn_that_waits_for_pages_makes_room_for_the_conversation_that_runs() -> None:
    """Of 12 pages, the one that waits holds 5 and needs 3 more; the one that runs grows from 6 to 11."""
    batcher, shape = Batcher(CONFIG, 2, CacheShape.of(2, 768, 768), 2, (64,), False), (STEPS_PER_CALL, 2)
    batcher.begin_version(0)

    def ask(session: Session, tokens: Sequence[int], count: int) -> None:
        batcher.admit(Request(session, [*tokens], Sampling(1.0, count), draw_uniforms((0,), count)))

    def run(plan_count: int) -> list[Session]:
        ended = []
        for _ in range(plan_count):
            batcher.drop_aborted()
            plan = batcher.plan()
            decodes = plan and plan[-1][0] == "decode"
            ended += batcher.take((np.zeros(shape, np.int32), np.zeros(shape, np.float32), None) if decodes else None)
        return [request.session for request in ended]

    first, second = Session(), Session()
    ask(first, range(300), 4)
    assert run(6) == [first]
    ask(second, range(400, 780), 300)
    run(10)
    ask(first, range(450), 4)
    assert run(100) == [second, first]


def test_the_shape_of_a_cache() -> None:
    assert CacheShape.of(64, 300) == CacheShape(64, 320, 1)
    assert CacheShape.of(64, 32_768, 209_715) == CacheShape(3_276, 64, 512)
    assert CacheShape.of(2, 600, 10**6) == CacheShape(20, 64, 10)
    for slots, length, tokens in ((4, 300, 1_279), (4, 600, 639)):
        with pytest.raises(ValueError, match=f"caches {tokens} tokens for 4 conversations of {length}"):
            CacheShape.of(slots, length, tokens)


@pytest.mark.nightly
def test_a_tenth_of_the_tokens_serves_all_conversations_at_once() -> None:
    """64 prompts fill 90 % of a tenth of 64 × 32,768 tokens, and each samples 256 tokens more."""
    capacity = 64 * 32_768 // 10
    length = capacity * 9 // 10 // 64
    engine = LocalEngine(
        CONFIG, slots=64, max_length=32_768, cache_tokens=capacity, prefill_rows=8, prefill_chunks=(256,)
    )
    try:
        engine.load(weights(0))

        def converse(number: int, into: dict[int, Completion]) -> None:
            prompt = random.Random(number).choices(range(101), k=length)
            into[number] = engine.generate(prompt, Sampling(1.0, 256), session=str(number), seed=(number,))
            engine.release(str(number))

        found: dict[int, Completion] = {}
        threads = [threading.Thread(target=converse, args=(number, found)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience(1_000))
        assert sorted(found) == list(range(64))
        assert {len(completion.tokens) for completion in found.values()} == {256}
        alone: dict[int, Completion] = {}
        for number in (0, 63):
            converse(number, alone)
            assert alone[number] == found[number]
    finally:
        engine.close()
