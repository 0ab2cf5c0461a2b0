"""Learning by adapters alone: the loss falls, the base stays, and a checkpoint holds nothing else."""

import functools

import jax
import numpy as np
import pytest
from tiny_learner import GROUPS, PARAMS, bits, make_learner

from cojax.learner.batch import RowShape, pack_sequences
from cojax.learner.learner import StepBatches
from cojax.learner.optimizer import adamw
from cojax.policy.adapters import Lora
from cojax.storage.checkpoint import Checkpointer


@functools.cache
def adapting():
    return make_learner(loss_settings={"kl_coefficient": 0.1}, reference=PARAMS, lora=Lora(2))


def test_adapters_lower_the_loss_and_the_base_stays():
    learner = make_learner(loss="sft", optimizer=adamw(3e-2), micro_rows=1, lora=Lora(4), reference=PARAMS)
    demonstrations = [([1, 2, 5, 9], [False, False, True, True]), ([1, 3, 7, 4], [False, False, True, True])]
    batch, before = pack_sequences(demonstrations, RowShape(16)), bits(PARAMS)
    state, losses = learner.init(PARAMS), []
    for _ in range(60):
        state, metrics = learner.update(state, StepBatches([batch]))
        losses.append(metrics["loss"])
    assert losses[-1] < 0.25 * losses[0]
    assert bits(learner.reference) == bits(PARAMS) == before


def test_a_restored_state_continues_bit_for_bit_and_is_small(tmp_path):
    learner, checkpointer = adapting(), Checkpointer(tmp_path)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-7)  # the reference is the base that fresh adapters leave as it is
    # Of rank 2 and 2 layers: query and output 8 + 8, key and value 8 + 4, three matrices of 8 + 16.
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) == 2 * 2 * (2 * 16 + 2 * 12 + 3 * 24)
    checkpointer.save(1, state, {})
    ahead, metrics = learner.update(state, GROUPS)
    assert metrics["kl"] > 1e-6
    restored = checkpointer.read_arrays(1, learner.init(PARAMS, seed=7))
    resumed, _ = learner.update(restored, GROUPS)
    assert bits(resumed) == bits(ahead)


def test_an_engine_is_given_the_sum():
    learner = adapting()
    state = learner.init(PARAMS)
    before = dict(learner.weights(state, 0).arrays())
    after = dict(learner.weights(learner.update(state, GROUPS)[0], 1).arrays())
    plain = dict(make_learner().weights(make_learner().init(PARAMS), 0).arrays())
    assert all(before[name].tobytes() == array.tobytes() for name, array in plain.items())
    changed = {name for name in plain if not np.array_equal(after[name], plain[name])}
    assert changed == {name for name in plain if "_proj" in name}


def test_adapters_need_what_they_are_added_to():
    with pytest.raises(
        ValueError, match="lora needs a reference, which the adapters are added to; pass reference=params"
    ):
        make_learner(lora=Lora(2))
