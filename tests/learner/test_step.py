"""The update on the real policy: exact sums, one compilation, and nothing lost when numbers go wrong."""

import dataclasses
import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cojax.checkpoint import Checkpointer
from cojax.learner.batch import TrainBatch, pack_sequences
from cojax.learner.losses import grpo
from cojax.learner.optimizer import adamw
from cojax.learner.step import Learner
from cojax.learner.update import NonFiniteUpdate, TrainState, train_step
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.transformer import initialize
from cojax.types import Action, Group, Task, Trajectory, Turn

CONFIG = ModelConfig(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
PARAMS = initialize(CONFIG, 0)


def _trajectory(tokens, reward, *, logprobs=None, outcome="finished", sample=0):
    """Prompt (1, 2), then `tokens` as the action."""
    turn = Turn(
        Action(), prompt_tokens=(1, 2), action_tokens=tuple(tokens), action_logprobs=logprobs or _sampled(tokens)
    )
    return Trajectory(Task("desk", "q", {}), f"0-ab-{sample}", turns=(turn,), reward=reward, outcome=outcome)


def _sampled(tokens, params=PARAMS, temperature=1.0):
    """What the policy itself gives the tokens after (1, 2)."""
    row = np.array([[1, 2, *tokens]], np.int32)
    positions = np.arange(row.shape[1], dtype=np.int32)[None]
    scores = token_logprobs(CONFIG, params, row, positions, np.ones_like(row), temperature=temperature)
    return tuple(np.asarray(scores[0, 2:]).tolist())


def _groups(count=3):
    """Groups of four trajectories of 3 to 6 action tokens, half of them rewarded."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 16, (count, 4, 6)).tolist()
    return [
        Group(
            Task("desk", "q", {}),
            tuple(_trajectory(row[: 3 + k], float(k % 2), sample=k) for k, row in enumerate(rows)),
        )
        for rows in tokens
    ]


GROUPS = _groups()


ADAMW, SGD = adamw(1e-2), optax.sgd(1.0)


@functools.cache
def _plain(**changes):
    """Learners hold no state, only what they have compiled: one for each setting serves all tests."""
    return _learner(**changes)


def _learner(**changes):
    return Learner(CONFIG, **{"optimizer": ADAMW, "row_length": 16, "micro_rows": 2, **changes})


def _bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def _flat(tree):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


# The arithmetic, by hand ------------------------------------------------------------------------------------------


def _table(params, batch):
    """A policy without context: log-probs from a table of logits [V]."""
    return jax.nn.log_softmax(params["table"])[batch.tokens]


def _one_token(token, advantage, weight):
    """M = 1, b = 1, T = 1."""
    full = lambda value, kind: np.full((1, 1, 1), value, kind)  # noqa: E731
    return TrainBatch(
        tokens=full(token, np.int32), segment_ids=full(1, np.int32), positions=full(0, np.int32),
        advantages=full(advantage, np.float32), sampler_logprobs=full(math.log(0.25), np.float32),
        versions=full(0, np.int32),
        reference_logprobs=full(0, np.float32), old_logprobs=full(0, np.float32), weights=full(weight, np.float32),
    )  # fmt: skip


def test_the_gradient_is_the_policy_gradient():
    """π = (¼, ¼, ¼, ¼), A = 2, weight ½: −½ · 2 · (onehot − π), then SGD with rate 1."""
    optimizer = optax.sgd(1.0)
    params = {"table": jnp.zeros(4)}
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    new, metrics = train_step(
        state, _one_token(2, 2.0, 0.5), np.int32(1), logprobs=_table, loss=grpo, optimizer=optimizer, on_policy=True
    )
    assert new.params["table"].tolist() == pytest.approx([-0.25, -0.25, 0.75, -0.25])
    assert float(metrics["loss"]) == pytest.approx(-1.0)
    assert float(metrics["grad_norm"]) == pytest.approx(math.sqrt(0.75))
    assert float(metrics["entropy"]) == pytest.approx(math.log(4))
    assert float(metrics["ratio"]) == 1.0
    assert float(metrics["logprob_mismatch_max"]) == pytest.approx(0.0, abs=1e-6)


def test_off_policy_the_old_log_probs_are_read():
    """π_old = ½ and π = ¼: r = ½, importance = ½ / ¼ = 2, A = 2 unclipped: −½ · 2 · ½ · 2 = −1."""
    optimizer = optax.sgd(1.0)
    params = {"table": jnp.zeros(4)}
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    batch = dataclasses.replace(_one_token(2, 2.0, 0.5), old_logprobs=np.full((1, 1, 1), math.log(0.5), np.float32))
    _, metrics = train_step(state, batch, np.int32(1), logprobs=_table, loss=grpo, optimizer=optimizer, on_policy=False)
    assert float(metrics["loss"]) == pytest.approx(-1.0)
    assert float(metrics["ratio"]) == pytest.approx(0.5)


@pytest.mark.parametrize("micro_rows", [1, 4])
def test_micro_batches_add_up_to_the_full_batch(micro_rows):
    def gradient(rows):
        learner = _plain(optimizer=SGD, micro_rows=rows)
        state, metrics = learner.update(learner.init(PARAMS), GROUPS)
        return _flat(PARAMS) - _flat(state.params), metrics

    whole, whole_metrics = gradient(12)
    parts, metrics = gradient(micro_rows)
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-7)
    # The sampler is the policy itself here: what is left of the mismatch is rounding, which no sum keeps.
    rounding = {"logprob_mismatch", "logprob_mismatch_max"}
    assert all(metrics.pop(name) < 1e-5 and whole_metrics.pop(name) < 1e-5 for name in sorted(rounding))
    assert metrics == pytest.approx(whole_metrics, rel=1e-4, abs=1e-7)


def test_packing_does_not_change_the_gradient():
    def gradient(row_length):
        learner = _plain(optimizer=SGD, row_length=row_length, micro_rows=1)
        return _flat(PARAMS) - _flat(learner.update(learner.init(PARAMS), GROUPS)[0].params)

    np.testing.assert_allclose(gradient(64), gradient(16), rtol=1e-4, atol=1e-7)


def test_one_compilation_serves_any_number_of_live_rows():
    learner = _learner(micro_rows=1)
    state = learner.init(PARAMS)
    for flat in range(3):
        groups = [Group(g.task, g.trajectories[:1] * 4) if index < flat else g for index, g in enumerate(GROUPS)]
        state, metrics = learner.update(state, groups)
        assert metrics["groups_live"] == 3 - flat
    assert learner._step._cache_size() == 1


# What goes in and what comes out ----------------------------------------------------------------------------------


def test_what_the_policy_sampled_has_no_mismatch():
    _, metrics = _plain().update(_plain().init(PARAMS), GROUPS)
    assert metrics["logprob_mismatch_max"] < 1e-5
    assert metrics["importance"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["tokens_trained"] == 3 * (3 + 4 + 5 + 6)


def test_the_temperature_is_that_of_the_sampler():
    tokens = [5, 9, 7]
    hot = _trajectory(tokens, 1.0, logprobs=_sampled(tokens, temperature=2.0))
    groups = [Group(hot.task, (hot, dataclasses.replace(hot, reward=0.0)))]
    assert _plain(temperature=2.0).update(_plain().init(PARAMS), groups)[1]["logprob_mismatch_max"] < 1e-5
    assert _plain().update(_plain().init(PARAMS), groups)[1]["logprob_mismatch_max"] > 1e-3


def test_rewarded_tokens_become_more_likely_and_others_less():
    good, bad = [5, 9, 7], [6, 3, 11]
    groups = [Group(GROUPS[0].task, (_trajectory(good, 1.0), _trajectory(bad, 0.0)))]
    learner = _plain()
    state, _ = learner.update(learner.init(PARAMS), groups)
    assert sum(_sampled(good, state.params)) > sum(_sampled(good)) + 0.01
    assert sum(_sampled(bad, state.params)) < sum(_sampled(bad)) - 0.01


def test_a_failed_episode_does_not_change_one_bit():
    broken = _trajectory([4, 4, 4], 1.0, outcome="environment_error")
    wider = [Group(g.task, (broken, *g.trajectories)) for g in GROUPS]
    clean, _ = _plain().update(_plain().init(PARAMS), GROUPS)
    mixed, metrics = _plain().update(_plain().init(PARAMS), wider)
    assert metrics["trajectories_invalid"] == 3.0
    assert _bits(mixed) == _bits(clean)


def test_no_live_group_changes_nothing_but_the_step():
    flat = [Group(g.task, tuple(dataclasses.replace(t, reward=1.0) for t in g.trajectories)) for g in GROUPS]
    learner = _plain()
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    before = _bits((state.params, state.opt_state))
    state, metrics = learner.update(state, flat)
    assert _bits((state.params, state.opt_state)) == before
    assert int(state.step) == 2
    assert (metrics["groups"], metrics["groups_live"], metrics["updates"]) == (3.0, 0.0, 0.0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert "loss" not in metrics


def test_kl_pulls_back_to_the_reference_even_without_variance():
    flat = [Group(g.task, tuple(dataclasses.replace(t, reward=1.0) for t in g.trajectories)) for g in GROUPS]
    learner = _learner(loss_settings={"kl_coefficient": 1.0}, reference=initialize(CONFIG, 1))
    state, kls = learner.init(PARAMS), []
    for _ in range(5):
        state, metrics = learner.update(state, flat)
        kls.append(metrics["kl"])
    assert kls[-1] < 0.8 * kls[0]


def test_kl_to_oneself_is_zero():
    learner = _learner(loss_settings={"kl_coefficient": 0.1}, reference=PARAMS)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-7)
    assert learner.update(state, GROUPS)[1]["kl"] > 1e-4


def test_several_updates_a_batch_compare_with_the_first():
    learner = _learner(updates_per_batch=3)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert metrics["updates"] == 3.0
    assert metrics["ratio_max"] > 1.001
    assert metrics["logprob_mismatch_max"] < 1e-5  # of the old log-probs, not of those after an update
    assert int(state.step) == 1


def test_supervised_learning_repeats_its_demonstrations():
    learner = _learner(loss="sft", optimizer=adamw(3e-2), micro_rows=1)
    demonstrations = [([1, 2, 5, 9], [False, False, True, True]), ([1, 3, 7, 4], [False, False, True, True])]
    batch = pack_sequences(demonstrations, row_length=16)
    state = learner.init(PARAMS)
    for _ in range(60):
        state, metrics = learner.train(state, batch)
    assert metrics["loss"] < 0.05
    assert metrics["entropy"] == pytest.approx(metrics["loss"], rel=1e-4)
    assert sum(_sampled([5, 9], state.params)) > -0.2


# When numbers go wrong --------------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_leaves_the_state_and_carries_the_batch(tmp_path):
    learner = _plain()
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    before = _bits((state.params, state.opt_state))
    batch = pack_sequences([([1, 2, 5], [False, True, True])], row_length=16, rows_multiple=2)
    batch.advantages[0, 1] = np.inf
    with pytest.raises(NonFiniteUpdate, match=r"step 1: loss .*, gradient norm .*; expected finite numbers") as caught:
        learner.train(state, batch)
    assert _bits((caught.value.state.params, caught.value.state.opt_state)) == before
    caught.value.save(tmp_path / "batch.npz")
    saved = np.load(tmp_path / "batch.npz")
    assert saved["tokens"].tolist() == batch.tokens.tolist()
    assert saved["advantages"][0, :3].tolist() == [0.0, np.inf, 0.0]
    assert not np.isfinite(saved["metric_grad_norm"])


# State ------------------------------------------------------------------------------------------------------------


def test_the_caller_keeps_its_parameters():
    params = initialize(CONFIG, 2)
    before = _bits(params)
    learner = _plain()
    learner.update(learner.init(params), GROUPS)
    assert _bits(params) == before


def test_weights_are_hf_arrays_that_outlive_the_next_update():
    learner = _plain()
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
    learner, checkpointer = _plain(), Checkpointer(tmp_path)
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    checkpointer.save(1, state, {})
    ahead, _ = learner.update(state, GROUPS)
    _, restored, _ = checkpointer.restore(learner.init(initialize(CONFIG, 5)))
    resumed, _ = learner.update(restored, GROUPS)
    assert _bits(resumed) == _bits(ahead)


def test_the_learning_rate_warms_up_and_norms_do_not_decay():
    params = {"query_norm": {"scale": jnp.ones(2)}, "kernel": jnp.ones(2)}
    optimizer = adamw(0.1, warmup_steps=4, weight_decay=0.5)
    gradients = jax.tree.map(jnp.zeros_like, params)
    state, sizes = optimizer.init(params), []
    for _ in range(6):
        updates, state = optimizer.update(gradients, state, params)
        sizes.append(float(-updates["kernel"][0]))
        assert updates["query_norm"]["scale"].tolist() == [0.0, 0.0]
    # rate · decay · 1 with the rate at ¼, ½, ¾ and 1 of 0.1
    assert sizes == pytest.approx([0.0125, 0.025, 0.0375, 0.05, 0.05, 0.05])


# Bad settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "ppo"}, "loss 'ppo' not found; available: grpo, sft"),
        ({"advantage": "gae"}, "advantage 'gae' not found; available: group_relative, leave_one_out, mean_centred"),
        ({"loss_settings": {"clip": 0.1}}, "loss 'grpo' has no setting clip; it has: clip_low, clip_high, kl_co"),
        ({"loss": "sft", "loss_settings": {"clip_low": 0.1}}, "loss 'sft' has no setting clip_low; it has: none"),
        ({"loss_settings": {"kl_coefficient": 0.1}}, "kl_coefficient is 0.1 but there is no reference"),
        ({"updates_per_batch": 0}, "updates_per_batch is 0; expected 1 or more"),
        ({"remat": "some"}, "remat 'some' not found; available: dots, layers, none"),
    ],
)
def test_a_wrong_setting_says_what_is_right(changes, message):
    with pytest.raises(ValueError, match=message):
        _learner(**changes)


def test_float16_is_refused():
    """Nothing scales the loss, so that gradients of single tokens would round to zero without a word."""
    config = dataclasses.replace(CONFIG, dtype="float16")
    with pytest.raises(ValueError, match="dtype is float16"):
        Learner(config, ADAMW)


# Several devices --------------------------------------------------------------------------------------------------

SHARDED = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
import test_step as here
from cojax.policy.sharding import make_mesh

learner = here._learner(mesh=make_mesh(data=2, fsdp=2), micro_rows=4)
state = learner.init(here.PARAMS)
layout = jax.tree.map(lambda leaf: leaf.sharding, state)
for _ in range(3):
    state, _ = learner.update(state, here.GROUPS)
assert layout == jax.tree.map(lambda leaf: leaf.sharding, state)
assert len(state.params["embed"]["embedding"].sharding.device_set) == 4
assert learner._step._cache_size() == 1
np.save(sys.argv[2], here._flat(state.params))
try:
    here._learner(mesh=make_mesh(data=4), micro_rows=2)
except ValueError as error:
    print(error)
"""


@pytest.mark.real
def test_four_devices_compute_what_one_does(request, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", SHARDED, request.path.parent, tmp_path / "four.npy"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.stdout == "micro_rows is 2, the mesh splits rows 4 ways; make it a multiple of 4\n", run.stderr
    learner = _plain(micro_rows=4)
    state = learner.init(PARAMS)
    for _ in range(3):
        state, _ = learner.update(state, GROUPS)
    np.testing.assert_allclose(np.load(tmp_path / "four.npy"), _flat(state.params), rtol=1e-3, atol=1e-5)
