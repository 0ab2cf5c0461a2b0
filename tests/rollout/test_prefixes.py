"""Beginnings that prompts share: computed once, kept, copied; and the same bits as without sharing."""

import dataclasses
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator

import families
import pytest
from compiling import drawn
from patience import patience

from cojax.environment import EngineError
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.transformer import Params
from cojax.rollout import batching, forwards
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.local import LocalEngine
from cojax.rollout.pages import Pages, count_leading, name_chunks
from cojax.types import Message

CONFIG = ModelConfig(101, 32, 48, 1, 4, 2, 16, max_position_embeddings=512)
SYSTEM = random.Random(7).choices(range(101), k=75)  # chunks of 32, 32 and 8, and 3 tokens that are cut with a query
NUMBERS = range(16)


@functools.cache
def params(seed: int) -> Params:
    return drawn(CONFIG, seed)


def weights(version: int) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, params(version)))


@pytest.fixture
def make() -> Iterator[Callable[..., LocalEngine]]:
    engines = []

    def make() -> LocalEngine:
        engines.append(LocalEngine(CONFIG, slots=16, max_length=128, prefill_rows=4, prefill_chunks=(8, 32)))
        engines[-1].load(weights(0))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(30)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def query(number: int) -> list[int]:
    """Of 1 to 16 tokens, like no other query from its first one on."""
    return [number] * (1 + number)


def play(engine: LocalEngine, number: int) -> list[Completion]:
    """Two turns after the system message."""
    tokens, completions = SYSTEM + query(number), []
    for turn in range(2):
        done = engine.generate(tokens, Sampling(1.0, 5), session=str(number), seed=(number, turn))
        completions.append(done)
        tokens = [*tokens, *done.tokens, 1, 2, 3]
    engine.release(str(number))
    return completions


def play_all(engine: LocalEngine) -> list[list[Completion]]:
    found: dict[int, list[Completion]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: play(engine, n)})) for n in NUMBERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
    return [found[number] for number in NUMBERS]


def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "count_leading", lambda names, among: 0)


def test_sixteen_episodes_compute_a_common_beginning_once_and_to_the_same_bits(make, monkeypatch) -> None:
    shared = make()
    found = play_all(shared)
    # Each prompt but its last token, and 3 new tokens of the second turn.
    prompts = sum(len(SYSTEM) + len(query(number)) - 1 + 3 for number in NUMBERS)
    assert prompts == 1_368
    assert (shared.computed_tokens, shared.reused_tokens) == (1_368 - 15 * 72, 15 * 72)
    first = shared.computed_tokens
    again = play_all(shared)  # every session was released since
    assert shared.computed_tokens - first <= 1_368 - 16 * 72  # of a query's own chunks, what no one has overwritten
    unshared(monkeypatch)
    alone = make()
    assert found == again == play_all(alone)
    assert (alone.computed_tokens, alone.reused_tokens) == (prompts, 0)


def test_a_tool_list_of_hundreds_of_tokens_is_computed_for_the_first_episode_alone() -> None:
    chat = families.chat("qwen3")
    function = {"name": "lookup", "description": "looks a word up in a dictionary " * 20, "parameters": {}}
    prompts = [chat.open((Message("user", query),), [{"type": "function", "function": function}]) for query in "ab"]
    assert 600 < len(prompts[0]) < 1_200
    config = dataclasses.replace(CONFIG, vocab_size=len(chat.tokenizer), max_position_embeddings=2_048)
    engine = LocalEngine(config, slots=2, max_length=1_280, prefill_rows=2, prefill_chunks=(8, 32))
    try:
        engine.load(Weights(0, lambda: to_hf(config, drawn(config, 0))))
        computed = []
        for number, prompt in enumerate(prompts):
            before = engine.computed_tokens
            engine.generate(prompt, Sampling(1.0, 1), session=str(number), seed=(number,))
            computed.append(engine.computed_tokens - before)
    finally:
        engine.close()
    assert computed[0] == len(prompts[0]) - 1
    assert computed[1] < 64


def test_a_beginning_is_kept_from_one_episode_to_the_next_until_every_slot_is_overwritten(make) -> None:
    engine = make()
    for number in (3, 4):
        play(engine, number)
    assert engine.reused_tokens == 72  # of 75, with the first chunk of 8
    for number in range(16):
        engine.generate([number] * 100, Sampling(1.0, 1), session=str(number), seed=(0,))
    for number in range(16):
        engine.release(str(number))
    before = engine.reused_tokens
    play(engine, 5)
    assert engine.reused_tokens == before


def test_of_old_weights_nothing_is_reused(make) -> None:
    engine, fresh = make(), make()
    play(engine, 3)
    for each in (engine, fresh):
        each.load(weights(1))
    before = engine.reused_tokens
    assert play(engine, 3) == play(fresh, 3)
    assert engine.reused_tokens == before


def test_who_waits_for_a_beginning_computes_it_where_the_first_is_released(make, monkeypatch) -> None:
    """After its first chunk, of which the others keep what was computed."""
    expected = [play(make(), number)[0] for number in (1, 2)]
    engine, real, calls = make(), forwards.prefill, []
    queued = threading.Event()

    def prefill(*arguments: object) -> object:
        calls.append(engine._lanes[0].batchers[0])
        if len(calls) == 1:
            queued.wait(patience(30))
        elif len(calls) == 2:
            assert len(calls[0]._waiting_requests) == 2
            engine.release("0")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(forwards, "prefill", prefill)
    found: dict[int, Completion | EngineError] = {}

    def ask(number: int) -> None:
        tokens = SYSTEM + query(number)
        try:
            found[number] = engine.generate(tokens, Sampling(1.0, 5), session=str(number), seed=(number, 0))
        except EngineError as error:
            found[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    threads[0].start()
    wait_until(lambda: bool(calls))
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(engine._lanes[0]._queue) == 2)
    queued.set()
    for thread in threads:
        thread.join(patience(30))
    assert isinstance(found[0], EngineError)
    assert [found[1], found[2]] == expected


def test_a_chunk_is_named_by_all_tokens_up_to_its_end_and_by_how_they_are_cut() -> None:
    tokens = list(range(40))
    whole = name_chunks(tokens, [32, 8])
    assert len(whole) == 2
    assert name_chunks(tokens[:39], [32, 8]) == whole[:1]  # the last chunk is not full
    assert name_chunks([*tokens[:39], 0], [32, 8])[0] == whole[0] != name_chunks([1, *tokens[1:]], [32, 8])[0]
    assert name_chunks(tokens, [8, 32])[1] != whole[1]
    assert name_chunks(tokens[:5], []) == ()


def test_what_a_page_holds_ends_where_it_is_overwritten() -> None:
    """Chunks of 8 in pages of 16: the first conversation has pages 0 and 1, the second shares 0 and copies 1 to 2."""
    pages, names = Pages(4, 16), name_chunks(range(32), [8] * 4)
    first = pages.take(2)
    for index, name in enumerate(names):
        pages.add(name, (first[index // 2],), index)
    prefix = pages.find_prefix(names[:3], (8, 16, 24))
    assert (prefix.full_pages, prefix.last_page, prefix.routes) == ((0,), 1, (0, 1, 2))
    assert pages.find_prefix(names[:2], (8, 16)).last_page == -1
    pages.share(0)
    (copy,) = pages.take(1)
    pages.add(names[2], (copy,), 2)
    pages.release(first)
    assert [pages.is_free(page) for page in range(4)] == [False, True, False, True]
    assert pages.find_prefix(names[:3], (8, 16, 24)).last_page == 1  # a free one comes first
    pages.drop(1, names[:3])
    assert count_leading(names, pages.holders) == 3
    assert pages.take(2) == [3, 1]
    assert pages.holders[names[2]] == {(copy,): 2}
    pages.release([0, copy])
    assert count_leading(names, pages.holders) == 3
    assert pages.take(1) == [copy]  # the end of a conversation goes first
    assert count_leading(names, pages.holders) == 2


def test_a_chunk_of_several_pages_is_held_while_all_of_them_are() -> None:
    pages, names = Pages(4, 16), name_chunks(range(48), [32, 16])
    taken = pages.take(3)
    pages.add(names[0], (taken[0], taken[1]), None)
    pages.add(names[1], (taken[2],), None)
    assert pages.find_prefix(names, (32, 48)).full_pages == (0, 1, 2)
    pages.drop(1)
    assert count_leading(names, pages.holders) == 0
    pages.drop(0)
    assert list(pages.holders) == [names[1]]
