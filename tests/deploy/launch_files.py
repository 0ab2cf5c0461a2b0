"""What the files of deploy/ say: Kubernetes resources, and the command lines of containers and of Slurm steps."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = ("tpu-slice.yaml", "tpu-jobset.yaml", "gpu-job.yaml")
_REFERENCE = re.compile(r"\$\((\w+)\)")


def resources(text: str) -> list[dict[str, Any]]:
    """The resources of a manifest's one list."""
    whole = yaml.safe_load(text)
    assert (whole["apiVersion"], whole["kind"]) == ("v1", "List")
    return whole["items"]


def one(text: str, kind: str, name: str = "") -> dict[str, Any]:
    """The one resource of this kind, and of this name if one is given."""
    (found,) = [item for item in resources(text) if item["kind"] == kind and name in ("", item["metadata"]["name"])]
    return found


def jobs(jobset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The specification of each of a JobSet's jobs, by name."""
    return {part["name"]: part["template"]["spec"] for part in jobset["spec"]["replicatedJobs"]}


def pods(text: str) -> dict[str, dict[str, Any]]:
    """The pod specifications of a manifest, by the name of their container."""
    specs = []
    for item in resources(text):
        for spec in jobs(item).values() if item["kind"] == "JobSet" else [item.get("spec", {})]:
            specs += [spec["template"]["spec"]] if "template" in spec else []
    return {spec["containers"][0]["name"]: spec for spec in specs}


def command_line(text: str, name: str) -> list[str]:
    """The container's arguments after `python`, with their values. Raises KeyError for one that nothing defines."""
    (container,) = pods(text)[name]["containers"]
    values = {variable["name"]: variable.get("value", "0") for variable in container.get("env", ())}
    for source in container["envFrom"]:
        values |= one(text, "ConfigMap", source["configMapRef"]["name"])["data"]
    python, *command = container["command"]
    assert python == "python"
    return [_REFERENCE.sub(lambda found: values[found[1]], argument) for argument in (*command, *container["args"])]


def flag(arguments: list[str], name: str) -> str:
    (found,) = [argument.partition("=")[2] for argument in arguments if argument.partition("=")[0] == f"--{name}"]
    return found


def blocks(page: Path) -> Iterator[list[str]]:
    """The commands of a page's code blocks that start with Python, without `python`."""
    for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if (words := line.partition("#")[0].split())[:2] == ["python", "-m"]:
                yield words[1:]


# Stand in for Slurm's programs: one names the hosts, the other writes down what it was to start.
_SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames gpu[1-3]" ] && printf 'gpu1\\ngpu2\\ngpu3\\n'
"""
_SRUN = """#!/bin/bash
for argument; do case $argument in experiments.*) module=$argument;; esac; done
printf '%s\\0' "$@" > "$RECORDS/$module"
[ "$module" = experiments.serve ] || exit 3
"""


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step of the job starts: srun's options, and the arguments after the interpreter."""

    options: list[str]
    arguments: list[str]


def submitted(script: Path, folder: Path) -> tuple[int, dict[str, Step]]:
    """The script's exit status on three hosts, where a run ends with 3, and its steps by module."""
    programs, records = folder / "bin", folder / "records"
    programs.mkdir()
    records.mkdir()
    for name, program in (("scontrol", _SCONTROL), ("srun", _SRUN)):
        (programs / name).write_text(program)
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}", "RECORDS": str(records), "SLURM_JOB_NODELIST": "gpu[1-3]",
        "SLURM_JOB_NUM_NODES": sbatch(script.read_text())["nodes"],
        "SLURM_GPUS_PER_NODE": f"h100:{sbatch(script.read_text())['gpus-per-node']}",
    }  # fmt: skip
    # With pipes, this waits for what the script leaves running too.
    from patience import patience  # settings_of.py runs without the other files of tests

    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, timeout=patience(60))
    assert not done.stderr, done.stderr
    steps = {}
    for record in records.iterdir():
        words = record.read_text().split("\0")[:-1]
        at = next(at for at, word in enumerate(words) if not word.startswith("--"))
        steps[record.name] = Step(words[:at], words[at + 1 :])
    return done.returncode, steps


def sbatch(text: str) -> dict[str, str]:
    """The options in a script's head."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
