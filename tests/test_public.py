"""What user code may import: a literal list, stable from one release to the next. docs/extending.md refers to it."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Module → names. A name may be added. One that is renamed or moved gets a line in docs/changes.md.
PUBLIC: dict[str, tuple[str, ...]] = {
    "cojax": (
        "OpenRun", "Records", "RunFailed", "Training", "evaluate", "load", "load_environment", "open_run", "steps",
        "train",
    ),
    "cojax.types": (
        "Action", "Call", "Check", "Evaluation", "ExplorationContext", "Group", "Lineage", "Message", "Observation",
        "Signal", "Task", "TaskDraft", "Trajectory", "Triplet", "Turn", "Verdict",
    ),
    "cojax.environment": (
        "Charted", "Demonstrated", "EngineError", "Environment", "EnvironmentFailure", "Episode", "EpisodeFailure",
        "LimitExceeded", "OutOfContext", "SandboxLost", "RunsPolicyCode", "Traits", "play",
    ),
    "cojax.environment.wrapping": ("Wrapped", "WrappedEpisode"),
    "cojax.registry": ("Range", "RegistryError"),
    "cojax.registry.annotations": ("Range", "RegistryError"),
    "cojax.learner.losses": (
        "LARGEST_LOG_RATIO", "LOSSES", "bounded_exp", "kl_estimate", "learns_from", "policy_gradient", "sequence_mean",
        "summed_by", "two_sided_mask", "where_learned",
    ),
    "cojax.learner.advantages": ("ADVANTAGES", "rewards"),
    "cojax.learner.weightings": ("WEIGHTINGS",),
    "cojax.signals": (
        "SIGNALS", "Guidance", "SignalKind", "Visit", "above", "distinguishing_tools", "focus", "step_of", "task_of",
        "tools_called", "tools_of",
    ),
    "cojax.synthesis": (
        "ADMISSIONS", "EVOLUTIONS", "SELECTIONS", "Admission", "EvolutionInputs", "Expedition", "begins_at",
        "initial_tasks", "reflect_on",
    ),
    "cojax.synthesis.beliefs": (
        "Beliefs", "Discount", "Posterior", "Strength", "add_evidence", "evidence", "neighbours_in", "no_evidence",
        "solution_tools",
    ),
    "cojax.synthesis.evolutions": ("in_groups", "offered_tools", "partly_uniform"),
    "cojax.explorer.llm.chat_model": ("Journal",),
    "cojax.explorer.llm.prompting": ("fit_texts", "shorten"),
    "cojax.run.explorers": ("scripted",),
    "cojax.run.parts": ("Parts",),
    "cojax.explorer": ("Exploration", "Explorer", "Metered"),
    "cojax.rollout.engine": ("Completion", "Engine", "Routed", "Sampling", "Weights"),
    "cojax.policy.config": ("ModelConfig",),
    "cojax.policy.transformer": ("initialize",),
    "cojax.policy.pretrained": ("Policy",),
    # What examples/compose.py puts together.
    "cojax.coevolve": ("coevolve",),
    "cojax.explorer.scripted.explorer": ("ScriptedExplorer",),
    "cojax.learner.learner": ("Learner",),
    "cojax.learner.optimizer": ("adamw",),
    "cojax.loop": ("Loop", "State"),
    "cojax.loop.records": ("save",),
    "cojax.metrics": ("Metrics", "Stopwatch"),
    "cojax.pool": ("TaskPool",),
    "cojax.rollout.chat": ("Chat", "no_document"),
    "cojax.rollout.collect": ("Limits",),
    "cojax.rollout.local": ("LocalEngine",),
    "cojax.rollout.vocabulary": ("word_tokenizer",),
    "cojax.storage.run_directory": ("RunDirectory",),
    "cojax.validation": ("Exclusions", "Validation"),
    "environments.tools": ("ToolEnvironment",),
    "environments.worker": ("isolate",),
    "experiments": ("base", "desk"),
}  # fmt: skip


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in names])
def test_a_public_name_can_be_imported(module: str, name: str) -> None:
    found = importlib.import_module(module)
    if not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")


def imports(code: str) -> set[tuple[str, str]]:
    """(module, name) of all that the code imports from cojax, environments and experiments.

    A module that stands in PUBLIC, imported from its package, counts as nothing further.
    """
    statements = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    named = [(str(node.module), alias.name) for node in statements for alias in node.names]
    named = [(module, name) for module, name in named if f"{module}.{name}" not in PUBLIC]
    return {
        (module, name) for module, name in named if module.partition(".")[0] in ("cojax", "environments", "experiments")
    }


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.stem)
def test_an_example_imports_public_names_alone(path: Path) -> None:
    assert imports(path.read_text()) <= {(module, name) for module, names in PUBLIC.items() for name in names}


@pytest.mark.parametrize("name", ["careless", "credits", "frontier", "prefix_replay", "reflexion"])
def test_entries_of_the_study_import_public_names_alone(name: str) -> None:
    found = imports((ROOT / "experiments" / "study" / f"{name}.py").read_text())
    assert found <= {(module, name) for module, names in PUBLIC.items() for name in names}


def test_the_documentation_for_users_imports_public_names_alone() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    for page in (text, (ROOT / "docs" / "tools.md").read_text()):
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        found = {pair for block in blocks for pair in imports(block)}
        assert found
        assert found <= {(module, name) for module, names in PUBLIC.items() for name in names}
    assert "tests/test_public.py" in text
