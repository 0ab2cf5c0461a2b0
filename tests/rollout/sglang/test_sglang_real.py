"""The engine on a real SGLang server, launched here on the CPU: numbers, weights, faults."""

import contextlib
import dataclasses
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from patience import patience

from cojax.environment import EngineError, OutOfContext
from cojax.host.processes import list_descendants
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import to_hf
from cojax.policy.transformer import Params, initialize
from cojax.rollout.engine import Completion, Engine, Sampling, Weights
from cojax.rollout.export import write_weights
from cojax.rollout.local import LocalEngine
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings, Server
from cojax.run.engines import find_default_python
from cojax.settings.tree import SGLangSettings

pytestmark = pytest.mark.real
CONFIG = ModelConfig(112, 64, 128, 2, 4, 2, 16, max_position_embeddings=512)
LENGTH = 480
LONG = 400  # tokens of a completion that lasts long enough for something to happen
LIMITS = SGLangSettings(startup_deadline=240.0, sync_deadline=30.0, probe_every=2.0, restarts=4)


@functools.cache
def params(seed: int) -> Params:
    return initialize(CONFIG, seed)


def weights(version: int) -> Weights:
    return Weights(version, lambda: to_hf(CONFIG, params(version)))


def written(version: int, folder: Path) -> Weights:
    """The same, on disk already: a sync that waits for no export."""
    write_weights(folder, CONFIG, to_hf(CONFIG, params(version)))
    return dataclasses.replace(weights(version), path=lambda: str(folder))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangEngine]:
    folder, others = tmp_path_factory.mktemp("run"), list_descendants(os.getpid())
    launch = LaunchSettings(str(find_default_python()), folder / "sglang", LENGTH, "float32", "cpu")
    running = SGLangEngine(CONFIG, folder=folder, max_length=LENGTH, launch=launch, settings=LIMITS, timeout_s=240.0)
    running.load(weights(0))
    yield running
    processes = list_descendants(os.getpid()) - others
    running.close()
    assert processes, "no server was started"
    assert not processes & list_descendants(os.getpid()), "a server's process is left"


@pytest.fixture
def fresh(engine: SGLangEngine) -> SGLangEngine:
    """The engine on weights 0, its server up."""
    engine.load(weights(0))
    return engine


def only(engine: SGLangEngine) -> Server:
    [server] = engine.fleet.servers
    return server


def attached(engine: SGLangEngine, folder: Path, **settings: object) -> SGLangEngine:
    """Another engine, as of another run, on the same server."""
    return SGLangEngine(CONFIG, folder=folder, max_length=LENGTH, urls=[only(engine).client.url], **settings)


def exact(seed: int, prompt: list[int], completion: Completion, temperature: float) -> np.ndarray:
    """Our own forward pass: log-probs of the completion's tokens."""
    whole = [*prompt, *completion.tokens]
    rows = np.zeros((2, 1, LENGTH), np.int32)  # of one shape, so that one program serves all
    rows[0, 0, : len(whole)], rows[1, 0, : len(whole)] = whole, 1
    return np.asarray(forward(params(seed), rows[0], rows[1], temperature))[0, len(prompt) : len(whole)]


@functools.partial(jax.jit, static_argnums=3)
def forward(parameters: Params, tokens: jax.Array, segments: jax.Array, temperature: float) -> jax.Array:
    positions = jnp.arange(LENGTH)[None]
    return token_logprobs(CONFIG, parameters, tokens, positions, segments, temperature=temperature)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 112, draw.integers(1, 60)).tolist() for _ in range(count)]


def at_once(work: Callable[[int], object], count: int) -> list[object]:
    """The results of work(0), work(1), … on threads of their own; an exception stands for its result."""
    results: list[object] = [None] * count

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def sample_all(engine: Engine, asked: list[list[int]], sampling: Sampling) -> list[Completion]:
    def one(index: int) -> Completion:
        try:
            return engine.generate(asked[index], sampling, session=f"s{index}", seed=(index,))
        finally:
            engine.release(f"s{index}")

    results = at_once(one, len(asked))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results  # type: ignore[return-value]


def test_greedy_tokens_are_those_of_the_local_engine(fresh: SGLangEngine) -> None:
    local = LocalEngine(CONFIG, slots=8, max_length=LENGTH)
    local.load(weights(0))
    asked, sampling = prompts(24), Sampling(0.0, 40, tuple(range(20)))
    ours, theirs = sample_all(local, asked, sampling), sample_all(fresh, asked, sampling)
    local.close()
    assert [c.tokens for c in theirs] == [c.tokens for c in ours]
    assert [c.finish_reason for c in theirs] == [c.finish_reason for c in ours]
    assert {c.finish_reason for c in theirs} == {"stop", "length"}
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_sampled_logprobs_are_our_forward_pass_at_that_temperature(fresh: SGLangEngine, temperature: float) -> None:
    asked = prompts(16, seed=1)
    for prompt, completion in zip(asked, sample_all(fresh, asked, Sampling(temperature, 40)), strict=True):
        np.testing.assert_allclose(completion.logprobs, exact(0, prompt, completion, temperature), atol=1e-4)
        assert len(completion.tokens) == 40


def test_a_growing_conversation_fills_the_context_to_its_last_token(fresh: SGLangEngine) -> None:
    tokens = [1, 2, 3]
    for turn in range(20):
        completion = fresh.generate(tokens, Sampling(1.0, 60), session="long", seed=(turn,))
        np.testing.assert_allclose(completion.logprobs, exact(0, tokens, completion, 1.0), atol=1e-4)
        tokens += [*completion.tokens, 5]
        if len(tokens) >= LENGTH:
            break
    assert len(tokens) == LENGTH + 1
    fresh.release("long")
    with pytest.raises(OutOfContext, match="leaves no room"):
        fresh.generate(tokens[:LENGTH], Sampling(1.0, 20), session="long", seed=(0,))


def test_after_a_sync_outputs_are_those_of_the_new_parameters(fresh: SGLangEngine) -> None:
    asked, sampling = prompts(8, seed=2), Sampling(0.0, 30)
    before = sample_all(fresh, asked, sampling)
    fresh.load(weights(1))
    after = sample_all(fresh, asked, sampling)
    assert all(old.tokens != new.tokens for old, new in zip(before, after, strict=True))
    assert {c.weights_version for c in before} == {0}
    assert {c.weights_version for c in after} == {1}
    for prompt, completion in zip(asked, after, strict=True):
        np.testing.assert_allclose(completion.logprobs, exact(1, prompt, completion, 1.0), atol=1e-4)


def test_after_a_rest_it_serves_as_before(fresh: SGLangEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an accelerator there is no memory to give back, but the server goes through it all the same."""
    monkeypatch.setattr(fresh, "_settings", dataclasses.replace(fresh._settings, release_memory=True))
    restarts, asked = only(fresh).restarts_left, prompts(8, seed=5)
    for version in (1, 0):
        fresh.rest()
        assert (only(fresh).state, len(only(fresh).released_memory.kinds)) == ("resting", 3)
        fresh.load(weights(version))
        for prompt, completion in zip(asked, sample_all(fresh, asked, Sampling(0.0, 30)), strict=True):
            assert completion.weights_version == version
            np.testing.assert_allclose(completion.logprobs, exact(version, prompt, completion, 1.0), atol=1e-4)
    assert only(fresh).restarts_left == restarts


def during_a_long_completion(engine: SGLangEngine, act: Callable[[], None]) -> Completion:
    """A completion of LONG tokens, once `act` has run while the server was at it."""
    results: list[object] = []

    def one() -> None:
        try:
            results.append(engine.generate([3, 4, 5], Sampling(1.0, LONG), session="long", seed=(1,)))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=one)
    thread.start()
    deadline = time.monotonic() + patience(30)
    while not any(server.requests for server in engine.fleet.servers):
        assert time.monotonic() < deadline, "the request never left"
        time.sleep(0.001)
    time.sleep(0.2)
    act()
    thread.join()
    engine.release("long")
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]  # type: ignore[return-value]


def test_a_sync_in_the_middle_gives_spans_that_are_each_their_versions_own(
    fresh: SGLangEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "_settings", dataclasses.replace(fresh._settings, mixed=True))
    new = written(1, tmp_path / "new")
    completion = during_a_long_completion(fresh, lambda: fresh.load(new))
    assert [version for version, _ in completion.spans] == [0, 1], "the completion ended before the sync"
    assert sum(count for _, count in completion.spans) == len(completion.tokens) == LONG
    assert completion.weights_version == 1
    first = completion.spans[0][1]
    before, after = (exact(version, [3, 4, 5], completion, 1.0) for version in (0, 1))
    np.testing.assert_allclose(completion.logprobs[:first], before[:first], atol=1e-4)
    np.testing.assert_allclose(completion.logprobs[first:], after[first:], atol=1e-4)


def test_without_mixed_such_a_completion_is_sampled_anew(fresh: SGLangEngine, tmp_path: Path) -> None:
    new = written(1, tmp_path / "new")
    completion = during_a_long_completion(fresh, lambda: fresh.load(new))
    assert (completion.weights_version, completion.spans, len(completion.tokens)) == (1, (), LONG)
    np.testing.assert_allclose(completion.logprobs, exact(1, [3, 4, 5], completion, 1.0), atol=1e-4)


def test_weights_pushed_by_another_run_are_noticed_and_put_right(fresh: SGLangEngine, tmp_path: Path) -> None:
    stranger = attached(fresh, tmp_path)
    stranger.load(weights(2))
    stranger.close()
    completion = fresh.generate([3, 4, 5], Sampling(0.0, 20), session="a", seed=(0,))
    fresh.release("a")
    assert completion.weights_version == 0
    np.testing.assert_allclose(completion.logprobs, exact(0, [3, 4, 5], completion, 1.0), atol=1e-4)


def server_process(engine: SGLangEngine) -> int:
    """Process id of the server itself, child of its guard."""
    pids = subprocess.run(
        ["pgrep", "-f", f"sglang.launch_server.*--port {only(engine).process.port} "], capture_output=True, text=True
    ).stdout.split()
    own = os.getpid()
    guards = [int(pid) for pid in pids if parent(int(pid)) == own]
    return next(int(pid) for pid in pids if parent(int(pid)) in guards)


def parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1


def test_a_server_killed_while_sampling_costs_nothing_but_time(fresh: SGLangEngine) -> None:
    asked = prompts(16, seed=3)
    restarts, victim = only(fresh).restarts_left, server_process(fresh)
    killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
    killer.start()
    rounds = [sample_all(fresh, asked, Sampling(1.0, 200)) for _ in range(3)]
    killer.join()
    assert only(fresh).restarts_left == restarts - 1
    for completions in rounds:
        for prompt, completion in zip(asked, completions, strict=True):
            assert (completion.weights_version, completion.spans) == (0, ())
            np.testing.assert_allclose(completion.logprobs, exact(0, prompt, completion, 1.0), atol=1e-4)


@pytest.mark.nightly
def test_a_server_that_hangs_during_a_sync_is_started_again_on_the_new_weights(fresh: SGLangEngine) -> None:
    restarts, victim = only(fresh).restarts_left, server_process(fresh)
    os.kill(victim, signal.SIGSTOP)
    fresh.load(weights(1))
    assert only(fresh).restarts_left == restarts - 1
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)
    completion = fresh.generate([3, 4, 5], Sampling(0.0, 20), session="a", seed=(0,))
    fresh.release("a")
    assert completion.weights_version == 1
    np.testing.assert_allclose(completion.logprobs, exact(1, [3, 4, 5], completion, 1.0), atol=1e-4)


def test_a_folder_missing_or_cut_short_is_refused_and_the_server_keeps_what_it_has(fresh: SGLangEngine) -> None:
    with pytest.raises(FileNotFoundError, match="expected a model folder"):
        fresh.load(Weights(7, weights(1).arrays, lambda: "/nowhere"))
    good = max(fresh._kept_folders, key=lambda path: path.stat().st_mtime)
    cut = good.with_name("cut")
    cut.mkdir()
    for path in good.iterdir():
        (cut / path.name).write_bytes(path.read_bytes())
    with open(cut / "model.safetensors", "r+b") as file:
        file.truncate(20_000)
    with pytest.raises(ValueError, match="truncated"):
        fresh.load(Weights(7, weights(1).arrays, lambda: str(cut)))
    completion = fresh.generate([3, 4, 5], Sampling(0.0, 20), session="a", seed=(0,))
    assert completion.weights_version == 0
    np.testing.assert_allclose(completion.logprobs, exact(0, [3, 4, 5], completion, 1.0), atol=1e-4)


def test_weights_that_end_the_server_are_an_error_and_it_comes_back_with_its_own(
    fresh: SGLangEngine, tmp_path: Path
) -> None:
    """Sound files of another shape: this server does not survive the attempt to load them."""
    narrow = ModelConfig(112, 32, 128, 2, 4, 2, 16, max_position_embeddings=512)
    # It comes back on another port: an engine that was given the old one waits there, and gives up in time.
    url, limits = only(fresh).client.url, SGLangSettings(startup_deadline=5.0)
    other = SGLangEngine(narrow, folder=tmp_path, max_length=LENGTH, urls=[url], settings=limits)
    with pytest.raises(EngineError, match=r"no SGLang server took the weights in .*/0: http.*startup_deadline=5 s"):
        other.load(Weights(0, lambda: to_hf(narrow, initialize(narrow, 0))))
    other.close()
    completion = fresh.generate([3, 4, 5], Sampling(0.0, 20), session="a", seed=(0,))
    fresh.release("a")
    assert completion.weights_version == 0
    np.testing.assert_allclose(completion.logprobs, exact(0, [3, 4, 5], completion, 1.0), atol=1e-4)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        launch = LaunchSettings(str(find_default_python()), tmp_path, LENGTH, "float32", "cpu", port=port)
        engine = SGLangEngine(
            CONFIG, folder=tmp_path, max_length=LENGTH, launch=launch, settings=SGLangSettings(restarts=0)
        )
        with pytest.raises(EngineError, match=rf"port {port} .* cannot be used.*choose another --config\.sglang\.port"):
            engine.load(weights(0))
        engine.close()


TRAINER = """
import sys, time
from pathlib import Path
from cojax.host.processes import end_descendants_at_exit
from cojax.rollout.sglang.server import LaunchSettings, ServerProcess
end_descendants_at_exit()
process = ServerProcess(LaunchSettings(sys.argv[1], Path(sys.argv[2]), 480, "float32", "cpu"))
process.start(Path(sys.argv[3]), "x")
print(process.port, flush=True)
time.sleep(600)
"""


def test_no_server_outlives_a_trainer_that_was_killed(fresh: SGLangEngine, tmp_path: Path) -> None:
    arguments = [str(find_default_python()), str(tmp_path), str(fresh._kept_folders[-1])]
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, *arguments], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    port = int(trainer.stdout.readline())
    pattern = f"sglang.launch_server.*--port {port} "
    wait(lambda: answers(port), 240, "the server did not start")
    trainer.kill()
    trainer.wait()
    wait(lambda: subprocess.run(["pgrep", "-f", pattern], capture_output=True).returncode == 1, 20, "it lives on")
    assert not answers(port)


def test_a_command_told_to_end_returns_once_its_servers_have(fresh: SGLangEngine, tmp_path: Path) -> None:
    arguments = [str(find_default_python()), str(tmp_path), str(fresh._kept_folders[-1])]
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, *arguments], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    port = int(trainer.stdout.readline())
    wait(lambda: answers(port), 240, "the server did not start")
    started = list_descendants(trainer.pid)
    assert len(started) >= 4, "guard, server, scheduler and detokenizer"
    trainer.terminate()
    assert trainer.wait(patience(30)) == 143
    left = {pid: Path(f"/proc/{pid}/stat").read_text() for pid in started if Path(f"/proc/{pid}").exists()}
    assert not left, f"{left} {(tmp_path / 'server-0.log').read_text()[-3000:]}"


def answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/model_info", timeout=patience(5)).status_code == 200
    return False


def wait(condition: Callable[[], bool], seconds: float, complaint: str) -> None:
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.2)
