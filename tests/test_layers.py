"""Imports run one way, JAX stays in its rooms, and environments import the standard library alone."""

from __future__ import annotations

import ast
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A module may import modules of its own level or below.
LEVELS = [
    {
        "cojax",
        "cojax.types",
        "cojax.durable",
        "cojax.unicode_forms",
        "cojax.imports",
        "cojax.command",
        "cojax.host.background",
        "cojax.host.stopwatch",
        "cojax.host.processes",
        "cojax.registry.annotations",
        "cojax.settings.tree",
        "cojax.registry",
    },
    {
        "cojax.environment",
        "cojax.environment.wrapping",
        "cojax.worlds",
        "cojax.storage.files",
        "cojax.storage.episodes",
        "cojax.storage.checksums",
        "cojax.storage.differences",
        "cojax.environment.watch",
    },
    {
        "cojax.drafts",
        "cojax.pool",
        "cojax.quality",
        "cojax.similarity",
        "cojax.environment.replay",
        "cojax.policy",
        "cojax.rollout.engine",
        "cojax.storage.checkpoint",
    },
    {"cojax.learner", "cojax.rollout", "cojax.signals", "cojax.explorer"},
    {"cojax.synthesis", "cojax.validation", "cojax.scoring", "cojax.metrics", "cojax.report.console", "cojax.report"},
    {
        "cojax.warm_start",
        "cojax.preference",
        "cojax.distributed",
        "cojax.storage.run_directory",
        "cojax.storage.run_files",
        "cojax.storage.copies",
    },
    {"cojax.storage.evaluation_directory", "cojax.loop", "cojax.api"},
    {"cojax.loop.groups", "cojax.loop.evolution", "cojax.loop.records", "cojax.preference.rounds"},
    {"cojax.coevolve", "cojax.coevolving"},
    {"environments"},
    {
        "cojax.settings",
        "cojax.run",
        "cojax.evaluation",
        "cojax.serving",
        "cojax.compile",
        "cojax.convert",
        "cojax.report.command",
    },
    {"experiments"},
    {"benchmarks", "campaign"},
]
JAX_ROOMS = (
    "cojax.policy",
    "cojax.learner",
    "cojax.storage.checkpoint",
    "cojax.distributed.start",
    "cojax.distributed.operations",
    "cojax.rollout.local",
    "cojax.rollout.forwards",
    "cojax.rollout.replicas",
    "cojax.rollout.export",
    "cojax.loop",
    "cojax.loop.groups",
    "cojax.loop.evolution",
    "cojax.loop.records",
    "cojax.coevolve",
    "cojax.warm_start",
    "cojax.settings",
    "cojax.run",
    "cojax.evaluation",
    "cojax.serving",
    "cojax.compile",
    "cojax.convert",
    "experiments",
)


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module from which a file's statement imports."""
    package = path.relative_to(ROOT).parent.parts
    return ".".join([*package[: len(package) - node.level + 1 if node.level else 0], *filter(None, [node.module])])


def inside(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def modules() -> dict[str, set[str]]:
    """Module name → names it imports, inside functions too."""
    found = {}
    for path in sorted(p for top in ("cojax", "environments", "experiments") for p in (ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        imports: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = absolute(node, path)
                # A wheel has these folders under other names, so their modules import each other by relative imports.
                moved = source.partition(".")[0] in ("environments", "experiments")
                assert (node.level > 0) == (moved and inside(source, parts[0])), path
                assert not moved or inside(source, parts[0]), f"{path} imports {source}; see cojax.worlds"
                imports |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
        found[name] = imports
    return found


MODULES = modules()


def level(name: str) -> int:
    """The level of the longest room that holds the module."""
    rooms = [(len(room), number) for number, rooms in enumerate(LEVELS) for room in rooms if inside(name, room)]
    return max(rooms)[1]


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_one_way(name: str) -> None:
    ours = {target for target in MODULES[name] if target in MODULES}
    upward = {target for target in ours if level(target) > level(name)}
    assert not upward, f"{name} imports {sorted(upward)}, which stand above it"


@pytest.mark.parametrize("name", MODULES)
def test_jax_stays_in_its_rooms(name: str) -> None:
    if not any(inside(name, room) for room in JAX_ROOMS):
        arrays = {i for i in MODULES[name] if i.split(".")[0] in {"jax", "flax", "optax", "orbax"}}
        assert not arrays, f"{name} imports {sorted(arrays)}; JAX belongs in {', '.join(JAX_ROOMS)}"


@pytest.mark.parametrize("name", [name for name in MODULES if inside(name, "cojax.policy")])
def test_policy_imports_nothing_of_ours_but_itself_and_the_sync_of_folders(name: str) -> None:
    ours = {target for target in MODULES[name] if target in MODULES}
    assert all(inside(target, "cojax.policy") or target == "cojax.durable" for target in ours)
    assert not any(target.startswith("cojax") for target in MODULES["cojax.durable"])


@pytest.mark.parametrize("name", [name for name in MODULES if inside(name, "environments")])
def test_environments_import_little_of_ours(name: str) -> None:
    ours = {target for target in MODULES[name] if target in MODULES and inside(target, "cojax")}
    # Conversations wrap episodes. A worker has no network: the trainer's process asks the customer, by a late import.
    talks = {
        "environments.tau2.inside": {"cojax.environment.wrapping"},
        "environments.tau2.dialogue": {"cojax.environment.wrapping", "cojax.openai_api"},
    }.get(name, set())
    # A check is no part of an environment: it plays solutions, and watches calls that may hang.
    checks = {
        "environments.appworld.audit": {"cojax.environment.replay"},
        "environments.check": {"cojax.environment.watch"},
    }.get(name, set())
    # What a draft's controls leave out of a solution, checks and audits leave out too.
    checks |= {"cojax.drafts"} if name in ("environments.soundness", "environments.audit.variations") else set()
    # An audit plays any environment, watches it, and reads attackers by their names; a run's tasks by a late import.
    if inside(name, "environments.audit"):
        checks |= {f"cojax.{part}" for part in ("command", "imports", "registry", "worlds")}
        checks |= {"cojax.environment.replay", "cojax.environment.watch"}
        checks |= {"cojax.pool"} if name == "environments.audit.runs" else set()
    # Commands are worded as they were started.
    checks |= {"cojax.command"} if name in ("environments.check", "environments.install") else set()
    # These find environments, also from outside, or functions that a setting names.
    finding = {"environments", "environments.check", "environments.install", "environments.cluster.host"}
    finding |= {f"environments.{room}" for room in ("mcp", "openenv", "verifiers")}
    finds = {"cojax.worlds"} if name in finding else set()
    # They need the standard library alone, as a worker's interpreter has no more. These rooms end processes.
    isolates = inside(name, "environments.worker") or inside(name, "environments.cluster")
    host = {"cojax.host.background", "cojax.host.stopwatch", "cojax.host.processes"} if isolates else set()
    assert ours <= {"cojax", "cojax.types", "cojax.environment"} | talks | checks | finds | host


def test_environments_import_in_a_bare_interpreter(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    code = "import environments; [environments.load(name) for name in ['desk']]; import cojax.environment, cojax.types"
    subprocess.run([tmp_path / "bare/bin/python", "-c", code], cwd=ROOT, check=True, env={})


@pytest.mark.parametrize(
    "name",
    [
        "types",
        "environment",
        "pool",
        "signals",
        "explorer.scripted",
        "synthesis",
        "validation",
        "storage.files",
        "report",
    ],
)
def test_host_side_code_loads_no_jax(name: str) -> None:
    code = f"import sys, cojax.{name}; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
