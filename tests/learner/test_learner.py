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

from cojax.learner.batch import DTYPES, TrainBatch, pack_sequences
from cojax.learner.learner import Learner
from cojax.learner.losses import LOSSES
from cojax.learner.optimizer import adamw
from cojax.learner.parts import summed_by
from cojax.learner.reading import bind
from cojax.learner.update import NonFiniteUpdate, TrainState, train_step
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import TokenScores, token_logprobs
from cojax.policy.transformer import initialize
from cojax.storage.checkpoint import Checkpointer
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
        Action(),
        prompt_tokens=(1, 2),
        action_tokens=tuple(tokens),
        action_logprobs=logprobs or _sampled(tokens),
        weights_version=0,
    )
    return Trajectory(Task("desk", "q", {}), f"0-ab-{sample}", turns=(turn,), reward=reward, outcome=outcome)


def _sampled(tokens, params=PARAMS, temperature=1.0):
    """What the policy itself gives the tokens after (1, 2)."""
    ids = [1, 2, *tokens]
    row = np.array([[*ids, *[0] * (16 - len(ids))]], np.int32)
    return tuple(np.asarray(_scored(params, row, row > 0, temperature)[0, 2 : len(ids)]).tolist())


@functools.partial(jax.jit, static_argnums=3)
def _scored(params, row, real, temperature):
    """One program for all lengths of up to 16 tokens, none of them 0."""
    positions, segment_ids = np.arange(16, dtype=np.int32)[None], real.astype(np.int32)
    return token_logprobs(CONFIG, params, row, positions, segment_ids, temperature=temperature)


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
GRPO = bind("grpo", LOSSES, {})


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
    """A policy without context: scores from a table of logits [V]."""
    logs = jax.nn.log_softmax(params["table"])
    return TokenScores(logs[batch.tokens], jnp.full(batch.tokens.shape, -jnp.sum(jnp.exp(logs) * logs)))


def _one_token(token, advantage, weight):
    """M = 1, b = 1, T = 1."""
    given = {
        "tokens": token, "segment_ids": 1, "advantages": advantage, "sampler_logprobs": math.log(0.25),
        "weights": weight,
    }  # fmt: skip
    return TrainBatch(**{name: np.full((1, 1, 1), given.get(name, 0), dtype) for name, dtype in DTYPES.items()})


def test_the_gradient_is_the_policy_gradient():
    """π = (¼, ¼, ¼, ¼), A = 2, weight ½: −½ · 2 · (onehot − π), then SGD with rate 1."""
    optimizer = optax.sgd(1.0)
    params = {"table": jnp.zeros(4)}
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    new, metrics = train_step(
        state, _one_token(2, 2.0, 0.5), np.int32(1), score=_table, loss=GRPO, optimizer=optimizer, on_policy=True
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
    _, metrics = train_step(state, batch, np.int32(1), score=_table, loss=GRPO, optimizer=optimizer, on_policy=False)
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


def test_one_compilation_serves_fewer_groups_than_a_step_may_have():
    learner, sizes = _learner(micro_rows=1), [4] * len(GROUPS)
    state = learner.init(PARAMS)
    for count in (len(GROUPS), 1, 0):
        state, metrics = learner.update(state, GROUPS[:count], sizes)
        assert (metrics["groups"], metrics["updates"]) == (count, float(count > 0))
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
    assert metrics["entropy"] < 0.2  # nats; it began at 2.5
    assert sum(_sampled([5, 9], state.params)) > -0.2


def test_the_metric_called_entropy_is_that_of_the_distribution():
    """π = (½, ¼, ¼, 0…): 1.5 · ln 2 nats, whatever token was sampled: −log π of token 2 would be 1.386."""
    params = {"table": jnp.log(jnp.array([0.5, 0.25, 0.25, 1e-9]))}
    state = TrainState(jnp.int32(0), params, SGD.init(params))
    _, metrics = train_step(
        state, _one_token(2, 1.0, 1.0), np.int32(1), score=_table, loss=GRPO, optimizer=SGD, on_policy=True
    )
    assert float(metrics["entropy"]) == pytest.approx(1.5 * math.log(2), rel=1e-5)


def test_the_update_tells_the_entropy_of_the_policy():
    """With an embedding of zeros every distribution is uniform over 16 tokens: log 16 = 2.7725887 nats."""
    uniform = {**PARAMS, "embed": {"embedding": jnp.zeros_like(PARAMS["embed"]["embedding"])}}
    _, metrics = _plain().update(_plain().init(uniform), GROUPS)
    assert metrics["entropy"] == pytest.approx(2.7725887, rel=1e-6)


def test_every_loss_tells_how_far_the_sampler_is_off():
    """The sampler claims 0.25 nats less than the policy gives, at every token."""
    tokens = [5, 9, 7]
    off = _trajectory(tokens, 1.0, logprobs=tuple(x - 0.25 for x in _sampled(tokens)))
    groups = [Group(off.task, (off, dataclasses.replace(off, reward=0.0)))]
    for loss in ("grpo", "sft"):
        learner = _plain(loss=loss)
        metrics = learner.update(learner.init(PARAMS), groups)[1]
        assert metrics["logprob_mismatch"] == pytest.approx(0.25, abs=1e-5), loss
        assert metrics["logprob_mismatch_max"] == pytest.approx(0.25, abs=1e-5), loss


def test_where_nothing_was_sampled_there_is_no_mismatch():
    learner = _plain(loss="sft")
    batch = pack_sequences([([1, 2, 5, 9], [False, False, True, True])], row_length=16, rows_multiple=2)
    assert learner.train(learner.init(PARAMS), batch)[1]["logprob_mismatch_max"] == 0.0


# When numbers go wrong --------------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_leaves_the_state_and_carries_the_batch(tmp_path):
    learner = _plain()
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    before = _bits((state.params, state.opt_state))
    batch = pack_sequences([([1, 2, 5], [False, True, True])], row_length=16, rows_multiple=2)
    batch.advantages[0, 1] = np.inf
    with pytest.raises(
        NonFiniteUpdate, match=r"step 2, update 1: loss .*, gradient norm .*; expected finite"
    ) as caught:
        learner.train(state, batch)
    assert _bits((caught.value.state.params, caught.value.state.opt_state)) == before
    caught.value.save(tmp_path / "batch.npz")
    saved = np.load(tmp_path / "batch.npz")
    assert saved["tokens"].tolist() == batch.tokens.tolist()
    assert saved["advantages"][0, :3].tolist() == [0.0, np.inf, 0.0]
    assert not np.isfinite(saved["metric_grad_norm"])


def test_of_several_updates_those_before_the_bad_one_are_kept_and_it_says_so():
    """A learning rate at which the second update of the batch, far off the first policy, overflows."""
    learner = _learner(optimizer=optax.sgd(1e30), updates_per_batch=3)
    with pytest.raises(NonFiniteUpdate) as caught:
        learner.update(learner.init(PARAMS), GROUPS)
    made = int(str(caught.value).split("update ")[1].split(":")[0]) - 1
    assert made >= 1
    assert f"the parameters hold the {made} updates of this step before it" in str(caught.value)
    assert "add --config.learner.skip_steps=(1,), which makes no update in that step" in str(caught.value)
    assert _bits(caught.value.state.params) != _bits(PARAMS)


def test_a_step_that_is_skipped_makes_no_update_and_the_next_one_does():
    learner = _learner(skip_steps=(2,))
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    before = _bits((state.params, state.opt_state))
    state, metrics = learner.update(state, GROUPS)
    assert _bits((state.params, state.opt_state)) == before
    assert (int(state.step), metrics["updates"], metrics["skipped"], metrics["groups"]) == (2, 0.0, 1.0, 3.0)
    state, metrics = learner.update(state, GROUPS)
    assert metrics["updates"] == 1.0
    assert _bits((state.params, state.opt_state)) != before


def test_a_step_whose_advantages_are_no_numbers_can_be_skipped():
    """What fails is the advantage, before there is a batch."""
    broken = dataclasses.replace(GROUPS[0].trajectories[0], reward=math.nan)
    groups = [Group(GROUPS[0].task, (broken, *GROUPS[0].trajectories[1:])), *GROUPS[1:]]
    with pytest.raises(ValueError, match="is not finite"):
        _plain().update(_plain().init(PARAMS), groups)
    learner = _learner(skip_steps=(1,))
    state, metrics = learner.update(learner.init(PARAMS), groups)
    assert (int(state.step), metrics["skipped"], metrics["groups"], metrics["tokens_trained"]) == (1, 1.0, 3.0, 0.0)


def _best(logprobs, groups, sequences, weights, rewards):
    """The log-prob of a group's rewarded trajectories among all of it: one softmax over its sums."""
    learned = weights > 0
    own = summed_by(sequences, jnp.where(learned, logprobs, 0.0))
    share = jnp.where(learned, 1.0 / jnp.maximum(summed_by(sequences, learned.astype(jnp.float32)), 1.0), 0.0)
    whole = summed_by(groups, share * jnp.exp(own))
    good = summed_by(groups, share * jnp.where(rewards > 0.5, jnp.exp(own), 0.0))
    return jnp.where(learned, jnp.log(whole + 1e-6) - jnp.log(good + 1e-6), 0.0), {}


def test_a_loss_over_whole_groups_is_the_same_in_any_micro_batches(monkeypatch):
    """A group of 4 × 8 tokens at most: in rows of 16 it takes 2 of them, or one row of 32."""
    monkeypatch.setitem(LOSSES, "best", _best)
    found = []
    for row_length, micro_rows in ((96, 1), (16, 2), (16, 3), (32, 1)):
        learner = _learner(optimizer=SGD, loss="best", row_length=row_length, micro_rows=micro_rows)
        state, metrics = learner.update(learner.init(PARAMS), GROUPS)
        found.append((metrics["loss"], _flat(state.params)))
    for loss, params in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-5)
        np.testing.assert_allclose(params, found[0][1], atol=1e-5)
    with pytest.raises(ValueError, match="must share a micro-batch of 1 × 16; raise micro_rows to 4"):
        _learner(loss="best", micro_rows=1).update(learner.init(PARAMS), GROUPS)


# Several updates a step -------------------------------------------------------------------------------------------


def test_updates_of_parts_are_those_of_their_groups_one_after_another():
    """Each group in a part of its own: three steps on one group each, in the order drawn, with π_old from the start."""
    learner = _learner(optimizer=SGD, updates_per_batch=3, each_update="part", seed=4)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert (metrics["updates"], metrics["groups"], int(state.step)) == (3.0, 3.0, 1)
    assert metrics["tokens_trained"] == 3 * (3 + 4 + 5 + 6)
    order = [part[0] for part in learner.objective._dealt(GROUPS, (4, 0))]
    assert sorted(map(id, order)) == sorted(map(id, GROUPS))
    single, expected = _learner(optimizer=SGD, updates_per_batch=2), PARAMS
    first = _learner(optimizer=SGD).init(PARAMS)
    for group in order:
        (batch,), _ = single.objective.batches([group], (4, 0), 16, 2)
        count = np.int32(batch.segment_ids[:, 0].astype(bool).sum() // -2 * -1)
        now = single.init(expected)
        placed = dataclasses.replace(
            single.prepare(now, batch, count), old_logprobs=single.prepare(first, batch, count).old_logprobs
        )
        now, _ = single.apply(now, placed, count)
        expected = now.params
    np.testing.assert_allclose(_flat(state.params), _flat(expected), rtol=1e-4, atol=1e-6)


def test_parts_are_dealt_anew_at_every_step_and_share_one_program():
    learner = _learner(updates_per_batch=2, each_update="part")
    groups = _groups(5)
    dealt = {tuple(len(part) for part in learner.objective._dealt(groups, (0, step))) for step in range(4)}
    assert dealt == {(3, 2)}
    orders = {str([groups.index(group) for part in learner.objective._dealt(groups, (0, step)) for group in part])
              for step in range(6)}  # fmt: skip
    assert len(orders) > 1
    state = learner.init(PARAMS)
    for _ in range(2):
        state, _ = learner.update(state, groups)
    assert learner._step._cache_size() == 1


def test_a_part_without_a_live_group_makes_no_update():
    flat = [Group(g.task, tuple(dataclasses.replace(t, reward=1.0) for t in g.trajectories)) for g in GROUPS[:2]]
    learner = _learner(updates_per_batch=3, each_update="part")
    assert learner.update(learner.init(PARAMS), [*flat, GROUPS[2]])[1]["updates"] == 1.0


# Losses that read more --------------------------------------------------------------------------------------------


def squared_distance(logprobs, reference_logprobs, *, strength: float = 1.0):
    """No setting of it is called kl_coefficient."""
    return strength * (logprobs - reference_logprobs) ** 2, {"distance": jnp.abs(logprobs - reference_logprobs)}


def test_a_loss_from_outside_that_reads_the_reference_is_given_it():
    learner = _learner(loss=f"{__name__}:squared_distance", reference=initialize(CONFIG, 1))
    _, metrics = learner.update(learner.init(PARAMS), GROUPS)
    total, count = 0.0, 0
    for trajectory in (t for group in GROUPS for t in group.trajectories):
        tokens = trajectory.turns[0].action_tokens
        here, there = _sampled(tokens), _sampled(tokens, initialize(CONFIG, 1))
        total, count = total + sum(abs(a - b) for a, b in zip(here, there, strict=True)), count + len(tokens)
    assert metrics["distance"] == pytest.approx(total / count, rel=1e-4)
    assert metrics["distance"] > 0.1


def test_preferences_are_learned_whatever_the_packing():
    """From β-weighted pairs the successes of a group become likelier than its failures, against the reference."""
    learner = _learner(loss="dpo", loss_settings={"beta": 1.0}, reference=PARAMS)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert metrics["loss"] == pytest.approx(math.log(2.0), rel=1e-5)  # at the reference every margin is 0
    assert (metrics["pairs"], metrics["groups_live"]) == (6.0, 3.0)
    for _ in range(5):
        state, metrics = learner.update(state, GROUPS)
    assert metrics["loss"] < 0.5
    assert metrics["preferred"] > 0.9
    packed = _learner(loss="dpo", loss_settings={"beta": 1.0}, reference=PARAMS, row_length=64, micro_rows=1)
    other, _ = packed.update(packed.init(PARAMS), GROUPS)
    again, _ = learner.update(learner.init(PARAMS), GROUPS)
    np.testing.assert_allclose(_flat(other.params), _flat(again.params), rtol=1e-3, atol=1e-4)


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
