"""Real servers behind a real router: 64 conversations at once, and servers that are killed and added meanwhile."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest
from compiling import initialize
from patience import patience

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.saved_params import save_params
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.export import write_weights
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import find_free_port
from cojax.settings.tree import SGLangSettings

pytestmark = [pytest.mark.real, pytest.mark.nightly]
ROOT = Path(__file__).parents[3]
CONFIG = ModelConfig(112, 64, 128, 2, 4, 2, 16, max_position_embeddings=512)
LIMITS = SGLangSettings(startup_deadline=400.0, sync_deadline=400.0, probe_every=5.0)
CONVERSATIONS, TURNS, TOKENS, SAID = 64, 6, 24, 12
SERVERS = 4


def weights(version: int) -> Weights:
    params = initialize(CONFIG, version)
    return Weights(version, lambda: to_hf(CONFIG, params), save=functools.partial(save_params, params))


@dataclasses.dataclass
class Hosts:
    """Rollout hosts on this machine, and what they share."""

    folder: Path
    router: int
    port: int
    started: list[subprocess.Popen] = dataclasses.field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router}"

    def serve(self, servers: int, port: int, router: str) -> None:
        settings = {
            "model.path": self.folder / "model", "workdir": self.folder / f"host-{port}", "engine.max_length": 480,
            "learner.row_length": 480, "sglang.folder": self.folder / "shared", "sglang.servers": servers,
            "sglang.port": port, "sglang.follow": True, "sglang.probe_every": 5.0, "sglang.dtype": "float32",
        }  # fmt: skip
        flags = [f"--config.{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "experiments.serve", "--config=experiments/desk.py", "--host=127.0.0.1"]
        with open(self.folder / f"serve-{port}.log", "wb") as log:
            command += [f"--router={router}", *flags]
            self.started.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT))

    def engine(self, urls: Sequence[str] = (), router: str = "") -> SGLangEngine:
        settings = dataclasses.replace(LIMITS, follow=True, sync="orbax", router=router)
        return SGLangEngine(
            CONFIG, folder=self.folder / "shared", max_length=480, settings=settings, timeout_s=300.0, max_attempts=8,
            urls=urls,
        )  # fmt: skip

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.rglob("*.log"))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    write_weights(folder / "model", CONFIG, weights(0).arrays())
    hosts = Hosts(folder, find_free_port("127.0.0.1"), 21_000 + os.getpid() % 20_000)
    hosts.serve(SERVERS, hosts.port, str(hosts.router))
    try:
        until(lambda: len(behind(hosts.url)) == SERVERS or hosts.started[0].poll() is not None, 400)
        assert hosts.started[0].poll() is None, hosts.logs()
        yield hosts
    finally:
        for process in hosts.started:
            process.terminate()
        assert [process.wait(patience(90)) for process in hosts.started] == [0] * len(hosts.started)
    assert not behind(hosts.url), "the router lives on"


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.2)


def behind(url: str) -> list[str]:
    """The servers behind the router; none while it does not answer."""
    try:
        return [worker["url"] for worker in httpx.get(f"{url}/workers", timeout=patience(20)).json()["workers"]]
    except httpx.HTTPError:
        return []


def converse(engine: SGLangEngine, number: int) -> int:
    """One conversation; how many prompt tokens an ideal prefix cache would hold."""
    draw, session, reusable = np.random.default_rng(number), f"c{number}", 0
    tokens = draw.integers(0, 112, 40).tolist()
    try:
        for turn in range(TURNS):
            completion = engine.generate(tokens, Sampling(1.0, TOKENS), session=session, seed=(number, turn))
            assert len(completion.tokens) == TOKENS
            tokens += completion.tokens
            reusable += len(tokens) - 1 if turn < TURNS - 1 else 0
            tokens += draw.integers(0, 112, SAID).tolist()
    finally:
        engine.release(session)
    return reusable


@dataclasses.dataclass
class Played:
    """Conversations until `over`, at least one a thread."""

    engine: SGLangEngine
    over: Callable[[], bool] = lambda: True
    faults: list[str] = dataclasses.field(default_factory=list)
    reusable: int = 0
    done: int = 0

    def run(self) -> Played:
        lock, begun = threading.Lock(), time.monotonic()

        def play(number: int) -> None:
            again = True
            while again:
                try:
                    reusable = converse(self.engine, number)
                    with lock:
                        self.reusable, self.done = self.reusable + reusable, self.done + 1
                except Exception as error:
                    self.faults.append(repr(error))
                number, again = number + CONVERSATIONS, not self.over()

        threads = [threading.Thread(target=play, args=(number,)) for number in range(CONVERSATIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - begun
        served = self.engine.served
        prompts = served["prompt_tokens"]
        self.share, self.ideal = served["cached_tokens"] / prompts, self.reusable / prompts
        return self


def requests_by_server(hosts: Hosts) -> dict[str, int]:
    """Completions that the router has sent to each server, by its own count."""
    log = next(hosts.folder.rglob("router.log")).read_text()
    port = re.findall(r"--prometheus-port (\d+)", log)[-1]
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=patience(20)).text
    found = re.findall(r'^smg_worker_cb_outcomes_total\{worker="([^"]+)",outcome="success"\} (\d+)', text, re.MULTILINE)
    return {url: int(count) for url, count in found}


def process_at(port: int) -> int:
    found = subprocess.run(["pgrep", "-f", f"sglang.launch_server.*--port {port} "], capture_output=True, text=True)
    # The guard's command line holds the server's.
    return max(int(pid) for pid in found.stdout.split() if "-I" not in Path(f"/proc/{pid}/cmdline").read_text())


def test_conversations_stay_on_a_server_and_are_spread_over_all(hosts: Hosts) -> None:
    played = {}
    urls = [f"http://127.0.0.1:{hosts.port + index}" for index in range(SERVERS)]
    for name in ("warm-up", "router", "urls"):
        engine = hosts.engine(router=hosts.url) if name == "router" else hosts.engine(urls)
        try:
            engine.load(weights(1))
            until(lambda engine=engine: sum(server.is_up for server in engine.fleet.servers) == SERVERS, 200)
            played[name] = Played(engine).run()
        finally:
            engine.close()
        if name == "router":
            counts = requests_by_server(hosts)
    for name, one in played.items():
        print(f"\n{name}: {one.seconds:.1f} s, prefix-cache share {one.share:.3f} of {one.ideal:.3f} possible", end="")
    print(f"\nrequests by server: {counts}")
    for one in played.values():
        assert (one.faults, one.done) == ([], CONVERSATIONS)
        assert one.share > 0.9 * one.ideal
    assert len(counts) == SERVERS
    assert sum(counts.values()) == CONVERSATIONS * TURNS
    assert max(counts.values()) < 1.5 * min(counts.values())


def test_no_episode_is_lost_where_a_server_is_killed_and_one_is_added(hosts: Hosts) -> None:
    engine = hosts.engine(router=hosts.url)
    added = f"http://127.0.0.1:{hosts.port + 50}"
    try:
        engine.load(weights(2))
        until(lambda: sum(server.is_up for server in engine.fleet.servers) == SERVERS, 200)
        hosts.serve(1, hosts.port + 50, hosts.url)
        begun, joined_at = time.monotonic(), []

        def joined() -> bool:
            up = any(server.is_up and server.name == added for server in engine.fleet.servers)
            if up and not joined_at:
                joined_at.append((time.monotonic() - begun, played.done))
            return (up and played.done > joined_at[0][1] + CONVERSATIONS) or time.monotonic() - begun > 400

        played = Played(engine, joined)
        killer = threading.Timer(2.0, lambda: os.kill(process_at(hosts.port), signal.SIGKILL))
        killer.start()
        played.run()
        killer.join()
        counts = requests_by_server(hosts)
        print(
            f"\n{played.done} conversations in {played.seconds:.1f} s; the added server joined after {joined_at}; "
            f"prefix-cache share {played.share:.3f} of {played.ideal:.3f} possible; requests by server: {counts}"
        )
        assert joined_at, "the added server never joined"
        assert played.faults == []
        assert counts[added] > 0
        until(lambda: sum(server.is_up for server in engine.fleet.servers) == SERVERS + 1, 300)
        # What is new goes to every server, also to the one that came and to the one that came back.
        engine.load(weights(3))
        label = engine.fleet.target.label
        for url in behind(hosts.url):
            assert httpx.get(f"{url}/model_info", timeout=patience(20)).json()["weight_version"] == label
        # The host of the added server leaves in an orderly way.
        hosts.started[-1].terminate()
        assert hosts.started[-1].wait(patience(90)) == 0
        until(lambda: added not in behind(hosts.url), 30)
        until(lambda: added not in [server.name for server in engine.fleet.servers], 30)
    finally:
        engine.close()
