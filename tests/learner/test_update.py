"""One update: its arithmetic by hand, sums of micro-batches, several updates a step, numbers that are not finite."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_learner import GROUPS, PARAMS, SGD, bits, flat_array, make_groups, make_learner, shared_learner

from cojax.learner.batch import DTYPES, TrainBatch
from cojax.learner.learner import StepBatches
from cojax.learner.losses import LOSSES, summed_by
from cojax.learner.objective import bind_loss
from cojax.learner.update import NonFiniteUpdate, TrainState, update
from cojax.policy.gradient_sums import read
from cojax.policy.logprobs import TokenScores
from cojax.types import Group

GRPO = bind_loss("grpo", LOSSES, {})
PARTS = {"optimizer": SGD, "updates_per_batch": 2, "each_update": "part", "seed": 4}


def _table(_, params, batch):
    """A policy without context: scores from a table of logits [V]."""
    logs = jax.nn.log_softmax(read(params)["table"])
    return TokenScores(logs[batch.tokens], jnp.full(batch.tokens.shape, -jnp.sum(jnp.exp(logs) * logs)))


def _one_token(token, advantage, weight):
    """M = 1, b = 1, T = 1."""
    given = {
        "tokens": token, "segment_ids": 1, "advantages": advantage, "sampler_logprobs": math.log(0.25),
        "weights": weight,
    }  # fmt: skip
    return TrainBatch(**{name: np.full((1, 1, 1), given.get(name, 0), dtype) for name, dtype in DTYPES.items()})


@pytest.mark.compiles
def test_the_gradient_is_the_policy_gradient():
    """π = (¼, ¼, ¼, ¼), A = 2, weight ½: −½ · 2 · (onehot − π), then SGD with rate 1."""
    optimizer = optax.sgd(1.0)
    params = {"table": jnp.zeros(4)}
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    new, metrics = update(
        state, None, _one_token(2, 2.0, 0.5), np.int32(1), score=_table, loss=GRPO, optimizer=optimizer, on_policy=True
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
    _, metrics = update(state, None, batch, np.int32(1), score=_table, loss=GRPO, optimizer=optimizer, on_policy=False)
    assert float(metrics["loss"]) == pytest.approx(-1.0)
    assert float(metrics["ratio"]) == pytest.approx(0.5)


def test_a_batch_of_another_dtype_and_a_loss_of_another_shape_are_errors():
    """A loss is tried on rows of 8 tokens when it is bound; on one of 1 token these sums would broadcast."""
    state = TrainState(jnp.int32(0), {"table": jnp.zeros(4)}, SGD.init({"table": jnp.zeros(4)}))
    one = functools.partial(update, state, None, micro_count=np.int32(1), score=_table, optimizer=SGD, on_policy=True)
    wide = dataclasses.replace(GRPO, function=lambda logprobs, *_, **settings: (jnp.zeros((2, 8)) + logprobs, {}))
    batch = _one_token(2, 2.0, 0.5)
    with pytest.raises(AssertionError, match="shape"):
        one(batch=batch, loss=wide)
    with pytest.raises(AssertionError, match="int32"):
        one(batch=dataclasses.replace(batch, tokens=np.zeros((1, 1, 1), np.float32)), loss=GRPO)


def test_one_compilation_serves_fewer_groups_than_a_step_may_have_and_any_number_of_live_rows(traced_once):
    learner, sizes = make_learner(micro_rows=1), [4] * len(GROUPS)
    state = learner.init(PARAMS)
    for count in (len(GROUPS), 1, 0):
        state, metrics = learner.update(state, GROUPS[:count], sizes)
        assert (metrics["groups"], metrics["updates"]) == (count, float(count > 0))
    for flat in range(1, 3):
        groups = [Group(g.task, g.trajectories[:1] * 4) if index < flat else g for index, g in enumerate(GROUPS)]
        state, metrics = learner.update(state, groups)
        assert metrics["groups_live"] == 3 - flat
    with pytest.raises(AssertionError, match="'update' is traced > 1 times"):
        learner.update(state, GROUPS[:1])  # without `sizes` a step of fewer groups has fewer rows


def test_the_metric_called_entropy_is_that_of_the_distribution():
    """π = (½, ¼, ¼, 0…): 1.5 · ln 2 nats, whatever token was sampled: −log π of token 2 would be 1.386."""
    params = {"table": jnp.log(jnp.array([0.5, 0.25, 0.25, 1e-9]))}
    state = TrainState(jnp.int32(0), params, SGD.init(params))
    _, metrics = update(
        state, None, _one_token(2, 1.0, 1.0), np.int32(1), score=_table, loss=GRPO, optimizer=SGD, on_policy=True
    )
    assert float(metrics["entropy"]) == pytest.approx(1.5 * math.log(2), rel=1e-5)


# When numbers go wrong --------------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_leaves_the_state_and_carries_the_batch(tmp_path):
    learner = shared_learner()
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    before = bits((state.params, state.opt_state))
    (batch,) = learner.pack(GROUPS, 1).batches
    batch.advantages[batch.weights > 0] = np.inf
    with pytest.raises(
        NonFiniteUpdate, match=r"step 2, update 1: loss .*, gradient norm .*; expected finite"
    ) as caught:
        learner.update(state, StepBatches([batch]))
    assert bits((caught.value.state.params, caught.value.state.opt_state)) == before
    caught.value.save(tmp_path / "batch.npz")
    saved = np.load(tmp_path / "batch.npz")
    assert saved["tokens"].tolist() == batch.tokens.tolist()
    assert saved["advantages"].tolist() == batch.advantages.tolist()
    assert not np.isfinite(saved["metric_grad_norm"])


def test_of_several_updates_those_before_the_bad_one_are_kept_and_it_says_so():
    learner = shared_learner(**PARTS)
    state = learner.init(PARAMS)
    good, bad = learner.pack(GROUPS, 0).batches
    bad.advantages[bad.weights > 0] = np.inf
    with pytest.raises(NonFiniteUpdate, match="step 1, update 2: ") as caught:
        learner.update(state, StepBatches([good, bad], (0, 1)))
    assert "the parameters hold the 1 updates of this step before it" in str(caught.value)
    assert "add --config.learner.skip_steps=(1,), which makes no update in that step" in str(caught.value)
    expected, _ = learner.update(learner.init(PARAMS), StepBatches([good]))
    assert bits(caught.value.state.params) == bits(expected.params) != bits(PARAMS)


def test_a_step_that_is_skipped_makes_no_update_and_the_next_one_does():
    """The second, whose advantages are no numbers: what fails is the advantage, before there is a batch."""
    broken = dataclasses.replace(GROUPS[0].trajectories[0], reward=math.nan)
    groups = [Group(GROUPS[0].task, (broken, *GROUPS[0].trajectories[1:])), *GROUPS[1:]]
    learner = make_learner(skip_steps=(2,))
    state = learner.init(PARAMS)
    with pytest.raises(ValueError, match="is not finite"):
        learner.update(state, groups)
    state, _ = learner.update(state, GROUPS)
    before = bits((state.params, state.opt_state))
    state, metrics = learner.update(state, groups)
    assert bits((state.params, state.opt_state)) == before
    assert (int(state.step), metrics["updates"], metrics["skipped"]) == (2, 0.0, 1.0)
    assert (metrics["groups"], metrics["tokens_trained"]) == (3.0, 0.0)
    state, metrics = learner.update(state, GROUPS)
    assert metrics["updates"] == 1.0
    assert bits((state.params, state.opt_state)) != before


def _best(logprobs, groups, sequences, weights, rewards):
    """The log-prob of a group's rewarded trajectories among all of it: one softmax over its sums."""
    learned = weights > 0
    own = summed_by(sequences, jnp.where(learned, logprobs, 0.0))
    share = jnp.where(learned, 1.0 / jnp.maximum(summed_by(sequences, learned.astype(jnp.float32)), 1.0), 0.0)
    whole = summed_by(groups, share * jnp.exp(own))
    good = summed_by(groups, share * jnp.where(rewards > 0.5, jnp.exp(own), 0.0))
    return jnp.where(learned, jnp.log(whole + 1e-6) - jnp.log(good + 1e-6), 0.0), {}


def test_a_loss_over_whole_groups_is_the_same_in_any_micro_batches(monkeypatch):
    """A group of 5 + 6 + 7 + 8 tokens: all in one row, or two rows of 16 each, of which three are a micro-batch."""
    monkeypatch.setitem(LOSSES, "best", _best)
    found = []
    for row_length, micro_rows in ((96, 1), (16, 3)):
        learner = make_learner(optimizer=SGD, loss="best", row_length=row_length, micro_rows=micro_rows)
        state, metrics = learner.update(learner.init(PARAMS), GROUPS)
        found.append((metrics["loss"], flat_array(state.params)))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-5)
    with pytest.raises(ValueError, match="must share a micro-batch of 1 × 16; raise micro_rows to 4"):
        make_learner(loss="best", micro_rows=1).update(learner.init(PARAMS), GROUPS)


# Several updates a step -------------------------------------------------------------------------------------------


def test_updates_of_parts_are_those_of_their_groups_one_after_another_by_one_program():
    """A part of two groups and one of one, in the order drawn, with π_old from the start."""
    learner = shared_learner(**PARTS)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert (metrics["updates"], metrics["groups"], int(state.step)) == (2.0, 3.0, 1)
    assert metrics["tokens_trained"] == 3 * (3 + 4 + 5 + 6)
    parts = learner.objective._deal_groups(GROUPS, (4, 0))
    assert sorted(id(group) for part in parts for group in part) == sorted(map(id, GROUPS))
    start, expected = learner.init(PARAMS), PARAMS
    for part in parts:
        (batch,) = make_learner().pack(part, 0, [4, 4]).batches
        count, now = learner.count_live(batch), learner.init(expected)
        old = learner.prepare(start, batch, count).old_logprobs
        now, _ = learner.update_once(
            now, dataclasses.replace(learner.prepare(now, batch, count), old_logprobs=old), count
        )
        expected = now.params
    np.testing.assert_allclose(flat_array(state.params), flat_array(expected), rtol=1e-4, atol=1e-6)
    learner.update(state, GROUPS)
    assert learner._update_fn._cache_size() == learner._forward_fn._cache_size() == 1


def test_parts_are_dealt_anew_at_every_step():
    groups, deal = make_groups(5), shared_learner(**PARTS).objective._deal_groups
    dealt = [deal(groups, (0, step)) for step in range(6)]
    assert {tuple(len(part) for part in parts) for parts in dealt} == {(3, 2)}
    assert len({str([[groups.index(group) for group in part] for part in parts]) for parts in dealt}) > 1


def test_a_part_without_a_live_group_makes_no_update():
    learner = shared_learner(**PARTS)
    flat = learner.objective._deal_groups(GROUPS, (4, 0))[0]
    groups = [Group(g.task, g.trajectories[:1] * 4) if g in flat else g for g in GROUPS]
    state, metrics = learner.update(learner.init(PARAMS), groups)
    assert metrics["updates"] == 1.0
    assert bits(state.params) != bits(PARAMS)
