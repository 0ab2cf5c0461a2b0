"""A cluster is named by an address; without Ray, or where nothing answers, that is said at once."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from environments.cluster import check, connection

ROOT = Path(__file__).parents[3]
# Ray is not found, installed or not.
WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
from experiments import {command}
{command}.main()
"""


@pytest.mark.parametrize(
    "address", ["ray:/host:1", "host", "ray://host", "ray://host:port", "http://host:1", "a b:1", "local"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match=r"environment\.cluster is .*; expected ray://HOST:PORT, or HOST:PORT or auto"):
        check(address)


@pytest.mark.parametrize(
    "address", ["ray://head.local:10001", "10.0.0.3:6379", "[::1]:6379", "ray://[fe80::1]:1", "auto"]
)
def test_without_ray_the_extra_is_named(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"Ray is not installed; run pip install 'cojax\[ray\]'"):
        check(address)


def test_where_nothing_answers_is_said_without_waiting():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(ValueError, match="but nothing answers there"):
            connection._expect_listener(f"ray://127.0.0.1:{port}")
    with pytest.raises(ValueError, match="but nothing answers there"):
        connection._expect_listener("ray://127.0.0.1:99999")


SILENT = """
import socket, sys
from environments.cluster import connection
connection._JOIN_S = 2.0
with socket.create_server(("127.0.0.1", 0)) as silent:
    connection.connect(f"{sys.argv[1]}127.0.0.1:{silent.getsockname()[1]}")
"""


@pytest.mark.real  # needs Ray
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_what_listens_there_and_is_no_cluster_is_given_up_and_the_command_ends(scheme):
    done = subprocess.run(
        [sys.executable, "-c", SILENT, scheme],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=False,
    )
    assert done.returncode == 1
    assert "ValueError: environment.cluster is" in done.stderr
    assert "which cannot be used: it did not take a connection within 2 s; ray://HOST:PORT takes" in done.stderr


@pytest.mark.parametrize("command", ["run", "evaluate"])
def test_a_command_says_it_in_one_line(command, tmp_path, commands):
    (tmp_path / "without_ray.py").write_text(WITHOUT_RAY.format(command=command))
    policy = ["--config.workdir=w"] if command == "run" else ["--endpoint=http://localhost:1", "--endpoint_model=m"]
    given = [f"--config={ROOT}/experiments/desk.py", "--config.environment.cluster=ray://h:1", *policy]
    done = commands.run("without_ray", *given, folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout.strip() == (
        "error: environment.cluster is 'ray://h:1', but Ray is not installed; run pip install 'cojax[ray]', or leave "
        "the setting empty to keep the environment on this host"
    )
    assert not (tmp_path / "w").exists()


IMPORTING = """
import sys, environments.cluster, environments.check, cojax.run.train, cojax.evaluation.evaluate
environments.load("desk")
sys.exit("ray" in sys.modules)
"""


def test_without_the_setting_ray_is_not_imported(tmp_path, commands):
    (tmp_path / "importing.py").write_text(IMPORTING)
    done = commands.run("importing", folder=tmp_path)
    assert done.returncode == 0, done.stderr
