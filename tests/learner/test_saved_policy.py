"""What a learner saves for servers is what it gives to an engine itself; nothing that is not finite is written."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from compiling import initialize
from small_runs import tree
from tiny_learner import CONFIG, PARAMS, make_learner

from cojax.policy.adapters import Lora
from cojax.policy.saved_params import make_reader, read_array
from cojax.rollout.export import restore_item, write_item, write_weights


@pytest.mark.parametrize("lora", [None, Lora(2)])
def test_a_learner_saves_what_it_gives_to_an_engine_adapters_summed(tmp_path, lora):
    learner = make_learner(lora=lora, reference=PARAMS)
    state = learner.init(PARAMS)
    if lora:  # fresh adapters change nothing
        moved = jax.tree.map(lambda leaf: leaf + np.float32(0.1), state.params)
        state = type(state)(state.step, moved, state.opt_state)
    weights = learner.weights(state, 3)
    write_weights(tmp_path / "folder", CONFIG, weights.arrays(), "bfloat16")
    write_item(tmp_path / "item", CONFIG, weights.save, "bfloat16", "")
    restore_item(tmp_path / "item", tmp_path / "restored", "")
    assert tree(tmp_path / "restored") == tree(tmp_path / "folder")


@pytest.mark.parametrize(("dtype", "value"), [("float32", np.inf), ("float16", 65_520.0), ("bfloat16", 3.4e38)])
def test_numbers_that_are_not_finite_are_not_written(tmp_path, dtype, value):
    params = initialize(CONFIG, 0)
    params["final_norm"]["scale"] = params["final_norm"]["scale"].at[3].set(value)
    learner = make_learner()
    weights = learner.weights(learner.init(params), 3)
    with pytest.raises(ValueError, match=rf"final_norm/scale is not finite in {dtype}; training has diverged"):
        write_item(tmp_path / "item", CONFIG, weights.save, dtype, "")
    assert list(tmp_path.iterdir()) == []


def test_the_largest_finite_number_passes(tmp_path):
    params = initialize(CONFIG, 0)
    params["final_norm"]["scale"] = params["final_norm"]["scale"].at[3].set(65_519.0)
    learner = make_learner()
    write_item(tmp_path / "item", CONFIG, learner.weights(learner.init(params), 3).save, "float16", "")
    folder, path = tmp_path / "item/params", ("final_norm", "scale")
    assert read_array(make_reader(), folder, path, (CONFIG.hidden_size,), "float16")[3] == 65_504.0
