"""ShellCheck accepts the Slurm script, hadolint the Dockerfile; and its versions are those of the project."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch_files import DEPLOY, ROOT
from packaging.requirements import Requirement
from patience import patience

import environments

DOCKERFILE, SCRIPT = (DEPLOY / "Dockerfile").read_text(), (DEPLOY / "slurm.sh").read_text()
CONSTRAINTS, OF_SGLANG = ((DEPLOY / name).read_text() for name in ("constraints.txt", "sglang-constraints.txt"))


def lint(program: str, text: str) -> str:
    """What a program of the wheels in this environment objects to in a text, on its standard input."""
    done = subprocess.run(
        [Path(sys.executable).parent / program, *([] if program == "shellcheck" else ["--no-color"]), "-"],
        input=text, capture_output=True, text=True, timeout=patience(60),
    )  # fmt: skip
    assert not done.stderr, done.stderr
    assert (done.returncode == 0) == (not done.stdout)
    return done.stdout


def test_linters_accept_the_files() -> None:
    assert lint("shellcheck", SCRIPT) == ""
    assert lint("hadolint", DOCKERFILE) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ('--exclude="$rollout"', "--exclude=$rollout", "SC2086"),  # unquoted
        ('"$weights"', '"$wieghts"', "SC2154"),  # misspelt
        ("$((trainers * gpus))", "$((trainers * gpus)", "SC1"),  # no program
    ],
)
def test_a_wrong_script_is_refused(right: str, wrong: str, code: str) -> None:
    assert right in SCRIPT
    assert code in lint("shellcheck", SCRIPT.replace(right, wrong))


@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ("FROM ubuntu:24.04", "FROM ubuntu", "DL3006"),
        ("FROM ubuntu:24.04", "FROM ubuntu:latest", "DL3007"),
        ("git=1:2.43.*", "git", "DL3008"),
        (" --no-cache-dir", "", "DL3042"),
        ("WORKDIR /opt", "WORKDIR opt", "DL3000"),
    ],
)
def test_a_wrong_dockerfile_is_refused(right: str, wrong: str, code: str) -> None:
    assert right in DOCKERFILE
    assert code in lint("hadolint", DOCKERFILE.replace(right, wrong))


def pins(text: str) -> dict[str, str]:
    """Package → version. Raises ValueError for a line that does not name one version."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if loose := [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line)]:
        raise ValueError(f"not one version: {loose}")
    return dict(line.split("==") for line in lines)


def test_what_the_project_needs_is_pinned_within_its_bounds() -> None:
    pinned = pins(CONSTRAINTS)
    needed = [Requirement(one) for one in importlib.metadata.requires("cojax") or ()]
    assert len(needed) > 20
    for requirement in needed:
        if requirement.marker is None:
            assert pinned[re.sub(r"[-_.]+", "-", requirement.name).lower()] in requirement.specifier, requirement
    with pytest.raises(ValueError, match="numpy>=2"):
        pins(CONSTRAINTS.replace("numpy==", "numpy>="))


def test_versions_in_the_dockerfile_are_the_projects() -> None:
    said = dict(re.findall(r"([\w-]+?)(?:\[\S+\])?==([\w.]+)", DOCKERFILE))
    assert said["jax"] == pins(CONSTRAINTS)["jax"] == pins(CONSTRAINTS)["jaxlib"]
    own = (ROOT / "cojax/rollout/sglang/cpu_shims/sglang.txt").read_text()
    for name in ("sglang", "sglang-router"):
        assert said[name] == pins(OF_SGLANG)[name] == dict(re.findall(r"^(\S+)==(\S+)$", own, re.MULTILINE))[name]


def test_the_dockerfile_names_what_there_is() -> None:
    variants = set(re.findall(r"VARIANT=(\w+)", DOCKERFILE))
    assert variants == {"tpu", "cuda12"} <= set(importlib.metadata.metadata("jax").get_all("Provides-Extra"))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    assert stages == {"trainer", *(f"{stage}-{variant}" for stage in ("base", "image") for variant in variants)}
    assert re.search(r"^ARG ENVIRONMENT=(\w+)$", DOCKERFILE, re.MULTILINE)[1] in environments.available()
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
