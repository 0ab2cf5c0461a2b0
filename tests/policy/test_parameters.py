"""The parameter table: complete, exact both ways, and clear about what does not fit."""

import functools

import jax
import numpy as np
import pytest
from references import FIXTURES, initialize, reference

from cojax.policy import transformer
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import from_hf, get_leaf, parameters, to_hf

CONFIGS = {
    "qwen3": ModelConfig(61, 32, 40, 2, 4, 2, 16),
    "qwen2": ModelConfig(61, 32, 40, 3, 4, 1, tie_word_embeddings=False, model_type="qwen2"),
    "bfloat16": ModelConfig(61, 32, 40, 2, 4, 2, 16, dtype="bfloat16", param_dtype="bfloat16"),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_table_describes_every_leaf(config: ModelConfig) -> None:
    outlines = jax.eval_shape(functools.partial(transformer.initialize, config), 0)
    paths = {tuple(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(outlines)}
    assert paths == {row.path for row in parameters(config)}
    for row in parameters(config):
        assert get_leaf(outlines, row).shape == row.shape(config), row.name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_round_trip_is_bit_identical(config: ModelConfig) -> None:
    params = initialize(config, 0)
    back = from_hf(config, to_hf(config, params))
    assert jax.tree.structure(back) == jax.tree.structure(params)
    for row in parameters(config):
        before, after = np.asarray(get_leaf(params, row)), np.asarray(get_leaf(back, row))
        assert before.dtype == after.dtype
        assert before.tobytes() == after.tobytes(), row.name


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_export_gives_back_the_files_of_transformers(name: str) -> None:
    config, params, _ = reference(name)
    exported = dict(to_hf(config, params))
    with np.load(FIXTURES / f"{name}.npz") as file:
        expected = {key: file[key] for key in file if key.endswith(("weight", "bias"))}
    assert exported.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(exported[key], array, err_msg=key)
        assert exported[key].flags.c_contiguous


def test_layout_of_heads() -> None:
    """Hugging Face stacks heads along the rows of a query matrix, along the columns of the output matrix."""
    config = CONFIGS["qwen3"]
    params = initialize(config, 0)
    arrays = dict(to_hf(config, params))
    attention = params["layers"]["attention"]
    query, output = arrays["model.layers.1.self_attn.q_proj.weight"], arrays["model.layers.1.self_attn.o_proj.weight"]
    assert (query.shape, output.shape) == ((64, 32), (32, 64))
    np.testing.assert_array_equal(query[3 * 16 + 5], attention["query"]["kernel"][1, :, 3, 5])
    np.testing.assert_array_equal(output[:, 3 * 16 + 5], attention["output"]["kernel"][1, 3, 5, :])


def test_names_every_fault_at_once() -> None:
    config = CONFIGS["qwen3"]
    arrays = dict(to_hf(config, initialize(config, 0)))
    del arrays["model.norm.weight"]
    arrays["model.layers.0.mlp.up_proj.weight"] = arrays["model.layers.0.mlp.up_proj.weight"].T
    arrays["model.layers.2.mlp.up_proj.weight"] = np.zeros((40, 32), np.float32)
    with pytest.raises(ValueError, match="weights do not fit") as caught:
        from_hf(config, arrays)
    text = str(caught.value)
    assert "model.norm.weight is missing" in text
    assert "model.layers.0.mlp.up_proj.weight has shape (32, 40), expected (40, 32)" in text
    assert "model.layers.2.mlp.up_proj.weight is not part of this model" in text


def test_a_tied_head_in_the_file_is_no_fault() -> None:
    config = CONFIGS["qwen3"]
    arrays = dict(to_hf(config, initialize(config, 0)))
    from_hf(config, {**arrays, "lm_head.weight": arrays["model.embed_tokens.weight"]})
    with pytest.raises(ValueError, match="lm_head"):
        from_hf(CONFIGS["qwen2"], arrays)


def test_nothing_aliases_the_arrays_given_or_exported() -> None:
    config = CONFIGS["qwen3"]
    params = initialize(config, 0)
    arrays = dict(to_hf(config, params))
    # Aligned as XLA likes it: such a buffer it would take over without a copy.
    room = np.empty(61 * 32 + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    aligned = room[start : start + 61 * 32].reshape(61, 32)
    aligned[:] = arrays["model.embed_tokens.weight"]
    loaded = from_hf(config, {**arrays, "model.embed_tokens.weight": aligned})
    kept = np.array(loaded["embed"]["embedding"])
    arrays["model.embed_tokens.weight"][:] = 0
    aligned[:] = 0
    np.testing.assert_array_equal(loaded["embed"]["embedding"], kept)
    np.testing.assert_array_equal(params["embed"]["embedding"], kept)
