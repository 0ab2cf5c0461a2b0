"""Run with eight virtual devices by test_mesh.py: what an update of rows split over devices sends, and its losses."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.append(str(Path(__file__).parents[1]))
from cojax.compile import program_text
from cojax.learner.batch import DTYPES, ID_COLUMNS
from cojax.learner.learner import Learner
from cojax.learner.losses import LOSSES
from cojax.learner.objective import bind_loss
from cojax.learner.rehearsal import make_full_batches
from cojax.policy import logprobs
from cojax.policy.adapters import Lora
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import batch_sharding, make_mesh
from cojax.policy.transformer import initialize

# No axis of a matrix is as long as a row of tokens, two rows, or a part of one.
LENGTH, WIDTH = 384, 32
TOKEN_COUNTS = {LENGTH // 4, LENGTH // 2, LENGTH, 2 * LENGTH}
DENSE = ModelConfig(104, WIDTH, 48, 2, 4, 2, 8, tie_word_embeddings=False)
SPARSE = ModelConfig(
    104, WIDTH, 48, 2, 4, 2, 8, model_type="qwen3_moe", num_experts=8, num_experts_per_tok=2,
    moe_intermediate_size=24, norm_topk_prob=True,
)  # fmt: skip
MESHES = {
    "dense": (DENSE, ({"fsdp": 2, "context": 2, "tensor": 2}, {"data": 2, "context": 4}), None),
    "sparse": (SPARSE, ({"fsdp": 2, "context": 2, "expert": 2},), Lora(2)),
}


def check_traffic(config: ModelConfig, sizes: dict[str, int], lora: Lora | None) -> None:
    """No device gathers the hidden states, logits or routers' probabilities of a row; keys and values it does."""
    learner = Learner(
        config, optax.adam(1e-3), loss_settings={"kl_coefficient": 0.1}, row_length=LENGTH, micro_rows=2,
        reference=initialize(config, 1), lora=lora, mesh=make_mesh(**sizes),
    )  # fmt: skip
    batch, _ = make_full_batches(learner, [2])
    kv_axes = config.num_key_value_heads // sizes.get("tensor", 1), config.head_dim
    for lowering in learner.lower_programs(learner.init(initialize(config, 0)), batch).values():
        program = program_text.parse_program(lowering().compile().as_text() or "")
        found = program_text.find_collectives(program, 8, (1, 1))
        gathered = [axes for one in found if one.kind == "all-gather" for axes in one.shapes]
        # XLA may write a gather as a sum of arrays that are 0 except for one device's part.
        summed = [axes for one in found if one.kind == "all-reduce" for axes in one.shapes]
        assert any(axes[-2:] == kv_axes for axes in gathered), (sizes, "the test looks for the wrong thing")
        others = [axes for axes in gathered if TOKEN_COUNTS & set(axes) and axes[-2:] != kv_axes]
        assert all(math.prod(axes) <= 2 * LENGTH for axes in others), (sizes, others)
        assert all(math.prod(axes) < LENGTH * WIDTH for axes in summed), (sizes, summed)


def check_losses() -> None:
    """Of every loss the sum, its gradients and its facts, with tokens split over devices as a batch's are."""
    draw, shape = np.random.default_rng(0), (4, 32)
    columns = {name: draw.normal(-1, 0.3, shape).astype(np.float32) for name in (*DTYPES, "logprobs", "entropy")}
    sequences = np.repeat(np.arange(16), 8).reshape(shape)
    numbers = {"sequences": sequences, "groups": sequences // 2, "tasks": sequences // 2, "turns": sequences % 2}
    columns |= {name: np.ones(shape, np.int32) for name, dtype in DTYPES.items() if dtype == np.int32}
    columns |= {name: numbers[name].astype(np.int32) for name in ID_COLUMNS if name in numbers}
    columns |= {"weights": (draw.random(shape) < 0.7).astype(np.float32) / 90, "routes_differing": columns["entropy"]}
    columns["advantages"] = np.where(sequences % 2, -1, 1).astype(np.float32)
    for name in LOSSES:
        settings = {"kl_coefficient": 0.1, "entropy_coefficient": 0.1} if name not in ("sft", "dpo") else {}
        loss = bind_loss(name, LOSSES, settings)

        def compute(inputs: dict, loss: object = loss) -> tuple:
            per_token, facts = loss.function(*(inputs[name] for name in loss.input_names), **loss.settings)
            return jnp.sum(inputs["weights"] * per_token), {name: jnp.sum(fact) for name, fact in facts.items()}

        def both(scores: dict, others: dict, compute: object = compute) -> tuple:
            return jax.value_and_grad(lambda scores: compute({**others, **scores}), has_aux=True)(scores)

        scores = {name: columns.pop(name) for name in ("logprobs", "entropy")}
        expected = jax.jit(both)(scores, columns)
        for sizes in ({"context": 4, "fsdp": 2}, {"context": 2, "data": 4}):
            put = functools.partial(jax.device_put, device=batch_sharding(make_mesh(**sizes)))
            found = jax.jit(both)(put(scores), put(columns))
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7, err_msg=f"{name} on {sizes}")
        columns |= scores


if __name__ == "__main__":
    assert len(jax.devices()) == 8
    logprobs.MAX_KEPT_BYTES = 0  # as for a large model
    if sys.argv[1] == "losses":
        check_losses()
    else:
        config, meshes, lora = MESHES[sys.argv[1]]
        for sizes in meshes:
            check_traffic(config, sizes, lora)
