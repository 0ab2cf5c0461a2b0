"""A rollout host: servers that are kept up, and that follow a trainer's folder of weights."""

import dataclasses
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fake_sglang import CONFIG, FakeLaunch, until, weights, with_settings
from ml_collections import ConfigDict
from patience import patience

from cojax.rollout.export import write_weights
from cojax.rollout.sglang import server
from cojax.rollout.sglang.engine import SGLangEngine, WeightsFolder
from cojax.serving import serve
from cojax.settings import base
from cojax.settings.tree import SGLangSettings

TRAINER = SGLangSettings(startup_deadline=20.0, sync_deadline=20.0, probe_every=0.1)


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLaunch:
    """Stand-ins for servers, which start at once, on a host that looks often."""
    monkeypatch.setattr(serve, "_VERSION_POLL_S", 0.05)
    monkeypatch.setattr(server, "_START_POLL_S", 0.05)
    monkeypatch.setattr(server, "_WEIGHTS_POLL_S", 0.02)
    (tmp_path / "servers").mkdir()
    return FakeLaunch(tmp_path / "servers")


@pytest.fixture
def config(tmp_path: Path, launched: FakeLaunch) -> ConfigDict:
    config = base.get_config()
    config.workdir, config.model.path = str(tmp_path / "run"), str(tmp_path / "model")
    config.sglang.update(python=launched.launch.python_path, servers=2, port=free_ports(2), probe_every=0.1)
    write_weights(tmp_path / "model", CONFIG, weights(0).arrays())
    return config


@pytest.fixture
def host() -> Iterator[Callable[[ConfigDict], threading.Thread]]:
    """Starts serving in a thread."""
    stop, threads = threading.Event(), []

    def start(config: ConfigDict) -> threading.Thread:
        threads.append(threading.Thread(target=serve.serve, args=(config, "127.0.0.1", stop)))
        threads[-1].start()
        return threads[-1]

    yield start
    stop.set()
    for thread in threads:
        thread.join(patience(20))
        assert not thread.is_alive()


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for port in range(20_000 + os.getpid() % 10_000, 60_000):
        with socket.socket() as one, socket.socket() as other:
            try:
                for number, probe in enumerate((one, other)[:count]):
                    probe.bind(("127.0.0.1", port + number))
            except OSError:
                continue
            return port
    raise AssertionError("no free ports")


def label(port: int) -> str:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/model_info", timeout=1).json()["weight_version"]
    except httpx.HTTPError:
        return ""


def process_at(port: int) -> int:
    """The id of the process that listens."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = (entry / "cmdline").read_bytes().split(b"\0") if (entry / "cmdline").exists() else []
            if str(port).encode() in words and b"sglang.launch_server" in words and b"-I" not in words:
                return int(entry.name)
    raise AssertionError(f"nothing serves port {port}")


def trainer(config: ConfigDict, **settings: object) -> SGLangEngine:
    urls = [f"http://127.0.0.1:{config.sglang.port + index}" for index in range(2)]
    folder = Path(config.workdir)
    return SGLangEngine(CONFIG, folder=folder, max_length=64, urls=urls, **with_settings(TRAINER, **settings))


def test_servers_take_new_versions_by_themselves_under_the_label_that_the_trainer_expects(config, host, launched):
    config.sglang.follow = True
    host(config)
    engine = trainer(config, follow=True)
    try:
        for version in range(3):
            engine.load(weights(version))
            current = engine.fleet.target.label
            assert [label(config.sglang.port), label(config.sglang.port + 1)] == [current] * 2
        assert current.endswith("-2-2")
        # One that dies comes back on the current weights, which nobody has to send again.
        sent = launched.updates.read_text().count(current)
        os.kill(process_at(config.sglang.port), signal.SIGKILL)
        until(lambda: launched.started()[-1][1] == current and label(config.sglang.port) == current)
        until(lambda: all(one.is_up for one in engine.fleet.servers))
        assert launched.updates.read_text().count(current) == sent == 2
        engine.load(weights(3))
        assert label(config.sglang.port) == engine.fleet.target.label
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("model", "sent", "served"), [("", "", "float32"), ("bfloat16", "", "bfloat16"), ("bfloat16", "float16", "float16")]
)
def test_servers_compute_in_the_policys_dtype_and_log_by_host(config, host, launched, model, sent, served) -> None:
    config.model.dtype, config.sglang.dtype, config.sglang.servers = model, sent, 1
    host(config)
    log = Path(config.workdir) / "sglang" / socket.gethostname() / "server-0.log"
    until(lambda: log.exists() and f"--dtype {served} " in log.read_text())


def test_who_follows_waits_for_the_first_version_and_starts_on_it(config, host, launched) -> None:
    config.sglang.follow, config.model.path = True, ""
    config.model.shape.num_hidden_layers = 1
    host(config)
    engine = trainer(config, follow=True)
    try:
        engine.load(weights(0))
        assert [start[1] for start in launched.started()] == [engine.fleet.target.label] * 2
        assert not launched.updates.exists()
    finally:
        engine.close()


def test_a_server_that_does_not_follow_is_told_of_with_the_reason(config, host, launched) -> None:
    host(config)
    engine = trainer(config, follow=True)
    engine.fleet.settings = dataclasses.replace(engine.fleet.settings, sync_deadline=1.0)
    with pytest.raises(Exception, match=r"within 1 s .*does `python -m experiments\.serve` run there .*follow=True"):
        engine.load(weights(0))
    engine.close()


def test_versions_that_are_broken_or_gone_do_not_hurt_who_follows(config, host, launched, caplog) -> None:
    config.sglang.follow, config.sglang.probe_every = True, 10.0
    host(config)
    port, store = config.sglang.port, WeightsFolder(Path(config.workdir))
    until(lambda: label(port) == label(port + 1) == "as-started")
    store.write(weights(0), CONFIG, "", "first")
    until(lambda: label(port) == label(port + 1) == "first")
    broken = Path(config.workdir) / "weights" / "1"
    shutil.copytree(Path(config.workdir) / "weights" / "0", broken)
    with open(broken / "model.safetensors", "r+b") as file:
        file.truncate(2_000)
    os.utime(broken)
    until(lambda: "the newest version cannot be served" in caplog.text)
    assert label(port) == "first"
    for version in range(2, 30):
        # Sooner gone than servers look: what is being read goes, too.
        store.prune([store.write(weights(version), CONFIG, "", str(version)).folder])
        time.sleep(0.05)
    until(lambda: label(port) == label(port + 1) == "29")
    assert len(launched.started()) == 2, "a folder that goes is no reason to start a server again"
    store.close()


def test_without_following_servers_keep_what_a_trainer_gives_them(config, host, launched, caplog) -> None:
    caplog.set_level("INFO", "cojax.serve")
    host(config)
    port = config.sglang.port
    until(lambda: label(port) == label(port + 1) == "as-started")
    engine = trainer(config)
    try:
        engine.load(weights(0))
        current = engine.fleet.target.label
        until(lambda: f"as {current}" in caplog.text)  # this host has seen it too
        assert launched.updates.read_text().count(current) == 2
        os.kill(process_at(port), signal.SIGKILL)
        until(lambda: label(port) == current)
        assert launched.started()[-1][1] == current, "it starts on the newest version, which needs no second sync"
    finally:
        engine.close()


def test_a_server_that_dies_endlessly_does_not_stop_the_others(config, host, launched, caplog) -> None:
    config.sglang.restarts = 1
    thread = host(config)
    port = config.sglang.port
    until(lambda: label(port) == label(port + 1) == "as-started")
    for _ in range(2):
        started = len(launched.started())
        os.kill(process_at(port), signal.SIGKILL)
        until(lambda started=started: len(launched.started()) > started or started == 3)
    until(lambda: "is given up" in caplog.text)
    assert (label(port), label(port + 1)) == ("", "as-started")
    assert thread.is_alive()


def test_it_ends_once_no_server_is_left(config) -> None:
    config.sglang.restarts = 0
    Path(config.sglang.python).write_text("#!/bin/sh\nexit 3\n")
    assert serve.serve(config, "127.0.0.1", threading.Event()) == 1


@pytest.mark.parametrize("router", ["junk", "0", "65536", "host:1"])
def test_a_router_is_a_port_or_an_address(config, router: str) -> None:
    with pytest.raises(ValueError, match=rf"--router is '{router}'; expected a port, or http://HOST:PORT"):
        serve.serve(config, "127.0.0.1", threading.Event(), router=router)


def test_a_router_does_not_take_the_port_of_a_server(config) -> None:
    with pytest.raises(ValueError, match=r"is the port of a server: sglang\.servers=2 take as many ports from"):
        serve.serve(config, "127.0.0.1", threading.Event(), router=str(config.sglang.port + 1))


def test_settings_are_checked(config) -> None:
    config.sglang.restarts = -1
    with pytest.raises(ValueError, match=r"sglang\.restarts is -1; expected a whole number at least 0"):
        serve.serve(config, "127.0.0.1", threading.Event())
    config.sglang.restarts, config.sglang.port = 0, 65_535
    with pytest.raises(ValueError, match=r"sglang\.port is 65535; 2 servers .* at most 65534"):
        serve.serve(config, "127.0.0.1", threading.Event())
    config.sglang.port, config.sglang.flags = 30_000, '--name "open'
    with pytest.raises(ValueError, match=r"sglang\.flags .*No closing quotation"):
        serve.serve(config, "127.0.0.1", threading.Event())
    config.sglang.flags, config.model.path = "", str(Path(config.workdir) / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        serve.serve(config, "127.0.0.1", threading.Event())
