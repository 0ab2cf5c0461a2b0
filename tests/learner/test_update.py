"""One update: its arithmetic by hand, sums of micro-batches, several updates a step, numbers that are not finite."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_learner import GROUPS, PARAMS, SGD, bits, flat_array, make_groups, make_learner, shared_learner

from cojax.learner.batch import DTYPES, RowShape, TrainBatch, pack_sequences
from cojax.learner.learner import StepBatches
from cojax.learner.losses import LOSSES, summed_by
from cojax.learner.objective import bind
from cojax.learner.update import NonFiniteUpdate, TrainState, update
from cojax.policy.logprobs import TokenScores
from cojax.types import Group

GRPO = bind("grpo", LOSSES, {})


def _table(_, params, batch):
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


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("tokens", np.zeros((1, 1, 1), np.float32), "int32"),
        ("weights", np.ones((1, 1, 1), np.int32), "float32"),
        ("turns", np.zeros((1, 1, 2), np.int32), "shape"),
        ("rewards", np.zeros((1, 1), np.float32), "rank"),
        ("routes", np.zeros((1, 1, 1, 2), np.int8), "shape"),
    ],
)
def test_a_column_of_another_dtype_or_shape_is_an_error(name, column, message):
    state = TrainState(jnp.int32(0), {"table": jnp.zeros(4)}, SGD.init({"table": jnp.zeros(4)}))
    batch = dataclasses.replace(_one_token(2, 2.0, 0.5), **{name: column})
    with pytest.raises(AssertionError, match=message):
        update(state, None, batch, np.int32(1), score=_table, loss=GRPO, optimizer=SGD, on_policy=True)


def test_a_loss_of_another_shape_is_an_error():
    """A loss is tried on rows of 8 tokens when it is bound; on one of 1 token these sums would broadcast."""
    loss = dataclasses.replace(GRPO, function=lambda logprobs, *_, **settings: (jnp.zeros((2, 8)) + logprobs, {}))
    state = TrainState(jnp.int32(0), {"table": jnp.zeros(4)}, SGD.init({"table": jnp.zeros(4)}))
    with pytest.raises(AssertionError, match="shape"):
        update(
            state, None, _one_token(2, 2.0, 0.5), np.int32(1), score=_table, loss=loss, optimizer=SGD, on_policy=True
        )


@pytest.mark.parametrize("micro_rows", [1, 4])
def test_micro_batches_add_up_to_the_full_batch(micro_rows):
    def gradient(rows):
        learner = shared_learner(optimizer=SGD, micro_rows=rows)
        state, metrics = learner.update(learner.init(PARAMS), GROUPS)
        return flat_array(PARAMS) - flat_array(state.params), metrics

    whole, whole_metrics = gradient(12)
    parts, metrics = gradient(micro_rows)
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-7)
    # The sampler is the policy itself here: what is left of the mismatch is rounding, which no sum keeps.
    rounding = {"logprob_mismatch", "logprob_mismatch_max"}
    assert all(metrics.pop(name) < 1e-5 and whole_metrics.pop(name) < 1e-5 for name in sorted(rounding))
    assert metrics == pytest.approx(whole_metrics, rel=1e-4, abs=1e-7)


def test_packing_does_not_change_the_gradient():
    def gradient(row_length):
        learner = shared_learner(optimizer=SGD, row_length=row_length, micro_rows=1)
        return flat_array(PARAMS) - flat_array(learner.update(learner.init(PARAMS), GROUPS)[0].params)

    np.testing.assert_allclose(gradient(64), gradient(16), rtol=1e-4, atol=1e-7)


def test_a_second_compilation_is_an_error(traced_once):
    """Without `sizes` a step of fewer groups has fewer rows."""
    learner = make_learner(micro_rows=1)
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    with pytest.raises(AssertionError, match="'update' is traced > 1 times"):
        learner.update(state, GROUPS[:1])


def test_one_compilation_serves_any_number_of_live_rows(traced_once):
    learner = make_learner(micro_rows=1)
    state = learner.init(PARAMS)
    for flat in range(3):
        groups = [Group(g.task, g.trajectories[:1] * 4) if index < flat else g for index, g in enumerate(GROUPS)]
        state, metrics = learner.update(state, groups)
        assert metrics["groups_live"] == 3 - flat


def test_one_compilation_serves_fewer_groups_than_a_step_may_have(traced_once):
    learner, sizes = make_learner(micro_rows=1), [4] * len(GROUPS)
    state = learner.init(PARAMS)
    for count in (len(GROUPS), 1, 0):
        state, metrics = learner.update(state, GROUPS[:count], sizes)
        assert (metrics["groups"], metrics["updates"]) == (count, float(count > 0))


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
    batch = pack_sequences([([1, 2, 5], [False, True, True])], RowShape(16, 2))
    batch.advantages[0, 1] = np.inf
    with pytest.raises(
        NonFiniteUpdate, match=r"step 2, update 1: loss .*, gradient norm .*; expected finite"
    ) as caught:
        learner.update(state, StepBatches([batch]))
    assert bits((caught.value.state.params, caught.value.state.opt_state)) == before
    caught.value.save(tmp_path / "batch.npz")
    saved = np.load(tmp_path / "batch.npz")
    assert saved["tokens"].tolist() == batch.tokens.tolist()
    assert saved["advantages"][0, :3].tolist() == [0.0, np.inf, 0.0]
    assert not np.isfinite(saved["metric_grad_norm"])


def test_of_several_updates_those_before_the_bad_one_are_kept_and_it_says_so():
    """A learning rate at which the second update of the batch, far off the first policy, overflows."""
    learner = make_learner(optimizer=optax.sgd(1e30), updates_per_batch=3)
    with pytest.raises(NonFiniteUpdate) as caught:
        learner.update(learner.init(PARAMS), GROUPS)
    made = int(str(caught.value).split("update ")[1].split(":")[0]) - 1
    assert made >= 1
    assert f"the parameters hold the {made} updates of this step before it" in str(caught.value)
    assert "add --config.learner.skip_steps=(1,), which makes no update in that step" in str(caught.value)
    assert bits(caught.value.state.params) != bits(PARAMS)


def test_a_step_that_is_skipped_makes_no_update_and_the_next_one_does():
    learner = make_learner(skip_steps=(2,))
    state, _ = learner.update(learner.init(PARAMS), GROUPS)
    before = bits((state.params, state.opt_state))
    state, metrics = learner.update(state, GROUPS)
    assert bits((state.params, state.opt_state)) == before
    assert (int(state.step), metrics["updates"], metrics["skipped"], metrics["groups"]) == (2, 0.0, 1.0, 3.0)
    state, metrics = learner.update(state, GROUPS)
    assert metrics["updates"] == 1.0
    assert bits((state.params, state.opt_state)) != before


def test_a_step_whose_advantages_are_no_numbers_can_be_skipped():
    """What fails is the advantage, before there is a batch."""
    broken = dataclasses.replace(GROUPS[0].trajectories[0], reward=math.nan)
    groups = [Group(GROUPS[0].task, (broken, *GROUPS[0].trajectories[1:])), *GROUPS[1:]]
    with pytest.raises(ValueError, match="is not finite"):
        shared_learner().update(shared_learner().init(PARAMS), groups)
    learner = make_learner(skip_steps=(1,))
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
        learner = make_learner(optimizer=SGD, loss="best", row_length=row_length, micro_rows=micro_rows)
        state, metrics = learner.update(learner.init(PARAMS), GROUPS)
        found.append((metrics["loss"], flat_array(state.params)))
    for loss, params in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-5)
        np.testing.assert_allclose(params, found[0][1], atol=1e-5)
    with pytest.raises(ValueError, match="must share a micro-batch of 1 × 16; raise micro_rows to 4"):
        make_learner(loss="best", micro_rows=1).update(learner.init(PARAMS), GROUPS)


# Several updates a step -------------------------------------------------------------------------------------------


def test_updates_of_parts_are_those_of_their_groups_one_after_another():
    """Each group in a part of its own: three steps on one group each, in the order drawn, with π_old from the start."""
    learner = make_learner(optimizer=SGD, updates_per_batch=3, each_update="part", seed=4)
    state, metrics = learner.update(learner.init(PARAMS), GROUPS)
    assert (metrics["updates"], metrics["groups"], int(state.step)) == (3.0, 3.0, 1)
    assert metrics["tokens_trained"] == 3 * (3 + 4 + 5 + 6)
    order = [part[0] for part in learner.objective._deal(GROUPS, (4, 0))]
    assert sorted(map(id, order)) == sorted(map(id, GROUPS))
    single, expected = make_learner(optimizer=SGD, updates_per_batch=2), PARAMS
    first = make_learner(optimizer=SGD).init(PARAMS)
    for group in order:
        (batch,), _ = single.objective.batches([group], (4, 0), RowShape(16, 2))
        count = np.int32(batch.segment_ids[:, 0].astype(bool).sum() // -2 * -1)
        now = single.init(expected)
        placed = dataclasses.replace(
            single.prepare(now, batch, count), old_logprobs=single.prepare(first, batch, count).old_logprobs
        )
        now, _ = single.update_once(now, placed, count)
        expected = now.params
    np.testing.assert_allclose(flat_array(state.params), flat_array(expected), rtol=1e-4, atol=1e-6)


def test_parts_are_dealt_anew_at_every_step_and_share_one_program(traced_once):
    learner = make_learner(updates_per_batch=2, each_update="part")
    groups = make_groups(5)
    dealt = {tuple(len(part) for part in learner.objective._deal(groups, (0, step))) for step in range(4)}
    assert dealt == {(3, 2)}
    orders = {str([groups.index(group) for part in learner.objective._deal(groups, (0, step)) for group in part])
              for step in range(6)}  # fmt: skip
    assert len(orders) > 1
    state = learner.init(PARAMS)
    for _ in range(2):
        state, _ = learner.update(state, groups)


def test_a_part_without_a_live_group_makes_no_update():
    flat = [Group(g.task, tuple(dataclasses.replace(t, reward=1.0) for t in g.trajectories)) for g in GROUPS[:2]]
    learner = make_learner(updates_per_batch=3, each_update="part")
    assert learner.update(learner.init(PARAMS), [*flat, GROUPS[2]])[1]["updates"] == 1.0
