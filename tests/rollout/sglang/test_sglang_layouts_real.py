"""A rollout host of its own that follows the trainer's folder, and SGLang's router in front of it, all real."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import initialize
from fake_sglang import with_settings
from patience import patience

from cojax.environment import EngineError
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.export import write_weights
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings, find_free_port
from cojax.run.engines import find_default_python
from cojax.settings.tree import SGLangSettings

pytestmark = [pytest.mark.real, pytest.mark.nightly]
ROOT = Path(__file__).parents[3]
CONFIG = ModelConfig(112, 64, 128, 2, 4, 2, 16, max_position_embeddings=512)
PARAMS = [initialize(CONFIG, seed) for seed in range(3)]
LIMITS = SGLangSettings(startup_deadline=240.0, sync_deadline=240.0, probe_every=2.0)
PROMPT = [3, 4, 5]


def weights(version: int) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, PARAMS[version]))


@dataclasses.dataclass
class Host:
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def trainer(self, **settings: object) -> SGLangEngine:
        return SGLangEngine(
            CONFIG,
            folder=self.folder,
            max_length=480,
            urls=[self.url],
            **with_settings(LIMITS, follow=True, **settings),
        )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """`experiments.serve` with one server that follows; it starts before there is a version."""
    folder = tmp_path_factory.mktemp("host")
    host = Host(find_free_port("127.0.0.1"), folder / "run")
    write_weights(folder / "model", CONFIG, weights(0).arrays())
    settings = {
        "model.path": folder / "model", "workdir": host.folder, "engine.max_length": 480, "learner.row_length": 480,
        "sglang.port": host.port, "sglang.follow": True, "sglang.probe_every": 2.0, "sglang.dtype": "float32",
    }  # fmt: skip
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "experiments.serve", "--config=experiments/desk.py", "--host=127.0.0.1", *flags]
    with open(folder / "serve.log", "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: answers(host.url) or process.poll() is not None, 240)
        assert process.poll() is None, (folder / "serve.log").read_text()
        yield host
    finally:
        process.terminate()
        assert process.wait(patience(60)) == 0
    assert not answers(host.url), "the server lives on"


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.2)


def answers(url: str, path: str = "model_info") -> bool:
    try:
        return httpx.get(f"{url}/{path}", timeout=patience(5)).status_code == 200
    except httpx.HTTPError:
        return False


def check(engine: SGLangEngine, version: int) -> None:
    """A completion is what those parameters give."""
    completion = engine.generate(PROMPT, Sampling(0.0, 30), session=f"v{version}", seed=(0,))
    engine.release(f"v{version}")
    assert completion.weights_version == version
    whole = np.asarray([[*PROMPT, *completion.tokens]], np.int32)
    places = jnp.arange(whole.shape[1])[None]
    found = token_logprobs(CONFIG, PARAMS[version], whole, places, np.ones_like(whole))
    np.testing.assert_allclose(completion.logprobs, np.asarray(found)[0, len(PROMPT) :], atol=1e-4)


def test_a_host_takes_each_version_by_itself_and_comes_back_on_the_newest(host: Host) -> None:
    engine = host.trainer()
    try:
        for version in range(3):
            engine.load(weights(version))
            check(engine, version)
        [server] = engine.fleet.servers
        os.kill(process_at(host.port), signal.SIGKILL)
        until(lambda: not server.is_up, 60)
        until(lambda: server.is_up, 240)
        check(engine, 2)
    finally:
        engine.close()


def process_at(port: int) -> int:
    found = subprocess.run(["pgrep", "-f", f"sglang.launch_server.*--port {port} "], capture_output=True, text=True)
    # The guard's command line holds the server's.
    return max(int(pid) for pid in found.stdout.split() if "-I" not in Path(f"/proc/{pid}/cmdline").read_text())


def test_completions_through_the_router_are_the_servers(host: Host, tmp_path: Path) -> None:
    address, metrics = find_free_port("127.0.0.1"), find_free_port("127.0.0.1")
    python = find_default_python()
    if subprocess.run([python, "-I", "-c", "import sglang_router"], capture_output=True).returncode:
        pytest.skip("sglang-router is not installed beside SGLang; run `make sglang`")
    command = [
        python, "-m", "sglang_router.launch_router", "--worker-urls", host.url, "--host", "127.0.0.1",
        "--port", str(address), "--prometheus-port", str(metrics), "--policy", "manual",
    ]  # fmt: skip
    environment = LaunchSettings(str(python), tmp_path, 480, device="cpu").environment()
    with open(tmp_path / "router.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    engine = host.trainer(router=f"http://127.0.0.1:{address}", max_attempts=2)
    try:
        engine.load(weights(1))
        until(lambda: answers(f"http://127.0.0.1:{address}", "health") or process.poll() is not None, 120)
        until(lambda: httpx.get(f"http://127.0.0.1:{address}/workers").json()["total"] == 1, 60)
        check(engine, 1)
        engine.load(weights(2))
        check(engine, 2)
        process.kill()
        process.wait()
        with pytest.raises(EngineError, match=rf"in 2 attempts, the last: http://127\.0\.0\.1:{address}/generate"):
            check(engine, 2)
    finally:
        process.kill()
        engine.close()
