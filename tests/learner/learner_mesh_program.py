"""Run with eight virtual devices by test_learner_mesh.py: steps with adapters and a reference, on meshes and on one."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np
import optax

sys.path.extend(map(str, Path(__file__).parents[:2]))
import tiny_learner as here

from cojax.learner.learner import Learner
from cojax.learner.rehearsal import rehearse
from cojax.learner.update import TrainState
from cojax.policy.adapters import Lora
from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.policy.sharding import make_mesh
from cojax.policy.transformer import initialize
from cojax.storage.checkpoint import Checkpointer
from cojax.types import Group

DENSE = ModelConfig(16, 32, 48, 2, 4, 2, 16)
SPARSE = ModelConfig(
    16,
    32,
    48,
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
CASES = {
    "dense": (DENSE, {"fsdp": 4, "tensor": -1}),
    "sparse": (SPARSE, {"data": -1, "fsdp": 2, "expert": 2}),
    "parts": (DENSE, {"context": 4, "fsdp": 2}),
    "sparse parts": (SPARSE, {"fsdp": 2, "context": 2, "expert": -1}),
}


# Tokens alone; sequences, with a mask over each and the entropy's gradient; pairs, which may lie on two devices.
LOSSES = {
    "grpo": {"kl_coefficient": 0.1},
    "gspo": {"clip_high": 0.5, "sequence_low": 0.5, "entropy_coefficient": 0.1, "kl_coefficient": 0.1},
    "dpo": {"beta": 1.0, "sft_coefficient": 0.1},
}


def learner(config: ModelConfig, sizes: dict, lora: Lora | None, loss: str, routes: str) -> Learner:
    return Learner(
        config,
        optax.sgd(0.1, momentum=0.9),
        loss=loss,
        loss_settings=LOSSES[loss],
        row_length=16,
        micro_rows=4,
        reference=initialize(config, 1),
        lora=lora,
        routes=routes,
        mesh=make_mesh(**sizes) if sizes else None,
    )


def begun(learner: Learner, config: ModelConfig) -> TrainState:
    """With adapters that are not zero, so that all of them have gradients."""
    state = learner.init(initialize(config, 0))
    if learner.lora is None:
        return state
    draw = np.random.default_rng(0)
    moved = jax.tree.map(
        lambda leaf: jax.device_put(
            np.asarray(leaf) + draw.normal(0, 0.02, leaf.shape).astype(np.float32), leaf.sharding
        ),
        state.params,
    )
    return dataclasses.replace(state, params=moved)


def routed(config: ModelConfig, group: Group) -> Group:
    """The group with routes of its tokens, drawn by their number."""
    shape, draw = RouteShape.of(config), np.random.default_rng(0)
    trajectories = []
    for trajectory in group.trajectories:
        [turn] = trajectory.turns
        count = len(turn.prompt_tokens) + len(turn.action_tokens) - 1
        told = shape.encode(draw.random((count, shape.layers, shape.experts)).argsort(-1)[..., : shape.top_k])
        trajectories.append(dataclasses.replace(trajectory, turns=(dataclasses.replace(turn, routes=told),)))
    return dataclasses.replace(group, trajectories=tuple(trajectories))


def compare(config: ModelConfig, sizes: dict, lora: Lora | None, loss: str, folder: Path, routes: str = "own") -> None:
    results = []
    groups = here.GROUPS if routes == "own" else [routed(config, group) for group in here.GROUPS]
    for shape in ({}, sizes):
        learns = learner(config, shape, lora, loss, routes)
        state = begun(learns, config)
        layout = jax.tree.map(lambda leaf: leaf.sharding, state)
        state = rehearse(learns, state, [4, 4, 4])
        for _ in range(2):
            state, _ = learns.update(state, groups)
        assert jax.tree.map(lambda leaf: leaf.sharding, state) == layout
        assert (learns._update_fn._cache_size(), learns._forward_fn._cache_size()) == (1, 1)
        results.append((learns, state))
    (alone, one), (spread, many) = results
    start = begun(alone, config).params
    for before, a, b in zip(*(jax.tree.leaves(tree) for tree in (start, one.params, many.params)), strict=True):
        before, a, b = (np.asarray(leaf, np.float64) for leaf in (before, a, b))
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a), (sizes, lora, loss)
        assert np.linalg.norm(a - before) > 0
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves((many.params, spread.reference)))
    kernel = spread.reference["layers"]["attention"]["query"]["kernel"]
    assert kernel.addressable_shards[0].data.size < kernel.size
    keeper = Checkpointer(folder / f"{loss}-{lora}-{routes}")
    keeper.save(1, many, {})
    restored = keeper.read_arrays(1, alone.init(initialize(config, 0)))
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(many), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    assert len(jax.devices()) == 8
    model, sizes = CASES[kind]
    for lora, loss in ((Lora(2), "grpo"), (None, "grpo"), (None, "gspo"), (None, "dpo")):
        compare(model, sizes, lora, loss, folder)
    if model.sparse:
        compare(model, sizes, None, "grpo", folder, "replayed")
