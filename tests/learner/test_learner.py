"""A learner on the real policy: what goes in and comes out, losses that read more, its state and its settings."""

import dataclasses
import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from patience import patience
from tiny_learner import (
    ADAMW,
    CONFIG,
    GROUPS,
    PARAMS,
    bits,
    flat_array,
    make_learner,
    make_trajectory,
    sampled_logprobs,
    shared_learner,
)  # fmt: skip

from cojax.learner.batch import RowShape, pack_sequences
from cojax.learner.learner import Learner, StepBatches
from cojax.learner.optimizer import adamw
from cojax.policy.transformer import initialize
from cojax.storage.checkpoint import Checkpointer
from cojax.types import Group

SIZES = (4, 4, 4)  # of all groups of a step, so that one program serves fewer


@functools.cache
def pulled():
    """Samples, and computes log-probs, at temperature 2, and pulls to another policy."""
    return make_learner(temperature=2.0, loss_settings={"kl_coefficient": 1.0}, reference=initialize(CONFIG, 1))


@functools.cache
def supervised():
    return make_learner(loss="sft", optimizer=adamw(3e-2))


def test_what_the_policy_sampled_has_no_mismatch():
    _, metrics = shared_learner().update(shared_learner().init(PARAMS), GROUPS)
    assert metrics["logprob_mismatch_max"] < 1e-5
    assert metrics["importance"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["tokens_trained"] == 3 * (3 + 4 + 5 + 6)


def test_the_temperature_is_that_of_the_sampler():
    tokens = [5, 9, 7]
    hot = make_trajectory(tokens, 1.0, logprobs=sampled_logprobs(tokens, temperature=2.0))
    groups = [Group(hot.task, (hot, dataclasses.replace(hot, reward=0.0)))]
    for learner, at_least, at_most in ((pulled(), 0.0, 1e-5), (shared_learner(), 1e-3, 9.0)):
        metrics = learner.update(learner.init(PARAMS), groups, SIZES)[1]
        assert at_least <= metrics["logprob_mismatch_max"] < at_most


def test_rewarded_tokens_become_more_likely_and_others_less():
    good, bad = [5, 9, 7], [6, 3, 11]
    groups = [Group(GROUPS[0].task, (make_trajectory(good, 1.0), make_trajectory(bad, 0.0)))]
    learner = shared_learner()
    state, _ = learner.update(learner.init(PARAMS), groups, SIZES)
    assert sum(sampled_logprobs(good, state.params)) > sum(sampled_logprobs(good)) + 0.01
    assert sum(sampled_logprobs(bad, state.params)) < sum(sampled_logprobs(bad)) - 0.01


def test_a_failed_episode_does_not_change_one_bit():
    broken = make_trajectory([4, 4, 4], 1.0, outcome="environment_error")
    fewer = [Group(g.task, g.trajectories[1:]) for g in GROUPS]
    wider = [Group(g.task, (broken, *g.trajectories)) for g in fewer]
    clean, _ = shared_learner().update(shared_learner().init(PARAMS), fewer, SIZES)
    mixed, metrics = shared_learner().update(shared_learner().init(PARAMS), wider)
    assert metrics["trajectories_invalid"] == 3.0
    assert bits(mixed) == bits(clean)


def test_no_live_group_changes_nothing_but_the_step():
    flat = [Group(g.task, tuple(dataclasses.replace(t, reward=1.0) for t in g.trajectories)) for g in GROUPS]
    learner = shared_learner()
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    before = bits((state.params, state.opt_state))
    state, metrics = learner.update(state, flat)
    assert bits((state.params, state.opt_state)) == before
    assert int(state.step) == 2
    assert (metrics["groups"], metrics["groups_live"], metrics["updates"]) == (3.0, 0.0, 0.0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert "loss" not in metrics


def test_kl_pulls_back_to_the_reference_even_without_variance():
    flat = [Group(g.task, tuple(dataclasses.replace(t, reward=1.0) for t in g.trajectories)) for g in GROUPS]
    learner = pulled()
    state, kls = learner.init(PARAMS), []
    for _ in range(5):
        state, metrics = learner.update(state, flat)
        kls.append(metrics["kl"])
    assert kls[-1] < 0.8 * kls[0]


def test_kl_to_oneself_is_zero():
    learner = pulled()
    state, metrics = learner.update(learner.init(learner.reference), GROUPS)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-7)
    assert learner.update(state, GROUPS)[1]["kl"] > 1e-4


def test_supervised_learning_repeats_its_demonstrations():
    learner = supervised()
    demonstrations = [([1, 2, 5, 9], [False, False, True, True]), ([1, 3, 7, 4], [False, False, True, True])]
    batch = pack_sequences(demonstrations, RowShape(16, 2))
    state = learner.init(PARAMS)
    for _ in range(60):
        state, metrics = learner.update(state, StepBatches([batch]))
    assert metrics["loss"] < 0.05
    assert metrics["entropy"] < 0.2  # nats; it began at 2.5
    assert sum(sampled_logprobs([5, 9], state.params)) > -0.2


def test_the_update_tells_the_entropy_of_the_policy():
    """With an embedding of zeros every distribution is uniform over 16 tokens: log 16 = 2.7725887 nats."""
    uniform = {**PARAMS, "embed": {"embedding": jnp.zeros_like(PARAMS["embed"]["embedding"])}}
    _, metrics = shared_learner().update(shared_learner().init(uniform), GROUPS)
    assert metrics["entropy"] == pytest.approx(2.7725887, rel=1e-6)


def test_every_loss_tells_how_far_the_sampler_is_off():
    """The sampler claims 0.25 nats less than the policy gives, at every token."""
    tokens = [5, 9, 7]
    off = make_trajectory(tokens, 1.0, logprobs=tuple(x - 0.25 for x in sampled_logprobs(tokens)))
    groups = [Group(off.task, (off, dataclasses.replace(off, reward=0.0)))]
    for learner, sizes in ((shared_learner(), SIZES), (supervised(), ())):
        metrics = learner.update(learner.init(PARAMS), groups, sizes)[1]
        assert metrics["logprob_mismatch"] == pytest.approx(0.25, abs=1e-5), learner.loss
        assert metrics["logprob_mismatch_max"] == pytest.approx(0.25, abs=1e-5), learner.loss


def test_where_nothing_was_sampled_there_is_no_mismatch():
    learner = supervised()
    batch = pack_sequences([([1, 2, 5, 9], [False, False, True, True])], RowShape(16, 2))
    metrics = learner.update(learner.init(PARAMS), StepBatches([batch]))[1]
    assert metrics["entropy"] > 0
    assert not [name for name in metrics if "mismatch" in name]


# Losses that read more --------------------------------------------------------------------------------------------


def squared_distance(logprobs, reference_logprobs, *, strength: float = 1.0):
    """No setting of it is called kl_coefficient."""
    return strength * (logprobs - reference_logprobs) ** 2, {"distance": jnp.abs(logprobs - reference_logprobs)}


def test_a_loss_from_outside_that_reads_the_reference_is_given_it():
    learner = make_learner(loss=f"{__name__}:squared_distance", reference=initialize(CONFIG, 1))
    _, metrics = learner.update(learner.init(PARAMS), GROUPS)
    total, count = 0.0, 0
    for trajectory in (t for group in GROUPS for t in group.trajectories):
        tokens = trajectory.turns[0].action_tokens
        here, there = sampled_logprobs(tokens), sampled_logprobs(tokens, initialize(CONFIG, 1))
        total, count = total + sum(abs(a - b) for a, b in zip(here, there, strict=True)), count + len(tokens)
    assert metrics["distance"] == pytest.approx(total / count, rel=1e-4)
    assert metrics["distance"] > 0.1


def test_preferences_are_learned():
    """From β-weighted pairs the successes of a group become likelier than its failures, against the reference."""
    learner = make_learner(loss="dpo", loss_settings={"beta": 1.0}, reference=PARAMS)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert metrics["loss"] == pytest.approx(math.log(2.0), rel=1e-5)  # at the reference every margin is 0
    assert (metrics["pairs"], metrics["groups_live"]) == (6.0, 3.0)
    for _ in range(5):
        state, metrics = learner.update(state, GROUPS)
    assert metrics["loss"] < 0.5
    assert metrics["preferred"] > 0.9


# State ------------------------------------------------------------------------------------------------------------


def test_the_caller_keeps_its_parameters():
    params = initialize(CONFIG, 2)
    before = bits(params)
    learner = shared_learner()
    learner.update(learner.init(params), GROUPS)
    assert bits(params) == before


def test_weights_are_hf_arrays_that_outlive_the_next_update():
    learner = shared_learner()
    state = learner.init(PARAMS)
    weights = learner.weights(state, 7)
    arrays = dict(weights.arrays())
    before = {name: array.tobytes() for name, array in arrays.items()}
    named = weights.fingerprint(), learner.weights(learner.init(PARAMS), 0).fingerprint()
    learned, _ = learner.update(state, GROUPS)
    assert weights.version == 7
    assert named[0] == named[1] != learner.weights(learned, 7).fingerprint()
    assert arrays["model.embed_tokens.weight"].shape == (16, 8)
    assert arrays["model.layers.1.mlp.down_proj.weight"].shape == (8, 16)
    assert {name: array.tobytes() for name, array in arrays.items()} == before


def test_a_restored_state_continues_bit_for_bit(tmp_path):
    learner, checkpointer = shared_learner(), Checkpointer(tmp_path)
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    checkpointer.save(1, state, {})
    ahead, _ = learner.update(state, GROUPS)
    restored = checkpointer.read_arrays(1, learner.init(initialize(CONFIG, 5)))
    resumed, _ = learner.update(restored, GROUPS)
    assert bits(resumed) == bits(ahead)


def test_the_learning_rate_warms_up_and_norms_do_not_decay():
    params = {"query_norm": {"scale": jnp.ones(2)}, "kernel": jnp.ones(2)}
    optimizer = adamw(0.1, warmup_steps=4, weight_decay=0.5)
    gradients = jax.tree.map(jnp.zeros_like, params)
    state, sizes, update = optimizer.init(params), [], jax.jit(optimizer.update)
    for _ in range(6):
        updates, state = update(gradients, state, params)
        sizes.append(float(-updates["kernel"][0]))
        assert updates["query_norm"]["scale"].tolist() == [0.0, 0.0]
    # rate · decay · 1 with the rate at ¼, ½, ¾ and 1 of 0.1
    assert sizes == pytest.approx([0.0125, 0.025, 0.0375, 0.05, 0.05, 0.05])


# Bad settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "ppo"}, "loss 'ppo' not found; available: grpo, gspo, cispo, dual_clip, sft, dpo"),
        ({"advantage": "gae"}, "advantage 'gae' not found; available: group_relative, mean_centred, leave_one_out"),
        ({"weighting": "mean"}, "weighting 'mean' not found; available: group_token_mean, sequence_mean"),
        ({"loss_settings": {"clip": 0.1}}, "loss 'grpo' has no setting clip; it has clip_low, clip_high, ratio"),
        ({"loss": "sft", "loss_settings": {"clip_low": 0.1}}, "loss 'sft' has no setting clip_low; it has none"),
        ({"loss_settings": {"kl_coefficient": 0.1}}, "loss 'grpo' reads reference_logprobs .* there is no reference"),
        ({"loss": "dpo"}, "loss 'dpo' reads reference_logprobs under its settings, but there is no reference"),
        ({"weighting": "constant_length"}, "weighting 'constant_length' needs its setting length"),
        ({"each_update": "half"}, "each_update 'half' not found; available: part, whole"),
        ({"updates_per_batch": 0}, "updates_per_batch is 0; expected 1 or more"),
        ({"remat": "some"}, "remat 'some' not found; available: dots, inputs, layers, none"),
    ],
)
def test_a_wrong_setting_says_what_is_right(changes, message):
    with pytest.raises(ValueError, match=message):
        make_learner(**changes)


def test_float16_is_refused():
    """Nothing scales the loss, so that gradients of single tokens would round to zero without a word."""
    config = dataclasses.replace(CONFIG, dtype="float16")
    with pytest.raises(ValueError, match="dtype is float16"):
        Learner(config, ADAMW)


# Several devices --------------------------------------------------------------------------------------------------


SHARDED = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
sys.path[:0] = sys.argv[1:3]
import jax, numpy as np
import tiny_learner as here
from cojax.policy.sharding import make_mesh

learner = here.make_learner(mesh=make_mesh(data=2, fsdp=2), micro_rows=4)
state = learner.init(here.PARAMS)
layout = jax.tree.map(lambda leaf: leaf.sharding, state)
for _ in range(3):
    state, _ = learner.update(state, here.GROUPS)
assert layout == jax.tree.map(lambda leaf: leaf.sharding, state)
assert len(state.params["embed"]["embedding"].sharding.device_set) == 4
assert learner._update_fn._cache_size() == 1
np.save(sys.argv[3], here.flat_array(state.params))
try:
    here.make_learner(mesh=make_mesh(data=4), micro_rows=2)
except ValueError as error:
    print(error)
"""


@pytest.mark.real
def test_four_devices_compute_what_one_does(request, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", SHARDED, *request.path.parents[:2], tmp_path / "four.npy"],
        capture_output=True, text=True, timeout=patience(300),
    )  # fmt: skip
    assert run.stdout == "micro_rows is 2, but the mesh splits rows 4 ways; set a multiple of 4\n", run.stderr
    learner = shared_learner(micro_rows=4)
    state = learner.init(PARAMS)
    for _ in range(3):
        state, _ = learner.update(state, GROUPS)
    np.testing.assert_allclose(np.load(tmp_path / "four.npy"), flat_array(state.params), rtol=1e-3, atol=1e-5)
