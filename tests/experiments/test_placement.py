"""`environment.cluster` is a setting of every environment, and decides no result."""

import pytest

from cojax.evaluation.evaluate import Subject, identity
from cojax.run import entries
from cojax.run.checks import check_settings
from cojax.settings.tree import FREE_SETTINGS, LEAVES
from cojax.storage.differences import list_differences
from experiments import bfcl, desk

CLUSTER = "ray://head:10001"


@pytest.mark.parametrize("experiment", [desk, bfcl])
def test_it_is_no_setting_of_the_environments_own(experiment):
    config = experiment.get_config()
    assert config.environment.cluster == ""
    config.environment.cluster = CLUSTER
    chosen = entries.entry(config, "environment.name")
    assert "cluster" not in chosen.overrides
    assert "cluster" not in chosen.describe()["settings"]


def test_a_flag_sets_it_and_another_environment_keeps_it():
    config = entries.apply_flags(desk.get_config(), {"environment.cluster": CLUSTER})
    assert config.environment.to_dict() == {"name": "desk", "cluster": CLUSTER, "isolated": False}
    config = entries.apply_flags(config, {"environment.name": "bfcl"})
    assert config.environment.to_dict() == {"name": "bfcl", "cluster": CLUSTER}


def test_a_run_may_go_on_elsewhere():
    here, there = desk.get_config(), desk.get_config()
    there.environment.cluster = CLUSTER
    assert list_differences(here.to_dict(), there.to_dict(), FREE_SETTINGS) == ""
    assert LEAVES["environment.cluster"].default == ""


def test_an_evaluation_is_the_same_one_elsewhere():
    subject = Subject(name="m", identity={"model": "m"})
    here, there = desk.get_config(), desk.get_config()
    there.environment.cluster = CLUSTER
    assert identity(here, subject, {}, 1) == identity(there, subject, {}, 1)
    assert "cluster" not in identity(here, subject, {}, 1)["environment"]


def test_an_address_is_checked_before_anything_is_built():
    config = desk.get_config()
    config.environment.cluster = "head"
    with pytest.raises(ValueError, match=r"environment\.cluster is 'head'; expected ray://HOST:PORT"):
        check_settings(config)
    config.environment.cluster = "ray://user:key@head:1"
    with pytest.raises(ValueError, match=r"environment\.cluster holds credentials"):
        check_settings(config)
