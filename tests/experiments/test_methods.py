"""What a method decides and what it refuses, in the first second."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Iterator
from typing import Any

import pytest
from ml_collections import ConfigDict

from cojax.learner.objective import HardNegatives
from cojax.preference import read_coefficients, weights
from cojax.run import methods, states
from cojax.run.checks import check_settings
from cojax.run.entries import objective_of, reads_initial
from cojax.run.summary import _count_hard_negatives
from cojax.settings import presets
from cojax.settings.tree import RoundsSettings
from experiments import alfworld, appworld, bfcl, desk, scienceworld, tau2


def config(**settings: object) -> ConfigDict:
    """The desk with these settings, "__" for each dot."""
    made = desk.get_config()
    with made.ignore_type():
        made.update_from_flattened_dict({name.replace("__", "."): value for name, value in settings.items()})
    return made


def test_a_methods_own_settings_come_before_the_defaults():
    def chosen(**settings: object) -> RoundsSettings:
        found = methods.rounds_of(config(**settings))
        assert found is not None
        return found[1]

    ours = chosen(method="coevolving")
    assert (*read_coefficients(ours), ours.agent, ours.experts) == (0.5, 0.5, "failure", "solutions")
    eto = chosen(method="eto")
    assert (*read_coefficients(eto), eto.agent) == (1.0, 0.0, "none")
    assert weights(eto) == {"own": 1.0, "other": 0.0, "failures": 0.0}
    assert chosen(method="eto", preference__sft=0.25).sft == 0.25
    assert chosen(method="rft").experts == "both"
    assert chosen(method="coevolving", preference__agent="none").agent == "none"
    assert methods.rounds_of(config()) is None
    assert methods.rounds_of(config(method="best_of_n")) is None


def test_the_loss_is_that_of_the_method():
    assert objective_of(config(method="eto")).loss.settings == {"beta": 0.1, "sft_coefficient": 0.0}
    assert objective_of(config(method="coevolving", preference__sft=0.25)).loss.settings["sft_coefficient"] == 0.5
    losses = [objective_of(config(method=name)).loss.name for name in ("rft", "sft", "coevolve")]
    assert losses == ["sft", "sft", "grpo"]


def test_the_initial_policy_is_kept_only_where_it_is_the_reference():
    assert not reads_initial(config(method="coevolving"))
    assert reads_initial(config(method="coevolving", preference__reference="initial"))
    assert not reads_initial(config(method="sft"))
    assert reads_initial(config(method="sft", learner__lora__rank=4))


def test_the_share_of_hard_negatives_is_none_where_none_was_compared():
    compared = {"failures": 4.0, "hard_negatives": 3.0, "hard_pairs": 2.0}
    alone = {**compared, "hard_pairs": 0.0}
    assert _count_hard_negatives([compared, alone]) == 0.75
    assert _count_hard_negatives([alone, {}]) is None
    assert _count_hard_negatives([{}]) is None


@pytest.mark.parametrize(("restored", "copies"), [(None, 1), ("second", 0)])
def test_a_restored_second_agent_is_not_copied_for_the_rehearsal(restored, copies, monkeypatch):
    """A third agent in memory would refuse to go on with a run that fits."""
    asked: list[str] = []

    @contextlib.contextmanager
    def operation(name: str, state: Any) -> Iterator[Any]:
        asked.append(name)
        yield lambda result: result

    monkeypatch.setattr(states, "copy_arrays", lambda tree: tree)
    learner: Any = types.SimpleNamespace(hosts=types.SimpleNamespace(operation=operation))
    second: Any = restored
    learned: Any = "policy"
    with states.hold_second_agent(config(method="coevolving"), learner, learned, second):
        assert asked == ["copy"] * copies


def test_the_task_set_grows_where_the_method_lets_it():
    assert methods.evolves(config())
    assert not methods.evolves(config(method="eto"))
    assert methods.evolves(config(method="eto", preference__tasks="growing"))


def test_best_of_n_takes_no_step_and_tries_ten_times_or_as_often_as_it_is_told():
    ours = methods.apply_method(config(method="best_of_n"))
    assert (ours.steps, ours.evaluation.trials) == (0, 10)
    assert methods.apply_method(config(method="best_of_n", evaluation__trials=4)).evaluation.trials == 4
    assert methods.apply_method(ours).to_dict() == ours.to_dict()
    assert methods.apply_method(config()).steps == 120


@pytest.mark.parametrize(("method", "rows"), [("coevolving", 2), ("eto", 2), ("sft", 1), ("rft", 1), ("coevolve", 1)])
def test_a_micro_batch_holds_a_pair_where_the_method_learns_from_pairs(method, rows):
    made = config(method=method, learner__micro_rows=1)
    made.learner.row_length = made.engine.max_length
    assert methods.apply_method(made).learner.micro_rows == rows
    check_settings(methods.apply_method(made))
    assert made.learner.micro_rows == 1


def test_hard_negatives_go_with_grpo():
    made = config(preference__hard_negatives=0.5, preference__beta=0.3, preference__hard=0.7)
    check_settings(made)
    assert methods.make_hard_negatives(made) == HardNegatives(0.5, beta=0.3, min_partial=0.7)
    assert methods.make_hard_negatives(config()) is None


@pytest.mark.parametrize("world", [desk, bfcl, appworld, alfworld, scienceworld, tau2])
@pytest.mark.parametrize("method", ["coevolve", "coevolving", "eto", "rft", "sft", "best_of_n"])
def test_every_method_runs_in_every_experiment(method, world):
    made = presets.apply_preset(world.get_config(), ["policy"])
    made.method = method
    check_settings(methods.apply_method(made))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "coevolvin"}, "method is 'coevolvin'; expected one of 'coevolve', 'coevolving', 'eto'"),
        (
            {"preference__beta": 0.5},
            "preference.beta is 0.5, but method is 'coevolve', which does not learn in rounds; set --config.method",
        ),
        (
            {"method": "eto", "preference__agent": "positive"},
            "preference.agent is 'positive', but method 'eto' does not read it; unset it",
        ),
        ({"method": "rft", "preference__beta": 0.5}, "preference.beta is 0.5, but method 'rft' does not read it"),
        ({"method": "sft", "preference__dpo": 0.5}, "preference.dpo is 0.5, but method 'sft' does not read it"),
        (
            {"method": "coevolving", "staleness": 1},
            "staleness is 1, but method 'coevolving' learns in rounds, which do not read it; set --config.staleness=0",
        ),
        (
            {"method": "eto", "preference__hard_negatives": 0.5},
            "preference.hard_negatives is 0.5, but method 'eto' does not read it",
        ),
        (
            {"preference__hard_negatives": 0.5, "learner__micro_rows": 1},
            "preference.hard_negatives compares 2 episodes, which must share a micro-batch",
        ),
        ({"method": "eto", "learner__loss": "cispo"}, "learner.loss is 'cispo', but method 'eto' learns in rounds"),
        (
            {"method": "coevolving", "preference__own": 0.0, "preference__other": 0.0, "preference__failures": 0.0},
            "preference.own and other and failures are 0, so there is nothing to learn from",
        ),
        (
            {"method": "coevolving", "preference__agent": "none", "preference__own": 0.0, "preference__failures": 0.0},
            "preference.own and failures are 0, so there is nothing to learn from",
        ),
        (
            {"method": "coevolving", "preference__agent": "none", "preference__share": 0.25},
            "preference.share is 0.25, but it concerns the second agent, and preference.agent is 'none'; unset it",
        ),
        (
            {"method": "best_of_n", "preference__hard_negatives": 0.5},
            "preference.hard_negatives is 0.5, but method is 'best_of_n', which does not learn in rounds; set "
            "--config.method to coevolve, or unset it",
        ),
        (
            {"method": "sft", "preference__tasks": "growing"},
            "preference.tasks is 'growing', but method 'sft' plays no episodes around which tasks could be found",
        ),
        ({"method": "eto", "preference__dpo": 0.0}, "preference.dpo is 0.0; expected a number above 0 or None"),
        ({"method": "coevolving", "preference__share": 0.0}, "preference.share is 0.0; expected a share above 0"),
        ({"method": "coevolving", "preference__hard": 1.5}, "preference.hard is 1.5; expected a share from 0 to 1"),
    ],
)
def test_what_a_method_does_not_read_and_what_is_out_of_range_is_refused(settings, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        check_settings(config(**settings))
