"""Routing replay in the update: routes travel with their tokens, whatever packing does, and say how far they differ."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from compiling import initialize
from test_learner_invariance import KEEPING
from tiny_learner import bits

from cojax.learner.batch import decode_routes
from cojax.learner.learner import Learner
from cojax.learner.losses import LOSSES
from cojax.learner.objective import bind_loss
from cojax.learner.rehearsal import rehearse
from cojax.policy.config import ModelConfig
from cojax.policy.moe import RouteShape
from cojax.types import Action, Group, Task, Trajectory, Turn, from_json, to_json

CONFIG = ModelConfig(
    16,
    8,
    16,
    2,
    2,
    1,
    model_type="qwen3_moe",
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    norm_topk_prob=True,
)
SHAPE = RouteShape.of(CONFIG)
PARAMS = initialize(CONFIG, 0)
TASK = Task("desk", "q", {})


def drawn(count: int, seed: int) -> np.ndarray:
    """[count, L, k]: two of four experts for each token and layer."""
    draw = np.random.default_rng(seed)
    return np.array([[draw.permutation(4)[:2] for _ in range(2)] for _ in range(count)]).astype(np.int8)


def turn(prompt, action, routes) -> Turn:
    told = "" if routes is None else SHAPE.encode(routes)
    return Turn(
        Action(), prompt_tokens=tuple(prompt), action_tokens=tuple(action), action_logprobs=(-2.0,) * len(action),
        weights_version=0, routes=told,
    )  # fmt: skip


def test_routes_lie_at_the_tokens_that_were_fed() -> None:
    """Turns of 2 + 3, 1 + 2 and 1 + 1 tokens: the second tells nothing, the third the six before the last, of which the
    first told one before."""
    first, third = drawn(4, 0), drawn(6, 1)
    trajectory = Trajectory(
        TASK, turns=(turn((1, 2), (3, 4, 5), first), turn((6,), (7, 8), None), turn((9,), (10,), third))
    )
    found = decode_routes(trajectory, SHAPE)
    assert found.shape == (10, 2, 2)
    np.testing.assert_array_equal(found[:4], first)
    np.testing.assert_array_equal(found[4:9], third[1:])
    assert (found[9] == -1).all()
    again = from_json(Trajectory, to_json(trajectory))  # as a checkpoint keeps those that wait
    np.testing.assert_array_equal(decode_routes(again, SHAPE), found)


def test_routes_of_more_tokens_than_were_fed_are_refused() -> None:
    trajectory = Trajectory(TASK, "0-ab-1", turns=(turn((1, 2), (3,), drawn(3, 0)),))
    with pytest.raises(
        ValueError, match=r"episode '0-ab-1', turn 0: routes of 3 tokens, but only 2 were fed to the model"
    ):
        decode_routes(trajectory, SHAPE)


def groups(told: bool = True) -> list[Group]:
    """Two groups of three trajectories of 4 to 9 tokens in two turns."""
    draw, found = np.random.default_rng(0), []
    for number in range(2):
        trajectories = []
        for sample in range(3):
            sizes = [(1, 1 + sample), (1, 1 + number + sample)]
            turns, before = [], 0
            for prompt, action in sizes:
                tokens = draw.integers(1, 16, prompt + action).tolist()
                routes = drawn(len(tokens) - (before == 0), 7 * number + sample) if told else None
                turns.append(turn(tokens[:prompt], tokens[prompt:], routes))
                before += len(tokens)
            trajectories.append(Trajectory(TASK, f"{number}-{sample}", turns=tuple(turns), reward=float(sample == 1)))
        found.append(Group(dataclasses.replace(TASK, query=str(number)), tuple(trajectories)))
    return found


@functools.cache
def learner(routes: str, row_length: int = 10, micro_rows: int = 1, kl: float = 0.0) -> Learner:
    """Learners hold no state, only what they have compiled. The reference is the policy itself."""
    return Learner(
        CONFIG, KEEPING, loss_settings={"kl_coefficient": kl}, reference=PARAMS if kl else None, routes=routes,
        row_length=row_length, micro_rows=micro_rows,
    )  # fmt: skip


def learned(learns: Learner, given: list[Group]):
    """Gradient and figures of one update."""
    state, figures = learns.update(learns.init(PARAMS), given)
    return jax.tree.leaves(state.opt_state), figures


def test_packing_and_micro_batches_change_nothing() -> None:
    """Two rows at once, and five one by one. The reference goes by the same routes: with the policy's weights it is no
    distance away."""
    both = learner("replayed", 24, 2, kl=0.1)
    rehearse(both, both.init(PARAMS), [3, 3])
    packed, figures = learned(both, groups())
    alone, expected = learned(learner("replayed"), groups())
    assert (both._update_fn._cache_size(), both._forward_fn._cache_size()) == (1, 1)
    assert (figures["rows"], expected["rows"]) == (2.0, 5.0)
    for one, other in zip(packed, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max(), rtol=0)
    for name in ("loss", "routes_differing", "logprob_mismatch"):
        assert figures[name] == pytest.approx(expected[name], rel=1e-5), name
    assert figures["kl"] == pytest.approx(0.0, abs=1e-9)
    assert figures["routes_known"] == 1.0
    assert 0.1 < figures["routes_differing"] < 0.9


@pytest.mark.real  # bit for bit, by the code that XLA chooses
def test_compared_learns_as_own_and_tells_how_far_routes_differ() -> None:
    own, figures = learned(learner("own"), groups())
    compared, told = learned(learner("compared"), groups())
    assert bits(own) == bits(compared)
    assert told["routes_known"] == 1.0
    assert 0.1 < told["routes_differing"] < 0.9
    assert {name: told[name] for name in figures} == figures
    assert not {"routes_known", "routes_differing"} & set(figures)
    replayed, _ = learned(learner("replayed"), groups())
    assert max(np.abs(one - other).max() for one, other in zip(own, replayed, strict=True)) > 1e-3


def test_of_turns_without_routes_the_routers_own_count() -> None:
    """An engine that told nothing: the update is that without replay, to rounding, and the figures say so."""
    own, _ = learned(learner("own"), groups(told=False))
    replayed, figures = learned(learner("replayed"), groups(told=False))
    for one, other in zip(replayed, own, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)
    assert figures["routes_known"] == figures["routes_differing"] == 0.0


def wary(logprobs, advantages, routes_differing, weights):
    """Learns less where the sampler went another way."""
    return -advantages * logprobs * (weights > 0) * (1.0 - routes_differing), {}


def test_a_loss_may_read_how_far_routes_differ() -> None:
    bound = bind_loss("wary", {"wary": wary}, {})
    assert bound.routes
    assert not bind_loss("grpo", LOSSES, {}).routes
    with pytest.raises(ValueError, match=r"reads routes_differing.*learner\.routes=compared"):
        Learner(CONFIG, KEEPING, loss="test_routing:wary")
    assert Learner(CONFIG, KEEPING, loss="test_routing:wary", routes="compared").shape.routes == SHAPE


def test_a_dense_model_has_no_routes_to_replay() -> None:
    dense = ModelConfig(16, 8, 16, 1, 2, 1)
    for routes in ("compared", "replayed"):
        with pytest.raises(ValueError, match="num_experts 0"):
            Learner(dense, KEEPING, routes=routes)
    with pytest.raises(ValueError, match="available: compared, own, replayed"):
        Learner(CONFIG, KEEPING, routes="sampler")
