"""cojax/run/assemble.py: the last bit, and nothing else."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from compiling import initialize
from trained_runs import config

import environments
from cojax.run import assemble, initial_policy, policies
from cojax.run.assemble import perturb
from cojax.run.processes import ALONE

PARAMS = {"embedding": jnp.ones((64, 64)), "layers": {"up": jnp.full((1000,), -3.0)}, "count": jnp.arange(3)}


def test_half_of_the_last_bits_are_flipped():
    found = perturb(PARAMS, 1)
    ones = np.asarray(found["embedding"])
    assert set(np.unique(ones.view(np.uint32))) == {0x3F800000, 0x3F800001}
    assert 0.45 < np.mean(ones != 1.0) < 0.55
    assert set(np.unique(np.asarray(found["layers"]["up"]).view(np.uint32))) == {0xC0400000, 0xC0400001}
    np.testing.assert_array_equal(found["count"], [0, 1, 2])


def test_each_number_flips_others_and_0_none():
    first, again, second = (np.asarray(perturb(PARAMS, number)["embedding"]) for number in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert 0.45 < np.mean(first != second) < 0.55
    assert perturb(PARAMS, 0) is PARAMS


def test_a_shorter_dtype_keeps_its_dtype():
    found = perturb({"gate": jnp.ones((500,), jnp.bfloat16)}, 3)["gate"]
    assert found.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(found).view(np.uint16))) == {0x3F80, 0x3F81}


def test_a_run_begins_with_the_perturbed_policy(monkeypatch):
    monkeypatch.setattr(initial_policy, "initialize", initialize)
    desk = environments.load("desk")
    _, model = policies.read_model(config(model__shape__num_hidden_layers=1), desk)

    def begins(number: int) -> np.ndarray:
        settings = config(warm_start__steps=0, perturbation=number)
        made = SimpleNamespace(
            environment=desk, chat=None, model=model, engine=None, development=(), mesh=None, together=ALONE
        )
        params, _ = assemble.initial_policy(settings, made, tuple)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])

    plain, other = begins(0), begins(1)
    bits = plain.view(np.uint32) ^ other.view(np.uint32)
    assert set(np.unique(bits)) == {0, 1}
    np.testing.assert_array_equal(plain, begins(0))
