"""Quality of task sets: figures computed by hand, and an embedding endpoint that misbehaves."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import Answer, ChatServer, in_turn, serving

from cojax import openai_api as calls
from cojax.quality import (
    EMBEDDINGS,
    Embed,
    EmbeddingError,
    compare_own,
    compare_to_targets,
    compute_energy,
    count_bins,
    describe_pool,
    endpoint_embedding,
    hashed_ngrams,
    measure_greatest,
    measure_neighbours,
)
from cojax.run.assemble import build_quality
from cojax.settings.base import get_config
from cojax.settings.ranges import check_ranges
from cojax.storage.files import Log
from cojax.types import Action, Lineage, Task

KEY = "sk-very-secret-0123456789"
# Cosines 0, 0.6 and 0.8; the length of a row must not matter.
THREE = np.array([[1.0, 0.0], [0.0, 1.0], [6.0, 8.0]])
ACROSS = np.array([[1.0, 0.0], [-1.0, 0.0]])  # two targets, 2 apart


def energy_distance(targets: np.ndarray, embeddings: np.ndarray) -> float | None:
    """ED_rel of two whole sets of queries."""
    return compute_energy(
        compare_to_targets(embeddings, targets)[1], compare_own(embeddings, 1)[1], compare_own(targets, 1)[1]
    )


def test_neighbour_similarity_is_the_mean_cosine_to_the_nearest_others() -> None:
    assert measure_neighbours(THREE, 1) == pytest.approx((0.6 + 0.8 + 0.8) / 3)
    assert measure_neighbours(THREE, 2) == pytest.approx((0.0 + 0.6 + 0.0 + 0.8 + 0.6 + 0.8) / 6)
    assert measure_neighbours(THREE, 9) == measure_neighbours(THREE, 2)
    assert measure_neighbours(np.array([[3.0, 4.0], [0.6, 0.8]]), 1) == pytest.approx(1.0)
    assert measure_neighbours(THREE[:1], 1) is None
    with pytest.raises(ValueError, match="k is 0; expected at least 1"):
        measure_neighbours(THREE, 0)


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        ([[0.0, 1.0], [0.0, 2.0]], (2 * 2**0.5 - 0 - 2) / 2),  # alike, each √2 from both targets
        ([[0.0, 1.0], [0.0, -1.0]], (2 * 2**0.5 - 2 - 2) / 2),
        ([[1.0, 0.0], [0.0, 1.0]], (2 * (0 + 2 + 2 * 2**0.5) / 4 - 2**0.5 - 2) / 2),
    ],
)
def test_energy_distance_is_relative_to_the_spread_of_the_target(generated: list[list[float]], expected: float) -> None:
    assert energy_distance(ACROSS, np.array(generated)) == pytest.approx(expected)


def test_energy_distance_needs_two_different_targets_and_two_queries() -> None:
    assert energy_distance(ACROSS, THREE[:1]) is None
    assert energy_distance(ACROSS[:1], THREE) is None
    assert energy_distance(np.array([[1.0, 0.0], [2.0, 0.0]]), THREE) is None


def test_a_set_does_not_come_closer_by_growing() -> None:
    rng = np.random.default_rng(0)
    mean = {
        count: np.mean([energy_distance(rng.normal(size=(30, 4)), rng.normal(size=(count, 4))) for _ in range(300)])
        for count in (5, 80)
    }
    # With each row paired with itself it would be 0.2 and more at 5 rows.
    assert abs(mean[5]) < 0.02
    assert abs(mean[80]) < 0.02


def test_a_far_set_is_farther_than_a_near_one() -> None:
    rng = np.random.default_rng(0)
    centre = np.array([5.0, 0.0, 0.0])
    target, near, far = (rng.normal(size=(200, 3)) + shift for shift in (centre, centre, -centre))
    close, distant = energy_distance(target, near), energy_distance(target, far)
    assert close is not None
    assert distant is not None
    assert abs(close) < 0.05
    assert distant > 5


def test_greatest_similarity_and_its_histogram() -> None:
    cosines = measure_greatest(THREE, ACROSS)
    assert cosines == pytest.approx([1.0, 0.0, 0.6])
    assert count_bins(cosines) == [1, *[0] * 11, 1, *[0] * 6, 1]
    assert count_bins(np.array([-0.5, 0.049, 0.05, 1.0000002])) == [2, 1, *[0] * 17, 1]
    assert measure_greatest(THREE, np.zeros((0, 2))).tolist() == [0.0, 0.0, 0.0]


def test_a_text_without_features_is_like_nothing() -> None:
    rows = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    assert measure_neighbours(rows, 1) == 0.0
    # Two such texts do not differ: 0 apart, and 1 from any other.
    assert energy_distance(ACROSS, rows[:2]) == pytest.approx((2 * 1 - 0 - 2) / 2)
    with pytest.raises(ValueError, match=r"expected finite numbers of shape \[N, D\]"):
        measure_neighbours(np.array([[np.nan, 1.0], [1.0, 0.0]]), 1)


def test_blocks_give_what_one_matrix_gives_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    target, generated = rng.normal(size=(130, 6)), rng.normal(size=(1500, 6))
    whole = measure_neighbours(generated, 3), energy_distance(target, generated)
    monkeypatch.setattr("cojax.quality.BLOCK", 64)
    tracemalloc.start()
    parts = measure_neighbours(generated, 3), energy_distance(target, generated)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert parts == pytest.approx(whole)
    assert peak < 1500 * 1500 * 8 / 2
    unit = generated / np.linalg.norm(generated, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    assert whole[0] == pytest.approx(np.sort(cosines, axis=1)[:, -3:].mean())


# Queries that stand for embeddings.
PLACES = {"right": [1.0, 0.0], "up": [0.0, 1.0], "between": [6.0, 8.0], "left": [-1.0, 0.0]}


def placed(texts: Sequence[str]) -> np.ndarray:
    return np.array([PLACES[text] for text in texts])


def task(query: str, step: int = 0, actions: int = 1) -> Task:
    return Task("desk", query, {}, (Action("x"),) * actions, "boundary" if step else "unguided", Lineage(step=step))


POOL = (task("right"), task("up", actions=2), task("between", step=4, actions=6))


def test_a_pool_is_described_in_all_and_by_its_parts() -> None:
    found = describe_pool(POOL, (task("right"), task("left")), placed, 1)
    distances = {"right": 0.0, "up": 2**0.5, "between": 0.8**0.5}  # of 2 - 2·0.6
    far = (0 + 2 + 2 * 2**0.5 + 0.8**0.5 + 3.2**0.5) / 6  # of all three to both targets
    own = (distances["up"] + distances["between"] + 0.4**0.5) / 3
    assert found == {
        "tasks": 3,
        "turns": 3.0,
        "sr_at_k": 0.733333,
        "ed_rel": pytest.approx((2 * far - own - 2) / 2, abs=1e-6),
        "max_similarity": {
            "mean": pytest.approx(1.6 / 3, abs=1e-6),
            "max": 1.0,
            "histogram": count_bins(placed_cosines),
        },
        "initial": {
            "tasks": 2,
            "turns": 1.5,
            "sr_at_k": 0.0,
            "ed_rel": -0.5,
            "max_similarity": {"mean": 0.5, "max": 1.0, "histogram": [1, *[0] * 18, 1]},
        },
        "synthesized": {
            "tasks": 1,
            "turns": 6.0,
            "max_similarity": {"mean": 0.6, "max": 0.6, "histogram": [*[0] * 12, 1, *[0] * 7]},
        },
    }
    json.dumps(found, allow_nan=False)


placed_cosines = np.array([1.0, 0.0, 0.6])


def test_what_cannot_be_told_is_left_out() -> None:
    assert describe_pool((), (task("left"),), placed, 3) == {"tasks": 0}
    assert describe_pool(POOL[:1], (), placed, 3) == {
        "tasks": 1, "turns": 1.0, "initial": {"tasks": 1, "turns": 1.0},
    }  # fmt: skip
    assert describe_pool(POOL, (task("left"),), None, 3) == {
        "tasks": 3, "turns": 3.0, "initial": {"tasks": 2, "turns": 1.5}, "synthesized": {"tasks": 1, "turns": 6.0},
    }  # fmt: skip


def test_of_a_large_pool_a_sample_is_compared_that_stays_as_it_grows() -> None:
    def embed(texts: Sequence[str]) -> np.ndarray:
        asked.append(list(texts))
        return np.ones((len(texts), 2))

    asked: list[list[str]] = []
    pool = [task(f"query {number}") for number in range(50)]
    assert describe_pool(pool, pool, embed, 3, max_tasks=10)["tasks"] == 10
    describe_pool(pool[:40], pool, embed, 3, max_tasks=10)
    describe_pool(pool[::-1], pool, embed, 3, max_tasks=10)
    assert [len(texts) for texts in asked] == [20, 20, 20]
    whole, fewer, turned = (set(texts[:10]) for texts in asked)
    assert whole == turned
    assert len(whole & fewer) >= 10 - len(whole & {f"query {number}" for number in range(40, 50)})
    # As if by chance: neither the first nor the last ones alone.
    assert 0 < len(whole & {f"query {number}" for number in range(25)}) < 10


def test_an_embedding_of_another_number_of_texts_is_refused() -> None:
    with pytest.raises(EmbeddingError, match="4 texts gave embeddings of shape"):
        describe_pool(POOL, (task("left"),), lambda texts: placed(texts)[:2], 1)


def test_hashed_ngrams_see_wording() -> None:
    embed = hashed_ngrams()
    texts = [
        "Send the quarterly report to Ana and archive her last mail.",
        "  SEND the quarterly report to Ana\nand archive her last mail. ",
        "Send the quarterly report to Ben and archive his last mail.",
        "What is the weather in Lisbon tomorrow?",
        "",
        "明日の天気は？",
    ]
    rows = embed(texts)
    assert rows.shape == (6, 2048)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 1, 0, 1], abs=1e-6)
    cosines = rows @ rows[0]
    assert cosines[1] == pytest.approx(1.0, abs=1e-6)
    assert 0.5 < cosines[2] < 0.95
    assert abs(cosines[3]) < 0.2
    # The same on every machine and in every process.
    assert float(cosines[2]) == pytest.approx(PINNED, abs=1e-4)
    again = hashed_ngrams()(texts[::-1])[::-1]
    assert np.array_equal(again, rows)
    assert np.array_equal(embed([texts[2], texts[3]]), rows[2:4])  # known from the last call
    assert embed([]).shape == (0, 2048)


PINNED = 0.8183


# An embedding endpoint.


def vector(text: str) -> list[float]:
    return [float(len(text)), 1.0, -0.5]


def embeddings(body: dict[str, Any], server: ChatServer | None = None) -> Answer:
    # Not in order, as an endpoint may answer.
    items = [{"index": place, "embedding": vector(text)} for place, text in enumerate(body["input"])][::-1]
    return Answer(raw=json.dumps({"object": "list", "data": items, "model": "e"}).encode())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.01)


def asking(server: ChatServer, kept: Log | None = None, **settings: Any) -> Embed:
    return endpoint_embedding(server.url, "e", kept, **{"timeout_s": 5.0, **settings})


def test_an_endpoint_is_asked_in_batches_and_never_twice(tmp_path: Path) -> None:
    kept, texts = Log(tmp_path / "embeddings.jsonl"), ["one", "three", "one", "seventeen", "four", ""]
    with serving(embeddings) as server:
        embed = asking(server, kept, batch_size=2)
        rows = embed(texts)
        assert rows.dtype == np.float32
        assert rows.tolist() == [vector(text or " ") for text in texts]
        assert [body["input"] for body in server.bodies] == [["one", "three"], ["seventeen", "four"], [" "]]
        assert server.bodies[0] == {"input": ["one", "three"], "model": "e", "encoding_format": "float"}
        assert server.paths == ["/v1/embeddings"] * 3
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        embed(texts)
        assert asking(server, kept)([*texts, "new"]).tolist()[:6] == rows.tolist()
        assert [body["input"] for body in server.bodies[3:]] == [["new"]]
    # Neither texts nor the key are on disk.
    on_disk = (tmp_path / "embeddings.jsonl").read_text()
    assert not any(secret in on_disk for secret in (KEY, "seventeen", "three"))


def test_another_model_is_asked_anew(tmp_path: Path) -> None:
    kept = Log(tmp_path / "embeddings.jsonl")
    with serving(embeddings) as server:
        asking(server, kept)(["one"])
        endpoint_embedding(server.url, "other", kept)(["one"])
        assert [body["model"] for body in server.bodies] == ["e", "other"]


def test_damaged_embeddings_are_asked_for_anew(tmp_path: Path) -> None:
    kept = Log(tmp_path / "embeddings.jsonl")
    with serving(embeddings) as server:
        asking(server, kept)(["one"])
        (record,) = kept.read()
        for harm in ({"vector": "!!"}, {"vector": ""}, {"vector": "AADAfw=="}, {"key": 3}):
            kept.truncate(0)
            kept.append([{**record, **harm}])
            assert asking(server, kept)(["one"]).tolist() == [vector("one")]
    assert server.requests == 5


GOOD = embeddings({"input": ["one"]})


@pytest.mark.parametrize(
    "bad",
    [
        Answer("busy", status=500),
        Answer("slow down", status=429, headers={"Retry-After": "0.01"}),
        Answer(raw=b"<html>"),
        Answer(raw=b'{"data": []}'),
        Answer(raw=b'{"data": [{"index": 0, "embedding": []}]}'),
        Answer(raw=b'{"data": [{"index": 1, "embedding": [1.0]}]}'),
        Answer(raw=b'{"data": [{"index": 0, "embedding": [1.0, NaN]}]}'),
        Answer(raw=b'{"data": [{"index": 0, "embedding": [0, 0]}]}'),
        Answer(raw=b'{"data": [{"index": 0, "embedding": [[1.0]]}]}'),
        Answer(raw=b'{"data": [{"index": 0, "embedding": "AACAPw=="}]}'),
        Answer(raw=b'{"data": [{"index": [], "embedding": [1.0]}]}'),
        Answer(raw=b'{"data": {"index": 0}}'),
        Answer(raw=b"[" * 100_000),
        Answer(hang_up=True),
    ],
)
def test_a_bad_reply_is_asked_for_again_and_never_becomes_numbers(bad: Answer) -> None:
    with serving(in_turn(bad, GOOD)) as server:
        assert asking(server)(["one"]).tolist() == [vector("one")]
        assert server.requests == 2
    with serving(in_turn(bad)) as server:
        with pytest.raises(EmbeddingError, match="e gave no embeddings"):
            asking(server, max_attempts=2)(["one"])
        assert server.requests == 2


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_will_not_change_is_not_tried_again_and_the_key_is_struck_out(status: int) -> None:
    with serving(in_turn(Answer(f"no such model for {KEY}", status=status))) as server:
        with pytest.raises(EmbeddingError, match=rf"HTTP {status}: no such model for \[key\]") as caught:
            asking(server)(["one"])
        assert server.requests == 1
        assert KEY not in str(caught.value)


@pytest.mark.parametrize("stall", [Answer(stall=30.0), Answer(raw=b" " * 1000, drip=0.05)])
def test_a_stalled_endpoint_is_given_up(stall: Answer) -> None:
    with serving(in_turn(stall)) as server, pytest.raises(EmbeddingError, match=r"no reply within 0\.\d+ s"):
        asking(server, timeout_s=0.1, max_attempts=2)(["one"])


def test_the_deadline_bounds_all_batches_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    kept = Log(tmp_path / "embeddings.jsonl")
    with serving(in_turn(GOOD, Answer("busy", status=503, headers={"Retry-After": "40"}))) as server:
        with pytest.raises(EmbeddingError, match="HTTP 503"):
            asking(server, kept, batch_size=1, call_timeout_s=5.0)(["one", "two"])
        assert server.requests == 2
    assert len(list(kept.read())) == 1


@pytest.mark.parametrize(
    ("url", "model", "reason"),
    [
        ("", "e", "expected an address like"),
        ("HOST:8000/v1", "e", "expected an address like"),
        ("http://user:secret@host/v1", "e", "holds credentials"),
        ("http://host/v1?key=secret", "e", "holds credentials"),
        ("http://[broken/v1", "e", "is no address"),
        ("http://host:8000/v1", "", "quality.model is empty"),
    ],
)
def test_settings_that_cannot_work_are_refused(url: str, model: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        EMBEDDINGS["endpoint"](url, model, None)
    assert "secret" not in str(caught.value)


def test_a_run_goes_on_without_what_an_endpoint_does_not_give(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = get_config()
    config.workdir = str(tmp_path)
    config.quality.embedding, config.quality.model = "endpoint", "e"
    with serving(in_turn(Answer("no", status=400))) as server:
        config.quality.base_url = server.url
        found = build_quality(config, (task("left"),))(POOL)
    assert found == describe_pool(POOL, (), None, 5)
    (said,) = caplog.messages
    assert "the pool's diversity and its distance to the evaluation tasks are left out: e gave no" in said


def test_k_must_be_a_number_of_neighbours() -> None:
    config = get_config()
    config.quality.k = 0
    with pytest.raises(ValueError, match=r"quality\.k is 0; expected a whole number at least 1"):
        check_ranges(config)
