"""Rotary frequencies by hand, and what a config.json may ask for."""

import numpy as np
import pytest

from cojax.policy.config import RopeScaling, compute_frequencies, read_rope, write_rope

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def test_plain_frequencies() -> None:
    """θ = 10,000 over 4 pairs: 1, 0.1, 0.01, 0.001."""
    found, factor = compute_frequencies(1e4, 8, None)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    assert factor == 1.0


def test_linear_scaling_divides_all() -> None:
    found, factor = compute_frequencies(1e4, 8, RopeScaling("linear", 4.0))
    np.testing.assert_allclose(found, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-6)
    assert factor == 1.0


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    """64 positions, θ = 10,000, size 8: pair i makes 64 / (2π · 10^i) turns: 10.19, 1.02, 0.10, 0.01.

    Turns of 32 and 1 lie at pairs −0.497 and 1.008, rounded outwards and cut to 0 and 2: the ramp is 0, ½, 1, 1. So
    the second is ½ · 0.1 + ½ · 0.025 = 0.0625.
    """
    found, factor = compute_frequencies(1e4, 8, RopeScaling("yarn", 4.0, 64, 1.25))
    np.testing.assert_allclose(found, [1, 0.0625, 0.0025, 0.00025], rtol=1e-6)
    assert factor == 1.25


def test_yarn_without_rounding_the_range() -> None:
    """The ramp ends at pair 1.0080 and begins at 0: at pair 1 it is 1 / 1.0080 = 0.99206."""
    found, _ = compute_frequencies(1e4, 8, RopeScaling("yarn", 4.0, 64, truncate=False))
    np.testing.assert_allclose(found, [1, 0.1 * 0.00794 + 0.025 * 0.99206, 0.0025, 0.00025], rtol=1e-3)


def test_llama3_keeps_fast_pairs_and_divides_slow_ones() -> None:
    """64 positions, θ = 10,000, size 8: the pairs make 10.19, 1.0186, 0.10 and 0.01 turns.

    The second is (1.0186 − 1) / (4 − 1) = 0.0061972 of the way: 0.1 · (0.0061972 + 0.9938028 / 8) = 0.0130423.
    """
    found, factor = compute_frequencies(1e4, 8, RopeScaling("llama3", 8.0, 64))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [1, 0.0130423, 0.00125, 0.000125], rtol=1e-5)
    assert factor == 1.0


def test_llama3_fields_are_read() -> None:
    given = {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 6.0}
    expected = RopeScaling("llama3", 8.0, 64, low_freq_factor=2.0, high_freq_factor=6.0)
    assert read_rope({"rope_theta": 5e5, "rope_scaling": given}) == (5e5, expected)
    elsewhere = {"rope_scaling": {**given, "original_max_position_embeddings": None}, "max_position_embeddings": 64}
    assert read_rope(elsewhere)[1] == expected


@pytest.mark.parametrize(
    "hf",
    [
        {"rope_theta": 1e6, "rope_scaling": YARN},
        {"rope_theta": 1e6, "rope_scaling": {**YARN, "rope_type": None, "type": "yarn"}},
        {"rope_parameters": {**YARN, "rope_theta": 1e6}},
        {"rope_parameters": {**YARN, "rope_theta": 1e6}, "rope_theta": 5.0},
        {"rope_theta": 1e6, "rope_scaling": {**YARN, "factor": None}, "max_position_embeddings": 256},
    ],
)
def test_old_and_new_spellings_are_one(hf: dict) -> None:
    """The factor on cos and sin that is not given is 0.1 · ln 4 + 1 = 1.1386294."""
    theta, scaling = read_rope(hf)
    assert theta == 1e6
    assert scaling == RopeScaling("yarn", 4.0, 64, pytest.approx(1.1386294))


def test_yarn_fields_are_read() -> None:
    """mscale 1 and mscale_all_dim 0.5: (0.1 ln 4 + 1) / (0.05 ln 4 + 1) = 1.1386294 / 1.0693147 = 1.0648216."""
    given = {**YARN, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5, "truncate": False}
    assert read_rope({"rope_scaling": given})[1] == RopeScaling("yarn", 4.0, 64, 1.5, 16.0, 2.0, False)
    scaled = read_rope({"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}})[1]
    assert scaled is not None
    assert scaled.attention_factor == pytest.approx(1.0648216)
    # Where the original length is not named it is the model's own.
    assert read_rope({"rope_scaling": {"type": "yarn", "factor": 2.0}, "max_position_embeddings": 99})[
        1
    ] == RopeScaling("yarn", 2.0, 99, pytest.approx(1.0693147))


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        RopeScaling("linear", 2.0),
        RopeScaling("yarn", 4.0, 64, 1.2, 16.0, 2.0),
        RopeScaling("llama3", 8.0, 64, low_freq_factor=2.0, high_freq_factor=6.0),
    ],
)
def test_what_is_written_is_read(scaling: RopeScaling | None) -> None:
    assert read_rope(write_rope(5e5, scaling)) == (5e5, scaling)


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling of type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters of type 'longrope'"),
        (
            {"rope_scaling": {**LLAMA3, "low_freq_factor": None}},
            r"rope_scaling\.low_freq_factor=None; expected a number",
        ),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor 4.0 and high_freq_factor 4.0"),
        ({"rope_scaling": {**LLAMA3, "beta_fast": 4.0}}, r"rope_scaling\.beta_fast=4\.0, unknown for type 'llama3'"),
        ({"rope_scaling": {**YARN, "mrope_section": [1, 2]}}, r"rope_scaling\.mrope_section=\[1, 2\]"),
        ({"rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor=None; expected a number"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "needs original_max_position_embeddings"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor 0.5; expected at least 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn'; expected an object"),
    ],
)
def test_refuses_what_it_does_not_compute(hf: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rope(hf)
