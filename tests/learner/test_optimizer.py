"""The learning rate's course."""

import jax.numpy as jnp
import numpy as np
import pytest

from cojax.learner.optimizer import adamw


def test_the_rate_rises_and_falls() -> None:
    """Adam's update of a constant gradient is the rate itself: 0.1 after two updates, 0.02 from the sixth."""
    optimizer = adamw(0.1, warmup_steps=2, decay_steps=5, decay_to=0.2, clip_norm=1e9)
    params = {"x": jnp.zeros(1)}
    state, moves = optimizer.init(params), []
    for _ in range(8):
        updates, state = optimizer.update({"x": jnp.ones(1)}, state, params)
        moves.append(-float(updates["x"][0]))
    np.testing.assert_allclose(moves, [0.05, 0.084, 0.068, 0.052, 0.036, 0.02, 0.02, 0.02], rtol=1e-5)


@pytest.mark.parametrize("settings", [{"warmup_steps": -1}, {"decay_steps": -1}, {"decay_to": 1.5}])
def test_refuses_what_is_no_schedule(settings: dict) -> None:
    with pytest.raises(ValueError, match="expected numbers of updates"):
        adamw(0.1, **settings)
