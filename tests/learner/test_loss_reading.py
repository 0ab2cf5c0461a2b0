"""What a loss reads: found in its signature and in a trace of it, never guessed from the name of a setting."""

import functools

import jax.numpy as jnp
import pytest

from cojax.learner.losses import LOSSES, learns_from, policy_gradient
from cojax.learner.objective import bind_loss
from cojax.registry import settings


def towards(logprobs, reference_logprobs, *, strength: float = 1.0):
    """Reads the reference, whatever its setting is called."""
    return strength * (logprobs - reference_logprobs) ** 2, {}


def everything(logprobs, entropy, sequences, turns, tasks, groups, lengths, group_sizes, rewards, positions):
    read = (entropy, sequences, turns, tasks, groups, lengths, group_sizes, rewards, positions)
    return -logprobs * sum(x.astype(jnp.float32) for x in read), {}


def test_the_reference_is_used_where_the_result_depends_on_it():
    assert "reference_logprobs" in bind_loss("mine", {"mine": towards}, {}).uses
    assert "reference_logprobs" not in bind_loss("grpo", LOSSES, {}).uses
    assert "reference_logprobs" in bind_loss("grpo", LOSSES, {"kl_coefficient": 1e-3}).uses
    assert "reference_logprobs" not in bind_loss("grpo", LOSSES, {"kl_coefficient": 1e-3, "kl_towards": "sampler"}).uses
    assert bind_loss("sft", LOSSES, {}).uses == {"logprobs", "weights"}
    uses = {"logprobs", "reference_logprobs", "advantages", "rewards", "groups", "weights"}
    assert bind_loss("dpo", LOSSES, {}).uses == uses


def test_what_is_computed_and_thrown_away_is_not_used():
    def wasteful(logprobs, advantages, reference_logprobs):
        distance = jnp.exp(reference_logprobs - logprobs)
        return -advantages * logprobs, {"ratio": jnp.exp(logprobs - logprobs), "zero": 0.0 * distance}

    assert "reference_logprobs" in bind_loss("mine", {"mine": wasteful}, {}).uses  # a fact is a result

    def silent(logprobs, advantages, reference_logprobs):
        jnp.exp(reference_logprobs - logprobs)
        return -advantages * logprobs, {}

    assert bind_loss("mine", {"mine": silent}, {}).uses == {"logprobs", "advantages"}


def test_what_only_a_fact_tells_of_is_not_learned_from():
    def telling(logprobs, advantages, entropy, reference_logprobs):
        return -advantages * logprobs, {"far": logprobs - reference_logprobs, "spread": entropy}

    bound = bind_loss("mine", {"mine": telling}, {})
    assert bound.uses == {"logprobs", "advantages", "entropy", "reference_logprobs"}
    assert bound.loss_inputs == {"logprobs", "advantages"}
    assert not bound.takes_flat
    assert bound.entropy == "value"

    def idle(logprobs, advantages):
        return advantages, {"logprobs": logprobs}

    with pytest.raises(ValueError, match="depends on neither logprobs nor entropy"):
        bind_loss("mine", {"mine": idle}, {})


def test_the_entropy_has_a_gradient_where_the_loss_uses_it():
    assert bind_loss("grpo", LOSSES, {}).entropy == "value"
    assert bind_loss("grpo", LOSSES, {"entropy_coefficient": 0.01}).entropy == "gradient"


def test_every_column_can_be_read():
    assert len(bind_loss("mine", {"mine": everything}, {}).uses) == 10


@pytest.mark.parametrize(
    ("name", "given", "flat"),
    [
        ("grpo", {}, False),
        ("grpo", {"kl_coefficient": 1e-3}, True),
        ("grpo", {"kl_coefficient": 1e-3, "kl_towards": "sampler"}, True),  # which is read for the importance anyhow
        ("gspo", {"entropy_coefficient": 1e-3}, True),
        ("sft", {}, True),
        ("dpo", {}, False),
    ],
)
def test_regularised_losses_see_flat_groups(name, given, flat):
    assert bind_loss(name, LOSSES, given).takes_flat is flat


def test_a_loss_of_ones_own_declares_what_it_needs():
    def plain(logprobs, advantages):
        return -advantages * logprobs, {}

    @learns_from(flat_groups=True)
    def declared(logprobs, advantages):
        return -advantages * logprobs + logprobs**2, {}

    @learns_from(flat_groups=lambda pull=0.0: pull > 0)
    def by_setting(logprobs, advantages, *, pull: float = 0.0):
        return -advantages * logprobs + pull * logprobs**2, {}

    table = {"plain": plain, "declared": declared, "by_setting": by_setting, "towards": towards}
    assert not bind_loss("plain", table, {}).takes_flat
    assert bind_loss("declared", table, {}).takes_flat
    assert not bind_loss("by_setting", table, {}).takes_flat
    assert bind_loss("by_setting", table, {"pull": 0.5}).takes_flat
    assert bind_loss("towards", table, {}).takes_flat  # it uses no advantages


def test_a_partial_declares_what_the_loss_does():
    assert bind_loss("mine", {"mine": functools.partial(LOSSES["dpo"], beta=0.3)}, {}).is_paired
    pulled = functools.partial(LOSSES["grpo"], kl_coefficient=0.1, kl_towards="sampler")
    assert bind_loss("mine", {"mine": pulled}, {}).takes_flat


def test_who_decides_on_flat_groups_is_told_what_it_takes():
    @learns_from(flat_groups=lambda pull: pull > 0)
    def two(logprobs, advantages, *, pull: float = 0.5, scale: float = 1.0):
        return -scale * advantages * logprobs, {}

    assert bind_loss("two", {"two": two}, {"scale": 2.0}).takes_flat
    assert not bind_loss("two", {"two": two}, {"pull": 0.0}).takes_flat


def test_a_loss_that_compares_a_group_has_it_whole():
    assert bind_loss("mine", {"mine": everything}, {}).needs_groups
    assert not bind_loss("grpo", LOSSES, {}).needs_groups
    assert not bind_loss("dpo", LOSSES, {}).needs_groups  # its groups are pairs


def test_a_surrogate_has_its_own_settings_and_those_of_the_parts():
    assert list(settings(LOSSES["dual_clip"]))[:4] == ["clip_low", "clip_high", "clip_bad", "ratio"]

    @policy_gradient
    def reinforce(log_ratio, logprobs, advantages, sequences, learned, *, scale: float = 2.0):
        return -scale * advantages * jnp.where(learned, logprobs, 0.0), {}

    bound = bind_loss("mine", {"mine": reinforce}, {"scale": 3, "kl_coefficient": 0.1})
    assert bound.settings == {"scale": 3.0, "kl_coefficient": 0.1}
    assert "reference_logprobs" in bound.uses


def test_what_there_is_not_is_refused_with_a_list():
    with pytest.raises(
        ValueError, match=r"loss 'mine' reads 'batch', which is not an input; inputs are logprobs, entropy, rou"
    ):
        bind_loss("mine", {"mine": lambda logprobs, batch: (logprobs, {})}, {})
    with pytest.raises(ValueError, match="reads 'others', which is not an input"):
        bind_loss("mine", {"mine": lambda logprobs, *others: (logprobs, {})}, {})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda logprobs: (jnp.sum(logprobs), {}),
            r"loss 'mine': its loss is float32\[\] of arrays \[2, 8\]; expected",
        ),
        (lambda logprobs: (logprobs, {"x": logprobs[0]}), r"its fact 'x' is float32\[8\] of arrays \[2, 8\]"),
        (
            lambda logprobs: logprobs,
            r"loss 'mine' returns float32\[2, 8\]; expected a pair, the loss of each token and",
        ),
        (lambda logprobs: None, "loss 'mine' returns NoneType; expected a pair"),
        (lambda logprobs: (logprobs,), r"loss 'mine' returns \(float32\[2, 8\]\); expected a pair"),
        (lambda logprobs: (logprobs, logprobs), r"loss 'mine' returns \(float32\[2, 8\], float32\[2, 8\]\); expected"),
        (lambda logprobs: (logprobs, {}, 1), r"returns \(float32\[2, 8\], dict, int\); expected a pair"),
        (lambda logprobs: "logprobs", "loss 'mine' returns str; expected a pair"),
        (lambda logprobs: (logprobs, "x"), r"loss 'mine' returns \(float32\[2, 8\], str\); expected a pair"),
        (lambda logprobs: (logprobs, {1: logprobs}), r"returns \(float32\[2, 8\], dict\); expected a pair"),
        (lambda logprobs: (item for item in [logprobs]), "loss 'mine' returns generator; expected a pair"),
        (lambda logprobs: (0.5, {}), r"its loss is float of arrays \[2, 8\]; expected one float"),
        (lambda logprobs: (None, {}), r"its loss is NoneType of arrays \[2, 8\]; expected one float"),
        (lambda logprobs: (logprobs, {"x": {"y": logprobs}}), r"its fact 'x' is dict of arrays \[2, 8\]"),
        (lambda logprobs: (1 / 0, {}), "loss 'mine' cannot be traced: ZeroDivisionError: division by zero"),
        (lambda advantages: (advantages, {}), "depends on neither logprobs nor entropy"),
    ],
)
def test_what_is_no_loss_is_refused_in_the_first_second(loss, message):
    with pytest.raises(ValueError, match=message):
        bind_loss("mine", {"mine": loss}, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip": 0.1}, "loss 'grpo' has no setting clip"),
        ({"clip_low": -3}, "clip_low is -3"),
        ({"kl": "k4"}, "kl is 'k4'; expected one of 'k1', 'k2', 'k3'"),
        ({"token_low": 0.0}, "token_low is 0.0"),
        ({"importance_cap": "much"}, "importance_cap is 'much'"),
    ],
)
def test_settings_are_checked_by_the_signature(given, message):
    with pytest.raises(ValueError, match=message):
        bind_loss("grpo", LOSSES, given)


def test_an_unknown_loss_lists_the_others():
    with pytest.raises(ValueError, match="loss 'ppo' not found; available: grpo, gspo, cispo, dual_clip, sft, dpo"):
        bind_loss("ppo", LOSSES, {})
