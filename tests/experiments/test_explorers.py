"""From flags to an explorer and what its drafts go through."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cojax.explorer.journal import Journal
from cojax.explorer.llm import LLMExplorer
from cojax.explorer.scripted import ScriptedExplorer
from environments.bfcl.episode import SEPARATOR
from experiments import assemble, bfcl, desk, explorers
from experiments.settings import check, spelled_out

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path) -> ConfigDict:
    config = desk.get_config()
    config.workdir = str(tmp_path / "run")
    config.evaluation.tasks = config.evaluation.dev_tasks = 5
    config.llm.base_url, config.llm.model = "http://127.0.0.1:9/v1", "m"
    return config


def apply(config: ConfigDict, change: dict) -> None:
    for name, value in change.items():
        section, _, leaf = name.rpartition(".")
        (config[section] if section else config)[leaf] = value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--config.explorer=llm", "--config.explorer.name=llm"),
        ("-config.explorer", "-config.explorer.name"),
        ("--config.explorer.runs=2", "--config.explorer.runs=2"),
        ("--config.explorers=llm", "--config.explorers=llm"),
        ("--config.initial_explorer=scripted", "--config.initial_explorer=scripted"),
    ],
)
def test_the_explorer_may_be_named_by_its_section(given: str, expected: str) -> None:
    assert spelled_out(given) == expected


def test_the_command_takes_the_short_spelling() -> None:
    command = [sys.executable, "-m", "experiments.run", "--config=experiments/desk.py", "--config.explorer=oracle"]
    done = subprocess.run([*command, "--check"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "explorer 'oracle' not found; available: scripted, llm, policy" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial_explorer": "oracle"}, "explorer 'oracle' not found"),
        ({"explorer.name": "llm", "llm.base_url": ""}, "llm.base_url is ''; expected an address like http://HOST:PORT"),
        ({"initial_explorer": "llm", "llm.model": ""}, "llm.model is empty"),
    ],
)
def test_what_an_explorer_lacks_is_named_before_anything_is_built(
    config: ConfigDict, change: dict, message: str
) -> None:
    apply(config, change)
    with pytest.raises(ValueError, match=re.escape(message)):
        assemble.parts(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation.evaluation_similarity": 1.5}, "validation.evaluation_similarity is 1.5; expected a cosine"),
        ({"synthesis.select": "best"}, "synthesis.select 'best' not found; available: even, confident, all"),
        ({"validation.attempts": -1}, "validation.attempts is -1; expected at least 0"),
        ({"explorer.shortest": 0}, "explorer.shortest is 0; expected at least 1"),
        ({"explorer.name": "policy", "warm_start.split": "initial"}, "set --config.initial_explorer=scripted"),
    ],
)
def test_settings_out_of_bounds_are_named(config: ConfigDict, change: dict, message: str) -> None:
    apply(config, change)
    with pytest.raises(ValueError, match=re.escape(message)):
        check(config)


def test_explorers_and_their_validation_are_built_from_the_configuration(config: ConfigDict) -> None:
    made = assemble.parts(config)
    scripted = assemble.explorer(config, made)
    assert isinstance(scripted, ScriptedExplorer)
    plain = assemble.validation(config, made, scripted)
    # A grammar says all there is to know.
    assert (plain.attempts, plain.judge, plain.safe, plain.exclusions.similarity) == (None, None, True, 0.0)

    config.explorer.name, config.explorer.runs, config.validation.judge = "llm", 2, "note"
    config.validation.evaluation_similarity = 0.7
    llm = assemble.explorer(config, made, journal=Journal())
    assert isinstance(llm, LLMExplorer)
    assert (llm.runs, llm.width, llm.ending, llm.kind) == (2, 4, "finish", "llm")
    assert llm.name.startswith("llm:m@")
    full = assemble.validation(config, made, llm)
    assert full.attempts is not None
    assert full.judge is not None
    assert (full.attempts.count, full.attempts.max_turns, full.judge.veto) == (2, 12, False)
    assert full.attempts.attempters == LLMExplorer.attempters
    assert full.exclusions.why(made.evaluation[0]) == "an evaluation task has the same query"

    config.explorer.name, config.validation.attempter = "policy", "policy"
    own = assemble.explorer(config, made, journal=Journal())
    assert isinstance(own, LLMExplorer)
    assert own.name.startswith("policy:self@")
    assert assemble.validation(config, made, own).attempts is not None
    assert isinstance(assemble.explorer(config, made, "scripted"), ScriptedExplorer)
    for wrong in ({"attempter": "nobody"}, {"judge": "maybe"}):
        config.validation.update(wrong)
        with pytest.raises(ValueError, match=f"validation.{next(iter(wrong))} '.*' not found; available"):
            assemble.validation(config, made, own)
        config.validation.update({"attempter": "policy", "judge": "off"})


def test_bfcls_turns_are_parted_as_its_dialogues_part_them() -> None:
    assert bfcl.get_config().explorer.separator == SEPARATOR
    assert set(explorers.ATTEMPTERS) == {"explorer", "policy"}
