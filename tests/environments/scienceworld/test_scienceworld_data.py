"""What is missing is said in the first second: Java, the wheel, the solutions."""

import json
from pathlib import Path

import pytest

import environments
from environments import install as command
from environments.scienceworld import data
from environments.scienceworld.limits import TASKS
from environments.worker.venv import InstallError


def test_without_java_the_environment_and_its_installation_name_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        InstallError, match="no `java` on PATH; on Debian and Ubuntu: apt-get install default-jre-headless"
    ):
        environments.load("scienceworld")
    assert command.main(["scienceworld"]) == 1
    said = capsys.readouterr().err
    assert "needs the program java, which is not on PATH" in said
    assert "apt-get install default-jre-headless" in said
    assert not (tmp_path / "cache").exists()


def program(folder: Path) -> Path:
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_the_jvm_is_the_one_of_the_java_on_path(tmp_path, monkeypatch):
    java_home, settings = tmp_path / "jre", tmp_path / "etc"
    found = program(java_home)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    with pytest.raises(InstallError, match=r"jre, which has no lib/server/libjvm\.so; put the bin folder"):
        data.find_jvm()
    library = java_home / "lib" / "server" / "libjvm.so"
    library.parent.mkdir(parents=True)
    library.touch()
    settings.mkdir()
    (settings / "java.security").touch()
    (java_home / "lib" / "security").symlink_to(settings / "java.security")
    assert data.find_jvm() == str(library)
    assert data.list_jvm_folders(str(library)) == (str(java_home), str(settings))


def test_solutions_are_read_as_they_were_written_and_missing_ones_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path))
    with pytest.raises(InstallError, match=r"solutions of boil are not .*install scienceworld --data=ten"):
        data.find_complete_folder("ten")
    data.find_folder("three").mkdir(parents=True)
    solved = {"variation": 4, "description": "Boil it.", "solution": ["wait"]}
    for task in TASKS:
        told = {"task": task, "variations": {"train": [4, 5], "test": [9]}, "solved": {"train": [solved], "test": []}}
        (data.find_folder("three") / f"{task}.json").write_text(json.dumps(told))
    first = data.load_tasks(data.find_complete_folder("three"))[0]
    assert (first["task"], first["variations"]["train"]) == ("boil", [4, 5])
    assert first["solved"] == {"train": [solved], "test": []}
