"""Ranges of settings, what is refused before anything is written, and the reference of all settings."""

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from cojax import preference, registry
from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.loop import Loop
from cojax.policy.adapters import Lora
from cojax.policy.sharding import make_mesh
from cojax.quality import EMBEDDINGS
from cojax.registry.annotations import Range
from cojax.rollout.chat import TOOL_DOCUMENTS
from cojax.rollout.collect import Limits
from cojax.run import assemble, entries, explorers, reference
from cojax.run.checks import check_settings
from cojax.settings import base
from cojax.settings.base import JUDGE_MODES
from cojax.settings.ranges import ENTRY_SETTINGS, GONE_SETTINGS, RANGES, leaves
from cojax.settings.tree import ENTRIES, LEAVES, OPEN_SECTIONS, SECTIONS, read_leaves
from cojax.signals import SIGNALS
from experiments import alfworld, appworld, bfcl, desk, paper, scienceworld, tau2

ROOT = Path(__file__).parents[2]


def range_of(kind):
    """The range of a number, None where there is none."""
    metadata = [one for part in (kind, *typing.get_args(kind)) for one in getattr(part, "__metadata__", ())]
    return next((one for one in metadata if isinstance(one, Range) and one.low is not None), None)


@pytest.mark.parametrize("setting", ["llm.base_url", "quality.base_url", "sglang.urls", "sglang.router"])
@pytest.mark.parametrize("address", ["http://me:s3cret@host/v1", "http://host/v1?key=s3cret"])
def test_an_address_holds_no_key_whether_it_is_used_or_not(setting, address):
    config = desk.get_config()
    config.update_from_flattened_dict({setting: address if setting != "sglang.urls" else f"http://a:1,{address}"})
    with pytest.raises(ValueError, match=f"{setting} holds credentials or a query") as caught:
        check_settings(config)
    assert "s3cret" not in str(caught.value)


# These have defaults of their own where made by hand. A curriculum is an object there, and a name in the settings.
OWN = {"": {"curriculum"}, "learner": {"row_length"}, "limits": {"environment_deadline"}}


@pytest.mark.parametrize(
    ("section", "made"), [("", Loop), ("learner", Learner), ("optimizer", adamw), ("limits", Limits)]
)
def test_what_is_made_by_hand_has_the_defaults_of_the_settings(section, made):
    keywords = {
        name: one.default for name, one in inspect.signature(made).parameters.items() if one.default != one.empty
    }
    defaults = {name: leaf.default for name, leaf in read_leaves(SECTIONS[section]).items()}
    shared = (keywords.keys() & defaults.keys()) - OWN.get(section, set())
    assert len(shared) > 3
    assert {name: keywords[name] for name in shared} == {name: defaults[name] for name in shared}


def test_settings_of_a_name_that_the_loop_has_are_passed_to_it():
    shared = inspect.signature(Loop).parameters.keys() & read_leaves(SECTIONS[""]).keys()
    assert shared - {"curriculum", "evolve", "validate"} == set(assemble._LOOP_SETTINGS)


def test_plain_addresses_are_fine():
    config = desk.get_config()
    for setting in ("llm.base_url", "quality.base_url", "sglang.urls", "sglang.router"):
        config.update_from_flattened_dict({setting: "http://127.0.0.1:30000/v1"})
    check_settings(config)


@pytest.mark.parametrize("experiment", [base, desk, bfcl, alfworld, appworld, paper, scienceworld, tau2])
def test_every_setting_has_a_range(experiment):
    found = {name for name, _ in leaves(experiment.get_config().to_dict())}
    of_entries = {name for name in found - RANGES.keys() if name.startswith(tuple(OPEN_SECTIONS))}
    assert found - of_entries == RANGES.keys() == LEAVES.keys()
    signal_sections = {f"signal_settings.{kind}" for kind in SIGNALS}
    assert {name.rpartition(".")[0] for name in of_entries} <= {"environment", *OPEN_SECTIONS, *signal_sections}


def refused(name: str, value: object) -> str:
    config = desk.get_config()
    with config.ignore_type():
        config.update_from_flattened_dict({name: value})
    with pytest.raises(ValueError, match=r"is not|expected|not found") as caught:
        check_settings(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", RANGES)
def test_of_every_setting_a_value_of_another_type_is_refused(name):
    assert refused(name, {1, 2}).startswith(f"{name} is {{1, 2}}; expected ")


@pytest.mark.parametrize("name", [name for name, kind in RANGES.items() if range_of(kind)])
def test_of_every_number_a_value_below_its_range_is_refused(name):
    bounds = range_of(RANGES[name])
    for below in (bounds.low - 1, *([bounds.low] if bounds.low_open else [])):
        assert refused(name, below).startswith(f"{name} is {below}; expected ")


@pytest.mark.parametrize("name", [name for name, kind in RANGES.items() if "float" in str(kind)])
def test_of_every_fraction_what_is_no_number_is_refused(name):
    assert refused(name, float("nan")).startswith(f"{name} is nan; expected ")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("optimizer.learning_rate", -1.0, "optimizer.learning_rate is -1.0; expected a number at least 0"),
        ("model.dtype", "float16x", "model.dtype is 'float16x'; expected one of '', 'auto', 'float32', 'bfloat16'"),
        ("learner.remat", "some", "learner.remat is 'some'; expected one of 'none', 'dots', 'layers', 'inputs'"),
        ("learner.lora.targets", ("queri",), "learner.lora.targets is ('queri',); expected a tuple, each of it one of"),
        ("explorer.stretch", (), "explorer.stretch is (); expected by how many actions a draft may outgrow its"),
        ("mesh.data", 0, "mesh.data is 0; expected a whole number at least 1 or -1"),
        ("learner.xyz", 3, "learner.xyz is not a setting; python -m experiments.reference lists them all"),
    ],
)
def test_what_was_read_as_a_value_once_is_refused_by_name(name, value, said):
    config = desk.get_config()
    section, _, leaf = name.rpartition(".")
    place = config
    for part in section.split("."):
        place = place[part]
    with config.unlocked(), config.ignore_type():
        place[leaf] = value
    with pytest.raises(ValueError, match=re.escape(said)):
        check_settings(config)


def test_the_reference_lists_every_setting_and_is_current():
    kept = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    assert kept == "\n".join(reference.list_lines()) + "\n", "run python -m experiments.reference > docs/settings.md"
    listed = re.findall(r"^\| (?:([\w ,]+) \| )?`([^`]+)` \| `([^`]*)` \| (.+) \| (.+) \|$", kept, re.MULTILINE)
    assert [name for _, name, _, _, _ in listed] == list(RANGES)
    assert all(bounds and meaning for _, _, _, bounds, meaning in listed)
    assert ("", "sampling.temperature", "0.9") in {one[:3] for one in listed}
    assert ("explorers scripted, careless", "explorer.longest", "3") in {one[:3] for one in listed}


def test_the_shared_settings_are_few():
    assert sum(len(read_leaves(section)) for section in SECTIONS.values()) <= 140


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (
            "wandb.mode=offline",
            "wandb.mode is no longer a setting: it is always 'online'; set the variable WANDB_MODE. The",
        ),
        ("optimizer.decay_to=0.2", "optimizer.decay_to is no longer a setting: it is always 0.1; give cojax."),
    ],
)
def test_a_flag_of_a_setting_that_is_gone_names_the_rest(flag, said, commands):
    done = commands.run("experiments.run", "--config=experiments/desk.py", f"--config.{flag}")
    assert done.returncode == 1
    assert done.stdout.startswith(f"error: {said}")
    section = flag.partition(".")[0]
    rest = ", ".join(name for name in RANGES if name.startswith(f"{section}."))
    assert done.stdout.endswith(f"The settings of {section} are {rest}\n")


def test_what_is_gone_is_no_setting():
    assert not GONE_SETTINGS.keys() & (RANGES.keys() | set(ENTRY_SETTINGS))


def test_the_settings_of_entries_that_are_suggested_are_those_that_entries_declare():
    found = [
        f"{choice.section}.{setting}"
        for choice in entries.CHOICES.values()
        if choice.section not in ("", "environment")
        for name in choice.list_names()
        for setting in registry.settings(choice.find(name))
    ]
    found += [f"signal_settings.{name}.{setting}" for name in SIGNALS for setting in registry.settings(SIGNALS[name])]
    assert list(ENTRY_SETTINGS) == list(dict.fromkeys(found))


def test_a_configuration_loads_few_modules_and_no_jax():
    program = (
        "import sys; from experiments import desk; desk.get_config(); "
        "ours = [name for name in sys.modules if name.split('.')[0] in ('cojax', 'environments', 'experiments')]; "
        "print(len(ours), 'jax' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    count, *loaded = done.stdout.split()
    assert int(count) <= 12
    assert loaded == ["False", "False"]


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("run", "stesp=3"),
        ("run", "learner.micro_rows=0"),
        *((command, "engine.slots=0") for command in ("run", "evaluate", "serve", "compile")),
    ],
)
def test_a_wrong_flag_is_told_before_jax_is_loaded(command, flag):
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('experiments." + command + "', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as ended: sys.exit(3 if 'jax' in sys.modules else ended.code)"
    )
    given = ["--config=experiments/desk.py", f"--config.{flag}"]
    given += ["--target=v5e-16"] * (command == "compile")
    done = subprocess.run([sys.executable, "-c", program, *given], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"error: {flag.partition('=')[0]} is ")


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("method", ("coevolve", *preference.METHODS, "best_of_n")),
        ("model.tools", TOOL_DOCUMENTS),
        ("validation.judge", JUDGE_MODES),
        ("validation.attempter", explorers.ATTEMPTERS),
        ("quality.embedding", EMBEDDINGS),
    ],
)
def test_a_setting_allows_the_names_of_its_table(name, table):
    assert typing.get_args(LEAVES[name].range) == tuple(table)


def test_what_imports_nothing_has_the_same_defaults():
    of_entries = {name: section for name, _, section in ENTRIES}
    for function, section in ((Lora, "learner.lora"), (Lora, "warm_start.lora"), (make_mesh, "mesh")):
        own = {one.name: one.default for one in inspect.signature(function).parameters.values()}
        for name, leaf in read_leaves({**SECTIONS, **of_entries}[section]).items():
            assert own.get(name, leaf.default) in (leaf.default, inspect.Parameter.empty), (section, name)
