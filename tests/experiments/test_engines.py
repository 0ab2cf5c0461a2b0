"""From flags to an engine: the short spelling, the sections, and what is said where something is missing."""

import re
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cojax.policy.config import ModelConfig
from cojax.run import engines
from cojax.settings import base, presets
from cojax.settings.base import expand_flag
from experiments import appworld, bfcl, paper, tau2

ROOT = Path(__file__).parents[2]
MODEL = ModelConfig(96, 32, 40, 2, 4, 2, 16)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigDict:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    config = base.get_config()
    config.workdir = str(tmp_path / "run")
    return config


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--config.engine=sglang", "--config.engine.name=sglang"),
        ("-config.engine=local", "-config.engine.name=local"),
        ("--config.engine", "--config.engine.name"),
        ("--config.engine.name=sglang", "--config.engine.name=sglang"),
        ("--config.engine.slots=4", "--config.engine.slots=4"),
        ("--config.explorer=llm", "--config.explorer.name=llm"),
        ("--config.initial_explorer=scripted", "--config.initial_explorer=scripted"),
        ("--config.environment=my.world:make", "--config.environment.name=my.world:make"),
        ("--config.data=tiny", "--config.environment.data=tiny"),
        ("--config.database=x", "--config.database=x"),
        ("--config.workdir=--config.engine=x", "--config.workdir=--config.engine=x"),
    ],
)
def test_settings_said_most_have_short_names(given: str, expected: str) -> None:
    assert expand_flag(given) == expected


def test_the_command_takes_the_short_spelling(commands) -> None:
    done = commands.run("experiments.run", "--config=experiments/desk.py", "--config.engine=warp", "--check")
    assert done.returncode == 1
    assert "engine 'warp' not found; available: local, sglang" in done.stdout


def test_a_server_is_launched_by_the_installed_interpreter_on_the_cpu_or_by_ones_own(config, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cache/sglang/bin/python' is no interpreter\. Run `make sglang`"):
        engines.launch(config, tmp_path, "float32")
    engines.find_default_python().parent.mkdir(parents=True)
    engines.find_default_python().symlink_to(sys.executable)
    assert engines.launch(config, tmp_path, "float32").device == "cpu"
    config.sglang.python = sys.executable
    assert engines.launch(config, tmp_path, "bfloat16").device == ""
    config.sglang.device = "cpu"
    assert engines.launch(config, tmp_path, "bfloat16").device == "cpu"


def test_a_missing_server_package_is_named_with_its_command_in_the_first_second(commands, tmp_path: Path) -> None:
    """Also before the missing model, whose download is long."""
    for module in ("run", "evaluate"):
        settings = (f"--config.workdir={tmp_path / 'run'}", f"--config.sglang.python={sys.executable}")
        of = ("--model=models/none",) if module == "evaluate" else settings[:1]
        done = commands.run(f"experiments.{module}", "--config=experiments/bfcl.py", settings[1], *of)
        assert done.returncode == 1
        assert f"engine.name is 'sglang', but {sys.executable!r} has no SGLang. Run `make sglang`" in done.stdout
    assert not (tmp_path / "run").exists()


def test_an_interpreter_that_hangs_has_no_sglang(config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hanging := tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(engines, "_PROBE_TIMEOUT_S", 0.2)
    config.engine.name, config.sglang.python = "sglang", str(hanging)
    with pytest.raises(ValueError, match=r"has no SGLang"):
        engines.check_servers(config)


def test_servers_are_looked_for_only_where_they_are_launched(config, tmp_path: Path) -> None:
    engines.check_servers(config)  # the engine in this process
    config.engine.name, config.sglang.python = "sglang", str(tmp_path / "none")
    with pytest.raises(ValueError, match=r"none' has no SGLang\. Run `make sglang`.*or set --config\.engine=local"):
        engines.check_servers(config)
    config.sglang.urls = "http://127.0.0.1:1"
    engines.check_servers(config)


def test_the_engine_in_this_process_samples_on_the_learners_mesh(config, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, asked = object(), []
    monkeypatch.setattr(engines, "make_mesh_of", lambda config: mesh)
    monkeypatch.setattr(engines, "choose_slot_count", lambda config, model: 4)
    monkeypatch.setattr(engines, "LocalEngine", lambda model, **given: asked.append(given))
    engines.build_local(config, MODEL)
    assert asked[0]["mesh"] is mesh


@pytest.mark.parametrize("experiment", [bfcl, appworld, paper, tau2])
@pytest.mark.parametrize(
    ("policy", "name"), [("qwen3-4b", "sglang"), ("tiny", "local"), ("tiny-warm", "local"), ("smollm2", "local")]
)
def test_small_policies_sample_in_this_process(experiment, policy: str, name: str) -> None:
    config = experiment.get_config()
    config.policy = policy
    assert presets.apply_preset(config).engine.name == name


def test_urls_attach_and_need_no_interpreter(config) -> None:
    config.sglang.urls = "http://127.0.0.1:1, http://127.0.0.1:2/"
    engine = engines.build_sglang_engine(config, MODEL)
    assert [server.client.url for server in engine.fleet.servers] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    engine.close()
    for wrong in ("127.0.0.1:1", "http://HOST:PORT", "http://"):
        config.sglang.urls = wrong
        with pytest.raises(ValueError, match=rf"sglang\.urls names '{re.escape(wrong)}'; expected http://HOST:PORT"):
            engines.build_sglang_engine(config, MODEL)


def test_a_server_is_named_once(config) -> None:
    config.sglang.urls = "http://127.0.0.1:1,http://127.0.0.1:2, http://127.0.0.1:1/"
    with pytest.raises(ValueError, match=r"sglang\.urls names 'http://127\.0\.0\.1:1' twice"):
        engines.build_sglang_engine(config, MODEL)


@pytest.mark.parametrize(
    ("name", "value"),
    [("servers", 2), ("python", "/v/bin/python"), ("device", "cpu"), ("flags", "--tp 8"), ("port", 3), ("restarts", 0)],
)
def test_settings_of_servers_that_are_launched_are_refused_where_none_is(config, name: str, value: object) -> None:
    config.sglang.urls = "http://127.0.0.1:1"
    config.sglang[name] = value
    with pytest.raises(ValueError, match=rf"sglang\.{name} is '?{value}'?, but sglang\.urls attaches to servers"):
        engines.build_sglang_engine(config, MODEL)


def test_what_needs_running_servers_says_so(config) -> None:
    config.sglang.follow = True
    with pytest.raises(ValueError, match=r"sglang\.follow is set, but sglang\.urls is empty"):
        engines.build_sglang_engine(config, MODEL)
    config.sglang.urls, config.sglang.router = "http://127.0.0.1:1", "127.0.0.1:2"
    with pytest.raises(ValueError, match=r"sglang\.router is '127\.0\.0\.1:2'; expected http://HOST:PORT"):
        engines.build_sglang_engine(config, MODEL)


def test_the_command_for_rollout_hosts_says_what_it_misses(commands) -> None:
    done = commands.run("experiments.serve", "--config=experiments/desk.py")
    assert done.returncode == 1
    assert "sglang.port is 0; a trainer must know where to find the servers" in done.stdout


def test_routes_are_asked_of_engines_that_tell_them(config) -> None:
    """Not of a dense model, nor of an engine from outside that knows nothing of routes."""
    closed = []

    class Mute:
        def close(self) -> None:
            closed.append(self)

    engines.check_routes(config, Mute())
    config.learner.routes = "replayed"
    with pytest.raises(ValueError, match=r"engine 'local' does not tell.*set --config\.learner\.routes=own"):
        engines.check_routes(config, Mute())
    assert len(closed) == 1
    with pytest.raises(ValueError, match="num_experts 0: its tokens have no routes"):
        engines.build_local(config, MODEL)
