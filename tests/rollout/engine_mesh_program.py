"""Run with four virtual devices by test_local_mesh.py: the local engine on a mesh against one device."""

from __future__ import annotations

import collections
import functools
import gc
import random
import re
import sys
import threading

import jax
import numpy as np
import pytest
from compiling import drawn

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters, to_hf
from cojax.policy.sharding import SAMPLING_AXES, copies, make_mesh, shard
from cojax.rollout import forwards
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.local import LocalEngine

# No other axis has 104 entries, so that it tells the vocabulary.
DENSE = ModelConfig(104, 64, 128, 2, 8, 4, 8, max_position_embeddings=256)
SPARSE = ModelConfig(
    104, 64, 128, 2, 8, 4, 8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
    model_type="qwen3_moe", max_position_embeddings=256,
)  # fmt: skip
CASES: dict[str, tuple[ModelConfig, dict[str, int]]] = {
    "data": (DENSE, {"data": 2}),
    "tensor": (DENSE, {"tensor": 2}),
    "tensor-4": (DENSE, {"tensor": 4}),
    "data-tensor": (DENSE, {"data": 2, "tensor": 2}),
    "expert": (SPARSE, {"expert": 2}),
    "fsdp-expert": (SPARSE, {"fsdp": 2, "expert": 2}),
}
SLOTS, LENGTH = 4, 96
Conversations = dict[int, list[Completion]]


def mesh_of(sizes: dict[str, int]) -> jax.sharding.Mesh | None:
    """Over the last devices, so that whatever is left on the default device shows."""
    count = int(np.prod([*sizes.values()]))
    return make_mesh(**sizes, devices=jax.devices()[-count:]) if sizes else None


def engine(config: ModelConfig, sizes: dict[str, int], slots: int = SLOTS) -> LocalEngine:
    made = LocalEngine(
        config, slots=slots, max_length=LENGTH, prefill_rows=2, prefill_chunks=(8, 32), mesh=mesh_of(sizes),
        routes=config.sparse,
    )  # fmt: skip
    made.load(Weights(0, lambda: iter(arrays(config))))
    return made


@functools.cache
def arrays(config: ModelConfig) -> list[tuple[str, np.ndarray]]:
    return list(to_hf(config, drawn(config, 0)))


def converse(engine: LocalEngine, number: int) -> list[Completion]:
    """Two turns. All begin with the same eight tokens, so that a chunk is copied."""
    draw = random.Random(number)
    session, tokens, completions = f"conversation {number}", [11] * 8, []
    for turn in range(2):
        tokens += [draw.randrange(104) for _ in range(draw.randint(1, 30))]
        sampling = Sampling(draw.choice([0.0, 1.0]), draw.randint(1, 6), (5, 6, 7))
        completions.append(engine.generate(tokens, sampling, session=session, seed=(number, turn)))
        tokens += completions[-1].tokens
    engine.release(session)
    return completions


def all_at_once(engine: LocalEngine, numbers: list[int]) -> Conversations:
    found: Conversations = {}
    threads = [
        threading.Thread(target=lambda n=n: found.__setitem__(n, converse(engine, n)), daemon=True) for n in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(numbers)
    return found


def check_results(config: ModelConfig, sizes: dict[str, int]) -> None:
    """The same bits in any company, and one device's tokens, routes and, to 1e-5, log-probabilities."""
    numbers = list(range(3 * SLOTS))
    one, many = engine(config, {}), engine(config, sizes)
    found, expected = all_at_once(many, numbers), all_at_once(one, numbers)
    assert many.reused_tokens > 0
    assert all_at_once(many, numbers[::-1]) == found
    assert all(converse(many, number) == found[number] for number in (3, 8))
    for number in numbers:
        for here, there in zip(found[number], expected[number], strict=True):
            assert (here.tokens, here.routes) == (there.tokens, there.routes), number
            np.testing.assert_allclose(here.logprobs, there.logprobs, atol=1e-5, rtol=0)
    for served in (one, many):
        served.close()


def check_memory(config: ModelConfig, sizes: dict[str, int]) -> None:
    """Each device holds its part of its replica's copy and cache, and no other device holds anything."""
    gc.collect()
    before, mesh = held(), mesh_of(sizes)
    made = engine(config, sizes)
    weights = sum(4 * int(np.prod(row.shape(config))) * copies(row, mesh, SAMPLING_AXES) for row in parameters(config))
    length = -(-LENGTH // 64) * 64
    cache = 2 * 4 * SLOTS * length * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    each = (weights + cache * mesh.shape["expert"]) // mesh.size
    gc.collect()
    assert held() - before == collections.Counter({device.id: each for device in mesh.devices.flat})
    made.close()


def held() -> collections.Counter[int]:
    """Bytes of live arrays on each device."""
    bytes_on: collections.Counter[int] = collections.Counter()
    for array in jax.live_arrays():
        for part in array.addressable_shards:
            bytes_on[part.device.id] += part.data.nbytes
    return bytes_on


def check_the_matrix_stays(config: ModelConfig, sizes: dict[str, int]) -> None:
    """No device gets another's part of the vocabulary matrix to score tokens."""
    made = engine(config, sizes)
    owned = made._lanes[0].forwards
    fed, chance = np.zeros((2, SLOTS), np.int32), np.zeros((2, SLOTS), np.float32)
    arguments = config, owned.params, owned._cache, fed, chance[None], np.int32(1), None, config.sparse, owned.mesh
    lowered = forwards.decode.lower(*arguments)
    collectives = re.findall(r"= (.*?) (?:all-gather|all-reduce)(?:-start)?\(", lowered.compile().as_text())
    assert not [shape for shape in collectives if "104,64" in shape], collectives
    assert [shape for shape in collectives if f"{SLOTS},104" in shape], collectives
    made.close()


def check_rest(config: ModelConfig, sizes: dict[str, int]) -> None:
    """Between `rest` and `load` nothing is sampled, whatever else the devices compute; then it goes on."""
    made, mesh = engine(config, sizes), mesh_of(sizes)
    expected, lane_forwards = converse(made, 1), made._lanes[0].forwards
    begun, run_all = threading.Event(), lane_forwards.run_all
    lane_forwards.run_all = lambda plans: (begun.set(), run_all(plans))[1]
    threads = [threading.Thread(target=made.generate, args=([3] * 20, Sampling(0.0, 60)), kwargs=of(1), daemon=True)]
    threads[0].start()
    assert begun.wait(60)
    made.rest()
    begun.clear()
    spread = shard(config, drawn(config, 0), mesh)
    total = jax.jit(lambda params: sum(leaf.sum() for leaf in jax.tree.leaves(params)))
    for _ in range(20):
        total(spread).block_until_ready()
    found: Conversations = {}
    threads.append(threading.Thread(target=lambda: found.__setitem__(1, converse(made, 1)), daemon=True))
    threads[1].start()
    assert not begun.wait(0.5)
    made.load(Weights(0, lambda: iter(arrays(config))))
    for thread in threads:
        thread.join(60)
    assert found[1] == expected
    made.rest()
    made.close()  # also at rest


def of(number: int) -> dict:
    return {"session": f"long {number}", "seed": (number,)}


def check_refusals() -> None:
    for keywords, said in (
        ({"lanes": 2, "mesh": mesh_of({"tensor": 2})}, r"lanes is 2; a replica of several devices \(tensor × expert\)"),
        ({"mesh": mesh_of({"data": 3})}, r"slots 4 is no multiple of lanes 3, 1 on each of the mesh's 3 replicas"),
        ({"mesh": mesh_of({"tensor": 3})}, r"has vocabulary=104, which tensor=3 does not divide"),
    ):
        with pytest.raises(ValueError, match=said):
            LocalEngine(DENSE, slots=SLOTS, max_length=LENGTH, **keywords)


if __name__ == "__main__":
    kind = sys.argv[1]
    model, sizes = CASES[kind]
    assert len(jax.devices()) == 4
    jax.config.update("jax_disable_most_optimizations", True)  # most of it is compiling
    check_memory(model, sizes)
    check_results(model, sizes)
    if kind == "data":
        # A replica of one device computes what that device alone would.
        two, alone = engine(model, sizes), engine(model, {}, slots=SLOTS // 2)
        assert all_at_once(two, [0, 1, 2, 3]) == all_at_once(alone, [0, 1, 2, 3])
        two.close()
        alone.close()
    if kind == "tensor":
        check_the_matrix_stays(model, sizes)
        check_rest(model, sizes)
    if kind == "data-tensor":
        check_refusals()
