"""Adapters: nothing at first, exactly their share of the dense gradient, and the same policy once merged."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import drawn

from cojax.policy.adapters import Lora, add_adapters, initialize_adapters, list_adapted, make_factors, merge
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import get_leaf, parameters
from cojax.policy.sharding import partition

DENSE = ModelConfig(64, 32, 48, 2, 4, 2, 16, tie_word_embeddings=False)
SPARSE = ModelConfig(
    64,
    32,
    48,
    2,
    4,
    2,
    16,
    model_type="qwen3_moe",
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    norm_topk_prob=True,
)
CONFIGS = {"dense": DENSE, "sparse": SPARSE, "bfloat16": dataclasses.replace(DENSE, dtype="bfloat16")}
LORA = Lora(rank=3, alpha=6.0)
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 12)).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(12, dtype=np.int32), TOKENS.shape)


@functools.cache
def base(config):
    return drawn(config, 0)


@functools.cache
def moved(config, lora=LORA):
    """Adapters that no longer are zero."""
    fresh, draw = initialize_adapters(config, lora, 1), np.random.default_rng(2)
    return jax.tree.map(lambda leaf: jnp.asarray(np.float32(leaf + 0.1 * draw.normal(size=leaf.shape))), fresh)


@functools.partial(jax.jit, static_argnums=0, static_argnames="remat")
def logprobs(config, params, remat="none"):
    return token_logprobs(config, params, TOKENS, POSITIONS, jnp.ones_like(TOKENS), remat=remat)


@pytest.mark.parametrize("kind", ["sparse", "bfloat16"])
def test_fresh_adapters_change_nothing_and_merged_ones_are_the_policy(kind):
    config = CONFIGS[kind]
    plain = logprobs(config, base(config))
    fresh = initialize_adapters(config, LORA, 1)
    assert (logprobs(config, add_adapters(config, LORA, base(config), fresh)) == plain).all()
    own = logprobs(config, add_adapters(config, LORA, base(config), moved(config)))
    assert float(jnp.abs(own - plain).max()) > 0.5
    assert (logprobs(config, merge(config, LORA, base(config), moved(config))) == own).all()


@pytest.mark.parametrize(("kind", "remat"), [("dense", "layers"), ("sparse", "none")])
def test_the_gradient_is_the_dense_gradient_projected(kind, remat):
    """∂/∂A = scale · ∂/∂W · Bᵀ and ∂/∂B = scale · Aᵀ · ∂/∂W, with scale = 6 / 3."""
    config, adapters = CONFIGS[kind], moved(CONFIGS[kind])

    @jax.jit
    def gradients(params, adapters):
        dense = jax.grad(lambda p: logprobs(config, p).mean())(params)
        own = jax.grad(lambda a: logprobs(config, add_adapters(config, LORA, base(config), a), remat=remat).mean())
        return dense, own(adapters)

    dense, own = gradients(merge(config, LORA, base(config), adapters), adapters)
    for row in list_adapted(config, LORA):
        of_a, of_b = make_factors(row)
        a, b, whole = (
            np.asarray(get_leaf(t, r), np.float64) for t, r in ((adapters, of_a), (adapters, of_b), (dense, row))
        )
        # [stack, inputs, rank], [stack, rank, outputs], [stack, inputs, outputs]
        stack = int(np.prod(whole.shape[: len(row.lead_axes)]))
        a, b = a.reshape(stack, -1, 3), b.reshape(stack, 3, -1)
        whole = whole.reshape(stack, a.shape[1], b.shape[2])
        for found, expected in (
            (get_leaf(own, of_a), 2.0 * whole @ b.transpose(0, 2, 1)),
            (get_leaf(own, of_b), 2.0 * a.transpose(0, 2, 1) @ whole),
        ):
            error = np.linalg.norm(np.asarray(found).ravel() - expected.ravel())
            assert error <= 1e-4 * np.linalg.norm(expected), row.name


def test_what_the_backward_pass_keeps_holds_no_merged_matrix():
    """The frozen matrices are there, as what the merging reads, and nothing else of their shapes."""
    matrices = sorted(get_leaf(base(DENSE), row).shape for row in list_adapted(DENSE, LORA))
    for remat in ("dots", "layers"):

        def policy(adapters, remat=remat):
            return logprobs(DENSE, add_adapters(DENSE, LORA, base(DENSE), adapters), remat=remat)

        kept = jax.tree.leaves(jax.eval_shape(lambda a, policy=policy: jax.vjp(policy, a)[1], moved(DENSE)))
        assert sorted(leaf.shape for leaf in kept if leaf.shape in matrices) == matrices, remat


def test_every_matrix_of_the_layers_is_a_row_and_nothing_else():
    names = lambda config, *targets: [r.name for r in list_adapted(config, Lora(2, targets=targets))]  # noqa: E731
    assert names(DENSE) == [
        "layers/attention/query/kernel", "layers/attention/key/kernel", "layers/attention/value/kernel",
        "layers/attention/output/kernel", "layers/feed_forward/gate/kernel", "layers/feed_forward/up/kernel",
        "layers/feed_forward/down/kernel",
    ]  # fmt: skip
    assert names(SPARSE)[4:] == ["layers/feed_forward/gate", "layers/feed_forward/up", "layers/feed_forward/down"]
    assert names(dataclasses.replace(DENSE, model_type="qwen2"), "query", "down") == [
        "layers/attention/query/kernel",
        "layers/feed_forward/down/kernel",
    ]


def test_shapes_and_layout_follow_the_matrix():
    adapters = initialize_adapters(SPARSE, LORA, 0)
    shapes = {name: (leaf["a"].shape, leaf["b"].shape) for name, leaf in adapters["layers"]["feed_forward"].items()}
    assert shapes == {
        "gate": ((2, 4, 32, 3), (2, 4, 3, 24)),
        "up": ((2, 4, 32, 3), (2, 4, 3, 24)),
        "down": ((2, 4, 24, 3), (2, 4, 3, 32)),
    }
    output = adapters["layers"]["attention"]["output"]["kernel"]
    assert (output["a"].shape, output["b"].shape) == ((2, 4, 16, 3), (2, 3, 32))
    rows = {row.name: row for row in parameters(SPARSE)}
    layouts = {name: tuple(tuple(partition(f)) for f in make_factors(rows[f"layers/{name}"])) for name in (
        "attention/output/kernel", "feed_forward/down",
    )}  # fmt: skip
    assert layouts == {
        "attention/output/kernel": ((None, "tensor", None, None), (None, None, ("fsdp", "context"))),
        "feed_forward/down": ((None, "expert", "tensor", None), (None, "expert", None, ("fsdp", "context"))),
    }
    a = np.asarray(adapters["layers"]["attention"]["query"]["kernel"]["a"])
    assert a.std() == pytest.approx(32**-0.5, rel=0.2)
    assert not any(np.asarray(leaf["b"]).any() for leaf in adapters["layers"]["feed_forward"].values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank is 0; adapters need at least 1"),
        ({"rank": 2, "targets": ("router",)}, "lora.targets has 'router'; the model's matrices are query, key, value"),
        ({"rank": 2, "targets": ("head",)}, "lora.targets has 'head'"),
    ],
)
def test_a_wrong_setting_says_what_is_right(settings, message):
    with pytest.raises(ValueError, match=message):
        list_adapted(SPARSE, Lora(**settings))
