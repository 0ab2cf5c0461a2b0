"""Every command of deploy/ and of its page is accepted by the real configuration, and fits what it is launched on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from commands import Commands
from launch_files import DEPLOY, MANIFESTS, ROOT, Step, blocks, command_line, flag, jobs, one, pods, sbatch, submitted

from cojax.settings.ranges import is_section

PAGE = ROOT / "docs" / "deploy.md"
SLICE, TPU, GPU = ((DEPLOY / name).read_text() for name in MANIFESTS)
SLURM = DEPLOY / "slurm.sh"
# Without those that need Ray, which tests/environments/cluster has.
DOCUMENTED = [
    words
    for words in blocks(PAGE)
    if words[1] in ("experiments.run", "experiments.serve") and "environment.cluster" not in " ".join(words)
]


def accepted(commands: Commands, arguments: list[str]) -> str:
    """ "" or what the command objects to."""
    assert arguments[0] == "-m"
    # Until there are such settings, the flags that launchers will need are left out.
    given = [one for one in arguments[1:] if is_section("distributed") or not one.startswith("--config.distributed")]
    done = commands.run("settings_of", *given, folder=Path(__file__).parent)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout + done.stderr if done.returncode else ""


@pytest.fixture
def steps(tmp_path: Path) -> dict[str, Step]:
    return submitted(SLURM, tmp_path)[1]


@pytest.mark.parametrize(
    ("manifest", "container"),
    [(MANIFESTS[0], "train"), *((name, container) for name in MANIFESTS[1:] for container in ("train", "rollout"))],
)
def test_the_commands_of_containers_are_accepted(manifest: str, container: str, commands: Commands) -> None:
    arguments = command_line((DEPLOY / manifest).read_text(), container)
    assert arguments[:2] == ["-m", {"train": "experiments.run", "rollout": "experiments.serve"}[container]]
    assert not accepted(commands, arguments)


def test_the_commands_of_slurm_steps_are_accepted(steps: dict[str, Step], commands: Commands) -> None:
    assert sorted(steps) == ["experiments.run", "experiments.serve"]
    for step in steps.values():
        assert not accepted(commands, step.arguments)


@pytest.mark.parametrize("words", DOCUMENTED, ids=lambda words: words[1])
def test_the_commands_of_the_page_are_accepted(words: list[str], commands: Commands) -> None:
    assert not accepted(commands, words)


def test_the_slice_splits_slots_and_rows_evenly() -> None:
    arguments, job = command_line(SLICE, "train"), jobs(one(SLICE, "JobSet"))["train"]
    fsdp, tensor = (int(flag(arguments, f"config.mesh.{axis}")) for axis in ("fsdp", "tensor"))
    chips = job["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"]
    assert fsdp * tensor == job["parallelism"] * int(chips)
    for name in ("engine.slots", "engine.cache_tokens", "learner.micro_rows"):
        assert int(flag(arguments, f"config.{name}")) % fsdp == 0


def test_the_page_has_commands() -> None:
    assert DOCUMENTED


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("sglang.follow", "sglang.folow", "sglang.folow is not a setting; did you mean sglang.follow"),
        ('ROWS: "8"', 'ROWS: "0"', "learner.micro_rows is 0; expected a whole number at least 1"),
        ("experiments/bfcl.py", "experiments/bcfl.py", "there is no such file; did you mean experiments/bfcl.py?"),
    ],
)
def test_a_wrong_command_is_found(right: str, wrong: str, said: str, commands: Commands) -> None:
    assert right in TPU
    assert said in accepted(commands, command_line(TPU.replace(right, wrong), "train"))


def test_a_variable_that_nothing_defines_is_found() -> None:
    with pytest.raises(KeyError, match="CONFG"):
        command_line(TPU.replace("$(CONFIG)", "$(CONFG)"), "train")


def meshes(arguments: list[str], devices: int) -> bool:
    """Whether a run's mesh takes all devices, and splits its rows evenly."""
    fsdp, tensor, rows = (
        int(flag(arguments, f"config.{name}")) for name in ("mesh.fsdp", "mesh.tensor", "learner.micro_rows")
    )
    return fsdp * tensor == devices and rows % fsdp == 0


def test_the_slice_has_as_many_chips_as_the_mesh() -> None:
    train = jobs(one(TPU, "JobSet"))["train"]
    (container,) = pods(TPU)["train"]["containers"]
    chips = int(container["resources"]["limits"]["google.com/tpu"]) * train["parallelism"]
    topology = pods(TPU)["train"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    assert (chips, train["completions"]) == (math.prod(map(int, topology.split("x"))), train["parallelism"])
    assert meshes(command_line(TPU, "train"), chips)
    assert not meshes(command_line(TPU.replace('FSDP: "8"', 'FSDP: "4"'), "train"), chips)
    assert not meshes(command_line(TPU.replace('ROWS: "8"', 'ROWS: "4"'), "train"), chips)


def test_the_job_has_as_many_gpus_as_the_mesh() -> None:
    job = one(GPU, "Job")["spec"]
    (container,) = pods(GPU)["train"]["containers"]
    arguments = command_line(GPU, "train")
    assert job["completions"] == job["parallelism"] == int(flag(arguments, "config.distributed.processes"))
    assert meshes(arguments, int(container["resources"]["limits"]["nvidia.com/gpu"]) * job["parallelism"])


def test_slurm_starts_a_task_for_each_gpu_of_the_mesh(steps: dict[str, Step]) -> None:
    run, serve = steps["experiments.run"], steps["experiments.serve"]
    assert run.options == [
        "--nodes=2", "--exclude=gpu3", "--ntasks=16", "--ntasks-per-node=8", "--cpu-bind=none", "--kill-on-bad-exit=1",
    ]  # fmt: skip
    assert serve.options == ["--nodes=1", "--ntasks=1", "--nodelist=gpu3"]
    assert meshes(run.arguments, 16)
    assert flag(serve.arguments, "config.sglang.flags") == "--tp 8"
    assert flag(run.arguments, "config.sglang.urls") == "http://gpu3:30000"


def test_slurm_ends_as_the_run_ends_and_begins_again_when_preempted(tmp_path: Path) -> None:
    assert submitted(SLURM, tmp_path)[0] == 3
    text = SLURM.read_text()
    assert "#SBATCH --requeue\n" in text
    assert sbatch(text)["dependency"] == "singleton"


def test_trainers_find_the_server() -> None:
    arguments = command_line(TPU, "train")
    port = flag(command_line(TPU, "rollout"), "config.sglang.port")
    jobset, rollout = one(TPU, "JobSet")["metadata"]["name"], jobs(one(TPU, "JobSet"))["rollout"]
    assert rollout["completionMode"] == "Indexed"  # with it pods have names
    assert flag(arguments, "config.sglang.urls") == f"http://{jobset}-rollout-0-0.{jobset}:{port}"
    stateful = one(GPU, "StatefulSet")
    name, service = stateful["metadata"]["name"], stateful["spec"]["serviceName"]
    port = flag(command_line(GPU, "rollout"), "config.sglang.port")
    assert flag(command_line(GPU, "train"), "config.sglang.urls") == f"http://{name}-0.{service}:{port}"
    found = one(GPU, "Service", service)["spec"]
    assert (found["clusterIP"], found["selector"]) == ("None", stateful["spec"]["template"]["metadata"]["labels"])


def test_hosts_that_train_find_the_first() -> None:
    job = one(GPU, "Job")
    name, service = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]
    address = flag(command_line(GPU, "train"), "config.distributed.coordinator")
    assert address.startswith(f"{name}-0.{service}:")
    found = one(GPU, "Service", service)["spec"]
    assert (found["clusterIP"], found["selector"]) == ("None", {"batch.kubernetes.io/job-name": name})
    assert found["publishNotReadyAddresses"]


def test_where_surroundings_tell_they_are_asked(steps: dict[str, Step]) -> None:
    for arguments in (command_line(TPU, "train"), steps["experiments.run"].arguments):
        assert flag(arguments, "config.distributed") == "true"
