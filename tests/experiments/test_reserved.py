"""What no task may be like: whole splits where they have an end, and what is evaluated of those that have none."""

from pathlib import Path

import pytest
from ml_collections import ConfigDict

import environments
from cojax.run import assemble
from cojax.settings.presets import apply_preset
from experiments import appworld, bfcl, desk


def few(config: ConfigDict, workdir: Path) -> ConfigDict:
    """Of each split three tasks are evaluated, by the smallest policy."""
    config.workdir, config.policy = str(workdir), "tiny"
    config = apply_preset(config)
    config.evaluation.tasks = config.evaluation.dev_tasks = 3
    config.evaluation.challenge_tasks = 0
    return config


def test_of_the_desk_it_is_what_is_evaluated(tmp_path: Path) -> None:
    config = desk.get_config()
    config.workdir = str(tmp_path)
    config.evaluation.tasks, config.evaluation.dev_tasks, config.evaluation.challenge_tasks = 7, 5, 2
    made = assemble.build_parts(config)
    assert assemble.find_reserved_tasks(config, made) == (*made.evaluation, *made.development, *made.challenge)
    assert len(assemble.find_reserved_tasks(config, made)) == 14
    assert environments.list_reserved("desk") == ()


@pytest.mark.real
def test_of_bfcl_it_is_every_category_of_every_scenario(tmp_path: Path) -> None:
    config = few(bfcl.get_config(), tmp_path)
    made = assemble.build_parts(config)
    assert (len(made.evaluation), len(made.development)) == (3, 3)
    kept = {task.id for task in assemble.find_reserved_tasks(config, made)}
    assert len(kept) == 800
    exclusions = assemble.build_validation(config, made, assemble.build_explorer(config, made)).exclusions
    for category in ("base", "miss_func", "miss_param", "long_context"):
        last = made.environment.tasks(category, 200)[-1]
        assert last.id in kept
        assert exclusions.find_rule(last) == "an evaluation task has the same query"


@pytest.mark.real
def test_of_appworld_it_is_all_but_what_is_trained_on(tmp_path: Path) -> None:
    config = few(appworld.get_config(), tmp_path)
    config.environment.data = "tiny"
    made = assemble.build_parts(config)
    try:
        kept = {task.setup["task"] for task in assemble.find_reserved_tasks(config, made)}
        for split in ("dev", "test_normal", "test_challenge"):
            assert {task.setup["task"] for task in made.environment.tasks(split, 1_000)} <= kept
        assert not kept & {task.setup["task"] for task in made.environment.tasks("train", 1_000)}
    finally:
        made.environment.close()  # type: ignore[attr-defined]
