"""From flags to an explorer and what its drafts go through."""

import dataclasses
import re
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cojax.environment import EngineError
from cojax.explorer.llm.chat_model import Journal
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.run import assemble, explorers, preflight
from cojax.run.checks import check_run, check_settings
from cojax.types import Action, Call, TaskDraft
from environments.bfcl.episode import SEPARATOR
from experiments import appworld, bfcl, desk

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
    ("change", "message"),
    [
        ({"initial_explorer": "oracle"}, "explorer 'oracle' not found"),
        ({"explorer.name": "llm", "llm.base_url": ""}, "llm.base_url is ''; expected an address like http://HOST:PORT"),
        ({"initial_explorer": "llm", "llm.model": ""}, "llm.model is empty"),
        ({"llm.timeout": 0.0}, "llm.timeout is 0.0; expected a number of seconds above 0"),
        ({"explorer.ending": "done"}, "has no tool 'done' to end an episode; it has files_find, "),
        ({"explorer.name": "llm", "explorer.ending": "Finish"}, "finish. Name one of them by explorer.ending"),
    ],
)
def test_what_an_explorer_lacks_is_named_before_anything_is_built(
    config: ConfigDict, change: dict, message: str
) -> None:
    apply(config, change)

    def begin() -> None:
        check_run(config)
        assemble.build_parts(config)

    with pytest.raises(ValueError, match=re.escape(message)):
        begin()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation.evaluation_similarity": 1.5}, "validation.evaluation_similarity is 1.5; expected a cosine"),
        ({"synthesis.select": "best"},
         "selection 'best' not found; available: even, confident, all, or package.module:name"),
        ({"explorer.name": "policy", "warm_start.split": "initial"}, "set --config.initial_explorer=scripted"),
        ({"explorer.cut": 1.5}, "explorer.cut is 1.5; expected a share from 0 to 1"),
        ({"signal_settings.boundary": {"threshold": -0.1}}, "boundary.threshold is -0.1; expected a share from 0 to 1"),
        ({"signal_settings.forgetting": {"threshold": float("nan")}},
         "signal_settings.forgetting.threshold is nan; expected a share from 0 to 1"),
        ({"validation.longest_query": 100_001}, "longest_query is 100001; expected a number of characters from 1"),
        ({"explorer.separator": "\n\n"}, "explorer.separator is '\\n\\n', which any query may hold"),
        ({"explorer.shortest": 10}, "explorer.shortest is 10, but drafts have at most 9 actions"),
        ({"explorer.shortest": 9, "explorer.ending": ""}, "drafts have at most 8 actions, as explorer.steps is 8"),
        # What would silently not happen.
        ({"validation.judge": "veto"}, "validation.judge is 'veto', but only queries that a model words are"),
        ({"validation.attempts": 3}, "validation.attempts is 3, but only queries that a model words are"),
        ({"validation.attempter": "policy"}, "validation.attempter is 'policy', but only queries that a model words"),
        ({"explorer.name": "llm", "validation.attempter": "policy", "validation.attempts": 0},
         "validation.attempter is 'policy', but validation.attempts is 0: none is made"),
        ({"validation.judge": "maybe"}, "validation.judge is 'maybe'; expected one of 'off', 'note', 'veto'"),
        ({"explorer.name": "llm", "validation.attempter": "nobody"},
         "validation.attempter is 'nobody'; expected one of"),
        ({"validation.attackers": "null"}, "validation.attackers names 'null'; expected some of greeting,stop"),
        # Before the policy has any weights.
        ({"explorer.name": "llm", "validation.attempter": "policy", "warm_start.split": "initial"},
         "the policy that it is to teach would have to attempt those tasks before"),
        ({"initial_explorer": "llm", "validation.attempter": "policy", "warm_start.split": "initial"},
         "set --config.initial_explorer=scripted or --config.validation.attempter=explorer"),
    ],
)  # fmt: skip
def test_settings_out_of_bounds_are_named(config: ConfigDict, change: dict, message: str) -> None:
    apply(config, change)
    with pytest.raises(ValueError, match=re.escape(message)):
        check_settings(config)


@pytest.mark.parametrize(
    "change",
    [
        {"explorer.name": "llm", "initial_explorer": "scripted", "validation.judge": "veto"},
        {"initial_explorer": "policy", "validation.judge": "note", "validation.attempts": 3},
        {"explorer.name": "llm", "validation.attempts": 0},
        {"validation.attempts": 0},
        {"explorer.name": "llm", "validation.attempter": "policy", "warm_start.split": "initial",
         "initial_explorer": "scripted"},
        {"explorer.shortest": 9},
        {"validation.attackers": "shotgun,extra"},
        {"explorer.separator": SEPARATOR},
        # The ablation, of whatever is examined.
        {"explorer.name": "llm", "validation.judge": "veto", "validate": False},
    ],
)  # fmt: skip
def test_what_can_happen_may_be_asked_for(config: ConfigDict, change: dict) -> None:
    apply(config, change)
    check_settings(config)


def test_a_dry_run_says_which_tools_d0_leaves_out(config: ConfigDict, monkeypatch: pytest.MonkeyPatch) -> None:
    config.initial_tasks = 3
    made = assemble.build_parts(config)
    tasks = assemble.find_initial_tasks(config, made).tasks
    used = {call.name for task in tasks for action in task.solution for call in action.calls}
    tools = [tool["function"]["name"] for tool in made.environment.tools()]
    said = f"; it leaves out {len(tools) - len(used)} of {len(tools)} tools: "
    found = preflight._explorer(config, {"parts": made})
    assert found.startswith(f"scripted, without a model; D_0 has 3 tasks{said}")
    names = found.removesuffix(", …").partition(said)[2].split(", ")
    assert names == [tool for tool in tools if tool not in used][: len(names)]
    everything = dataclasses.replace(tasks[0], solution=tuple(Action(calls=(Call(tool, {}),)) for tool in tools))
    assert assemble.word_absent_tools(made.environment, [everything]) == ""
    assert assemble.word_absent_tools(made.environment, [dataclasses.replace(tasks[0], solution=())]) == ""
    monkeypatch.setattr(preflight, "_D0_TIMEOUT_S", 0.0)
    assert preflight._explorer(config, {"parts": made}) == "scripted, without a model; D_0 was not found within 0 s"


def test_explorers_and_their_validation_are_built_from_the_configuration(config: ConfigDict) -> None:
    made = assemble.build_parts(config)
    scripted = assemble.build_explorer(config, made)
    assert isinstance(scripted, ScriptedExplorer)
    assert scripted.width == 1
    plain = assemble.build_validation(config, made, scripted)
    # A grammar says all there is to know.
    assert (plain.attempts, plain.judge, plain.safe, plain.exclusions.similarity) == (None, None, True, 0.0)

    config.explorer.name, config.explorer.mistakes = "careless", 0.2
    careless = assemble.build_explorer(config, made)
    assert isinstance(careless, ScriptedExplorer)
    assert vars(careless) == {**vars(scripted), "name": "careless", "mistakes": 0.2, "play": careless.play}

    config.explorer.name, config.explorer.runs, config.validation.judge = "llm", 2, "note"
    config.validation.evaluation_similarity = 0.7
    llm = assemble.build_explorer(config, made, journal=Journal())
    assert isinstance(llm, LLMExplorer)
    assert (llm.runs, llm.width, llm.ending, llm.kind) == (2, 2, "finish", "llm")
    assert llm.name.startswith("llm:m@")
    full = assemble.build_validation(config, made, llm)
    assert full.attempts is not None
    assert full.judge is not None
    assert (full.attempts.count, full.attempts.max_turns, full.judge.args[1]) == (2, 12, False)
    assert full.attempts.attempters == LLMExplorer.attempters
    assert full.exclusions.find_rule(made.evaluation[0]) == "an evaluation task has the same query"

    config.explorer.name, config.validation.attempter = "policy", "policy"
    own = assemble.build_explorer(config, made, journal=Journal())
    assert isinstance(own, LLMExplorer)
    assert own.name.startswith("policy:self@")
    attempts = assemble.build_validation(config, made, own).attempts
    assert attempts is not None
    with attempts.attempters(own, made.evaluation[0], 1) as (act,):
        own.remaining_budget().close()
        # The policy costs nothing, but no attempt outlasts its evolution.
        with pytest.raises(EngineError, match="the evolution is over"):
            act(made.environment.start(made.evaluation[0]), ())
    assert isinstance(assemble.build_explorer(config, made, "scripted"), ScriptedExplorer)
    for wrong in ({"attempter": "nobody"}, {"judge": "maybe"}):
        config.validation.update(wrong)
        with pytest.raises(ValueError, match=f"validation.{next(iter(wrong))} '.*' not found; available"):
            assemble.build_validation(config, made, own)
        config.validation.update({"attempter": "policy", "judge": "off"})


@pytest.mark.parametrize(("name", "width"), [("scripted", 1), ("llm", 2), ("policy", 2)])
def test_how_many_expeditions_go_at_once_is_said_by_one_setting_alone(
    config: ConfigDict, name: str, width: int
) -> None:
    """It decides which tasks result, and the others may differ between two starts of a run."""
    config.explorer.name = name
    for concurrency in (1, 64):
        config.llm.concurrency = config.limits.concurrency = concurrency
        made = assemble.build_parts(config)
        for set_to, expected in ((None, width), (1, 1), (20, 20)):
            config.explorer.width = set_to
            assert assemble.build_explorer(config, made, journal=Journal()).width == expected


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({"explorer.name": "policy"}, True),
        ({"explorer.name": "policy", "validate": False}, True),
        ({"explorer.name": "llm"}, False),
        ({"explorer.name": "llm", "validation.attempter": "policy"}, True),
        ({"explorer.name": "llm", "validation.attempter": "policy", "validation.attempts": 0}, False),
        ({"explorer.name": "llm", "validation.attempter": "policy", "validate": False}, False),
        ({"validation.attempter": "policy"}, False),
    ],
)
def test_the_policy_stays_as_it_is_where_an_evolution_asks_it(config: ConfigDict, change: dict, asked: bool) -> None:
    apply(config, change)
    assert explorers.samples_policy(config) is asked


def test_bfcls_turns_are_parted_as_its_dialogues_part_them() -> None:
    assert bfcl.get_config().explorer.separator == SEPARATOR
    assert bfcl.get_config().explorer.width == appworld.get_config().explorer.width == 4
    assert set(explorers.ATTEMPTERS) == {"explorer", "policy"}


def test_validation_refuses_the_control_tokens_of_the_policys_own_template(config: ConfigDict) -> None:
    apply(config, {"validation.longest_query": 30})
    parts = assemble.build_parts(config)
    explorer = assemble.build_explorer(config, parts)
    validate = assemble.build_validation(config, parts, explorer)
    assert "<|im_end|>" in validate.control_tokens
    task = parts.environment.tasks("seed", 1)[0]
    for query, reason in (("move <|im_end|> away", "a control token"), ("x" * 31, "at most 30")):
        draft = TaskDraft("desk", task.setup, "", query, task.solution, "")
        (line,) = validate(draft, lambda id: False, explorer)[0].evidence
        assert reason in line
