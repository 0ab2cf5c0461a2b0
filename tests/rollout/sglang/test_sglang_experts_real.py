"""Routes from a real SGLang server, launched here on the CPU: those that the learner's own routers choose."""

from pathlib import Path

import jax
import numpy as np
import pytest
from compiling import initialize

from cojax.learner.batch import decode_routes
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_scores
from cojax.policy.moe import RouteShape
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings
from cojax.run.engines import find_default_python
from cojax.settings.tree import SGLangSettings
from cojax.types import Action, Task, Trajectory, Turn

pytestmark = [pytest.mark.real, pytest.mark.nightly]
CONFIG = ModelConfig(
    112, 64, 128, 2, 4, 2, 16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
    model_type="qwen3_moe", max_position_embeddings=512, tie_word_embeddings=False,
)  # fmt: skip
PARAMS = initialize(CONFIG, 0)


def test_told_routes_are_the_routers_own(tmp_path: Path) -> None:
    """A conversation of two turns, whose second finds the first in the server's cache; in float32 no choice differs."""
    launch = LaunchSettings(str(find_default_python()), tmp_path / "sglang", 200, "float32", "cpu", routes=True)
    engine = SGLangEngine(
        CONFIG, folder=tmp_path, max_length=200, launch=launch, settings=SGLangSettings(startup_deadline=400.0),
        timeout_s=240.0, wants_routes=True,
    )  # fmt: skip
    turns, tokens = [], ()
    try:
        engine.load(Weights(0, lambda: to_hf(CONFIG, PARAMS)))
        for number, new in enumerate([tuple(range(5, 45)), (3, 1, 4, 1, 5)]):
            done = engine.generate((*tokens, *new), Sampling(1.0, 8), session="a", seed=(number,))
            fields = {"prompt_tokens": new, "action_tokens": done.tokens, "action_logprobs": done.logprobs}
            turns.append(Turn(Action(), **fields, routes=done.routes))
            tokens = (*tokens, *new, *done.tokens)
    finally:
        engine.close()
    assert engine.served["cached_tokens"] > 0
    routes = decode_routes(Trajectory(Task("desk", "q", {}), turns=tuple(turns)), RouteShape.of(CONFIG))
    row = np.array([tokens], np.int32)
    positions = np.arange(row.shape[1], dtype=np.int32)[None]
    score = jax.jit(token_scores, static_argnums=0, static_argnames="replay")
    found = score(CONFIG, PARAMS, row, positions, np.ones_like(row), routes=routes[None], replay=True)
    assert float(found.routes_differing.max()) == 0.0
    assert found.routes_known[0].tolist() == [0.0] + [1.0] * (row.shape[1] - 1)
    said = np.concatenate([turn.action_logprobs for turn in turns])
    acted = np.concatenate([np.repeat([0, 1], [len(turn.prompt_tokens), len(turn.action_tokens)]) for turn in turns])
    np.testing.assert_allclose(np.asarray(found.logprobs)[0][acted == 1], said, atol=1e-4, rtol=0)
