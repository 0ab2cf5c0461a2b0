"""Run with four virtual devices by test_sharding.py: log-probabilities on meshes are those on one device."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from policy.references import one_segment, reference

from cojax.policy.logprobs import token_logprobs
from cojax.policy.sharding import batch_sharding, make_mesh, shard

if __name__ == "__main__":
    assert len(jax.devices()) == 4
    jax.config.update("jax_disable_most_optimizations", True)  # most of it is compiling
    config, params, _ = reference("qwen2")
    config = dataclasses.replace(config, vocab_size=60)
    params = {
        **params,
        "embed": {"embedding": params["embed"]["embedding"][:60]},
        "head": {"kernel": params["head"]["kernel"][:, :60]},
    }
    tokens = np.random.default_rng(0).integers(0, 60, (4, 24)).astype(np.int32)
    batch = (tokens, *one_segment(tokens))
    score = jax.jit(lambda params, batch: token_logprobs(config, params, *batch, chunk=8))
    alone = np.asarray(score(params, batch))
    for sizes in ({"tensor": 2, "fsdp": 2}, {"data": 2, "tensor": 2}, {"context": 2, "tensor": 2}):
        mesh = make_mesh(**sizes)
        placed = shard(config, params, mesh)
        kernel = placed["layers"]["feed_forward"]["gate"]["kernel"]
        share = 32 // mesh.shape["fsdp"] // mesh.shape["context"], 40 // mesh.shape["tensor"]
        assert kernel.addressable_shards[0].data.shape == (2, *share), kernel.sharding
        spread = np.asarray(score(placed, jax.device_put(batch, batch_sharding(mesh))))
        np.testing.assert_allclose(spread, alone, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="layers/attention/key/kernel has kv_heads=2, which tensor=4 does not divide"):
        shard(config, params, make_mesh(tensor=4))
