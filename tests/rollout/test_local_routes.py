"""The routes that the local engine tells are those that the learner's own routers choose at the same weights."""

import jax
import numpy as np
import pytest
from compiling import drawn

from cojax.learner.batch import decode_routes
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_scores
from cojax.policy.moe import RouteShape
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Routed, Sampling, Weights
from cojax.rollout.local import LocalEngine
from cojax.types import Action, Task, Trajectory, Turn

CONFIG = ModelConfig(
    61,
    32,
    40,
    2,
    4,
    2,
    16,
    model_type="qwen3_moe",
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    norm_topk_prob=True,
)
PARAMS = drawn(CONFIG, 0)
SHAPE = RouteShape.of(CONFIG)


def weights(version: int) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, PARAMS))


def test_told_routes_are_the_routers_own() -> None:
    """Two turns; between them the caches are made anew, which tells no token twice. Copied chunks tell their routes."""
    engine = LocalEngine(CONFIG, slots=2, max_length=64, prefill_rows=1, prefill_chunks=(8,), routes=True)
    assert isinstance(engine, Routed)
    assert engine.tells_routes
    turns, tokens = [], ()
    try:
        for turn, new in enumerate([tuple(range(1, 20)), (3, 1, 4, 1, 5)]):
            engine.load(weights(turn))
            done = engine.generate((*tokens, *new), Sampling(1.0, 6), session="a", seed=(turn,))
            told = len(new) + 6 - (turn == 0)  # of the last token of a turn with the next one
            assert SHAPE.decode(done.routes).shape == (told, 2, 2)
            fields = {"prompt_tokens": new, "action_tokens": done.tokens, "action_logprobs": done.logprobs}
            turns.append(Turn(Action(), **fields, routes=done.routes))
            tokens = (*tokens, *new, *done.tokens)
        again = engine.generate(tokens[:-6], Sampling(1.0, 6), session="b", seed=(1,))
        assert (again.tokens, engine.reused_tokens) == (done.tokens, 24)  # of the 29 before the prompt's last token
    finally:
        engine.close()
    routes = decode_routes(Trajectory(Task("desk", "q", {}), turns=tuple(turns)), SHAPE)
    assert (routes[:-1] >= 0).all()
    assert (routes[-1] == -1).all()
    assert (SHAPE.decode(again.routes) == routes[:-1]).all()
    row = np.array([tokens], np.int32)
    positions = np.arange(row.shape[1], dtype=np.int32)[None]
    score = jax.jit(token_scores, static_argnums=0, static_argnames="replay")
    found = score(CONFIG, PARAMS, row, positions, np.ones_like(row), routes=routes[None], replay=False)
    assert float(found.routes_differing.max()) == 0.0
    assert found.routes_known[0].tolist() == [0.0] + [1.0] * (row.shape[1] - 1)


def test_an_engine_of_a_dense_model_tells_none() -> None:
    with pytest.raises(ValueError, match="num_experts 0"):
        LocalEngine(ModelConfig(16, 8, 16, 1, 2, 1), routes=True)
