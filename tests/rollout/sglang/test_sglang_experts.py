"""Routes of an SGLang server: asked for the tokens not reported before, and read as its source writes them."""

import base64
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import drawn
from fake_sglang import FakeServer, with_settings

from cojax.environment import EngineError
from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.sglang.client import read_routes
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings
from cojax.settings.tree import SGLangSettings

CONFIG = ModelConfig(
    112, 16, 24, 2, 2, 1, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True,
    model_type="qwen3_moe", tie_word_embeddings=False,
)  # fmt: skip
PARAMS = drawn(CONFIG, 0)
SHAPE = RouteShape.of(CONFIG)


def wire(routes: Any, dtype: Any = np.int32) -> str:
    """As sglang 0.5.23 writes them: base64 of the C-ordered tensor's bytes."""
    return base64.b64encode(np.asarray(routes, dtype).tobytes()).decode()


ROUTES = np.array([[[2, 5], [0, 7]], [[6, 1], [3, 4]]])


def test_routes_of_the_tokens_asked_for() -> None:
    """Of five tokens the last was never fed, and two were reported before."""
    routes = read_routes({"routed_experts": wire(ROUTES)}, SHAPE, 2, 5)
    assert routes == "AgUABwYBAwQ="
    np.testing.assert_array_equal(SHAPE.decode(routes), ROUTES)


HOSTILE = {
    "none": (None, TypeError, "NoneType; expected base64"),
    "numbers": (ROUTES.tolist(), TypeError, "list; expected base64"),
    "no base64": ("?" * 8, ValueError, "not base64"),
    "cut off": (wire(ROUTES)[:-5], ValueError, "not base64"),
    "cut off at a byte": (wire(ROUTES)[:-4], ValueError, "bytes; expected a multiple of 16"),
    "one token less": (wire(ROUTES[:1]), ValueError, "of 1 tokens; expected 2"),
    "one token more": (wire(np.concatenate([ROUTES, ROUTES[:1]])), ValueError, "of 3 tokens; expected 2"),
    "nothing": ("", ValueError, "of 0 tokens; expected 2"),
    "longs": (wire(ROUTES, np.int64), ValueError, "twice|expected 2"),
    "floats": (wire(ROUTES, np.float32), ValueError, "the model has 0–7"),
    "an expert that is not": (wire(np.where(ROUTES == 7, 8, ROUTES)), ValueError, "the model has 0–7"),
    "a padded row": (wire(np.where(ROUTES == 7, -1, ROUTES)), ValueError, "the model has 0–7"),
    "one expert twice": (wire(np.where(ROUTES == 7, 0, ROUTES)), ValueError, "twice"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_answer(name: str) -> None:
    reported, error, message = HOSTILE[name]
    with pytest.raises(error, match=message):
        read_routes({"routed_experts": reported}, SHAPE, 2, 5)


def test_an_answer_without_them() -> None:
    with pytest.raises(KeyError, match="routed_experts"):
        read_routes({}, SHAPE, 0, 5)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server that was started with --enable-return-routed-experts, and tells experts 2 and 5 throughout."""
    server = FakeServer()
    server.about["enable_return_routed_experts"] = True
    server.behave = report_routes
    yield server
    server.close()


def report_routes(path: str, body: dict, answer: dict) -> int:
    if path == "generate":
        count = len(body["input_ids"]) + len(answer["output_ids"]) - 1 - body["routed_experts_start_len"]
        answer["meta_info"]["routed_experts"] = wire([[[2, 5], [5, 2]]] * count)
    return 200


@pytest.fixture
def make(server: FakeServer, tmp_path: Path) -> Iterator[Callable[..., SGLangEngine]]:
    engines: list[SGLangEngine] = []

    def build(**settings: Any) -> SGLangEngine:
        settings = {"timeout_s": 10.0, "folder": tmp_path, "max_length": 64, **with_settings(**settings)}
        engines.append(SGLangEngine(CONFIG, urls=[server.url], wants_routes=True, **settings))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


WEIGHTS = Weights(0, lambda: to_hf(CONFIG, PARAMS))


def test_each_turn_asks_for_routes_not_reported_before(server, make) -> None:
    engine = make()
    assert engine.tells_routes
    engine.load(WEIGHTS)
    ask = lambda prompt: engine.generate(prompt, Sampling(1.0, 3), session="a", seed=(1,))  # noqa: E731
    first = ask([1, 2, 3, 4])
    assert SHAPE.decode(first.routes).tolist() == [[[2, 5], [5, 2]]] * 6
    second = ask([1, 2, 3, 4, *first.tokens, 9])
    assert SHAPE.decode(second.routes).shape == (4, 2, 2)
    engine.release("a")
    ask([1, 2, 3, 4])
    starts = [body["routed_experts_start_len"] for body in server.bodies if "input_ids" in body]
    assert starts == [0, 6, 0]


def test_broken_routes_cost_one_more_request_and_then_the_episode(server, make) -> None:
    broken = ["AAAA"]

    def behave(path: str, body: dict, answer: dict) -> int:
        report_routes(path, body, answer)
        if path == "generate" and broken:
            answer["meta_info"]["routed_experts"] = broken.pop()
        return 200

    server.behave = behave
    engine = make(max_attempts=2)
    engine.load(WEIGHTS)
    ask = lambda: engine.generate([1, 2], Sampling(1.0, 3), session="a", seed=(1,))  # noqa: E731
    assert len(SHAPE.decode(ask().routes)) == 4
    assert server.count("generate") == 2
    broken[:] = ["AAAA", "AAAA"]
    with pytest.raises(EngineError, match="routes have 3 bytes; expected a multiple of 16"):
        ask()


def test_a_server_that_cannot_tell_is_refused_before_the_first_request(server, make) -> None:
    server.about["enable_return_routed_experts"] = False
    with pytest.raises(EngineError, match=r"start it with --enable-return-routed-experts, or unset learner\.routes"):
        make().load(WEIGHTS)
    assert server.count("generate") == 0


def test_a_server_of_ours_is_started_to_tell_them(tmp_path: Path) -> None:
    launch = LaunchSettings(sys.executable, tmp_path, 64, routes=True)
    assert "--enable-return-routed-experts" in launch.make_command(0, 1, tmp_path, "x")
    other = dataclasses.replace(launch, routes=False)
    assert "--enable-return-routed-experts" not in other.make_command(0, 1, tmp_path, "x")


def test_what_cannot_go_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Unset sglang\.mixed"):
        SGLangEngine(
            CONFIG,
            folder=tmp_path,
            max_length=64,
            urls=["http://127.0.0.1:1"],
            wants_routes=True,
            settings=SGLangSettings(mixed=True),
        )
    tied = dataclasses.replace(CONFIG, tie_word_embeddings=True)
    with pytest.raises(ValueError, match="tied embedding of a model with experts"):
        SGLangEngine(tied, folder=tmp_path, max_length=64, urls=["http://127.0.0.1:1"])
    dense = ModelConfig(16, 8, 16, 1, 2, 1)
    with pytest.raises(ValueError, match="num_experts 0"):
        SGLangEngine(dense, folder=tmp_path, max_length=64, urls=["http://127.0.0.1:1"], wants_routes=True)
