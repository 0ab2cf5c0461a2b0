"""Settings of several processes: what is refused before anything is connected, and what a run stores of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import Commands

from cojax.run.hosts import connect_together
from cojax.run.processes import check_processes, drop_distributed, list_shared_folders
from experiments import desk


def config(**section):
    made = desk.get_config()
    made.engine.name = section.pop("engine", "sglang")
    made.mesh.fsdp = section.pop("fsdp", -1)
    made.distributed.update(section)
    return made


def test_one_process_and_a_whole_description_of_several_are_fine():
    check_processes(desk.get_config())
    check_processes(config(enabled=True))
    check_processes(config(coordinator="10.0.0.1:1234", processes=2, process=1))
    check_processes(config(coordinator="[::1]:1234", processes=1, process=0, engine="local", fsdp=1))


def test_all_processes_must_see_the_folder_of_weights_that_they_save_together():
    made = config()
    made.workdir = "run"
    assert list_shared_folders(made) == {"workdir": Path("run")}
    made.sglang.folder = "weights"
    assert list_shared_folders(made) == {"workdir": Path("run"), "sglang.folder": Path("weights")}
    made.sglang.sync = "folder"
    assert list_shared_folders(made) == {"workdir": Path("run")}


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"coordinator": "host"}, "distributed.coordinator is 'host'; expected HOST:PORT of process 0"),
        (
            {"coordinator": "a:0"},
            "distributed.coordinator is 'a:0'; expected HOST:PORT of process 0, a port from 1 to 65535",
        ),
        ({"coordinator": "http://a:1"}, "distributed.coordinator is 'http://a:1'; expected HOST:PORT"),
        ({"coordinator": "a:65536"}, "distributed.coordinator is 'a:65536'; expected HOST:PORT"),
        ({"processes": 2}, "distributed.processes is 2, but distributed.coordinator is empty"),
        ({"process": 0}, "distributed.process is 0, but distributed.coordinator is empty"),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, "distributed.process is 2 of distributed.processes=2"),
        ({"coordinator": "a:1", "processes": 2, "engine": "local"}, "sample on servers by --config.engine=sglang"),
        ({"coordinator": "a:1", "processes": 4, "fsdp": 1}, "spread the policy over the devices of all of them"),
    ],
)
def test_settings_that_cannot_be_are_refused(section, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        check_processes(config(**section))


def test_a_run_stores_nothing_of_how_its_processes_were_found():
    made = config(coordinator="10.0.0.1:1234", processes=2, process=1)
    stored = drop_distributed(made)
    assert stored.distributed == desk.get_config().distributed
    assert made.distributed.process == 1
    assert stored.mesh.fsdp == -1


def test_numbers_out_of_range_are_refused_before_other_processes_are_waited_for():
    made = config(coordinator="127.0.0.1:1", processes=2, process=-1)
    with pytest.raises(ValueError, match="process is -1; expected a whole number at least 0"), connect_together(made):
        raise AssertionError


def test_without_a_coordinator_the_error_lists_where_one_was_looked_for(commands: Commands, tmp_path):
    done = commands.run(
        "experiments.run", "--config=experiments/desk.py", f"--config.workdir={tmp_path}/run",
        "--config.distributed=true", "--config.engine=sglang", "--config.mesh.fsdp=-1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "no coordinator was given and none was found" in done.stdout
    for place in ("TPU pod", "Kubernetes", "Open MPI", "Slurm"):
        assert place in done.stdout
    assert not (tmp_path / "run").exists()
