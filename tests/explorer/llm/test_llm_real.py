"""The explorer with a model in whole runs and in real benchmarks; minutes, or packages of their own."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_server import Answer, ChatServer, asked, says, serving, soon
from evolving import EPISODE, OFFICE, PARENT, SIGNALS
from models import move, of_words, stage, told, turn, wanderer
from patience import patience

import environments
from cojax.environment import Environment
from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.transformer import initialize
from cojax.rollout.export import write_weights
from cojax.rollout.sglang.server import _CPU_ENVIRONMENT, _LAUNCH_FLAGS
from cojax.rollout.vocabulary import train_byte_tokenizer
from cojax.run.engines import find_default_python
from cojax.settings.tree import LLMSettings
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, Expedition, Synthesis, sample_setups, synthesize
from cojax.types import Action
from cojax.validation import Attempts, Exclusions, Validation

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]
KEY = "sk-only-for-this-test-123"
SMALL = (
    "steps=4", "evolve_every=2", "checkpoint_every=3", "batch_size=4", "group_size=4", "initial_tasks=12",
    "model.shape.hidden_size=64", "model.shape.intermediate_size=128", "model.shape.num_hidden_layers=2",
    "warm_start.steps=200", "warm_start.check_every=100", "warm_start.demonstrations=2000",
    "warm_start.lengthen=1000", "warm_start.noise_low=0.1", "warm_start.noise_high=0.3",
    "warm_start.check_tasks=40", "warm_start.learning_rate=0.005", "evaluation.tasks=24", "evaluation.dev_tasks=40",
    "engine.slots=16", "limits.concurrency=16", "synthesis.contexts=6", "synthesis.budget=6",
    "signal_settings.rare.minimum=16", "signal_settings.rare.percent=20.0",
    "llm.model=m", "llm.timeout=20.0", "initial_explorer=scripted",
)  # fmt: skip


def command(workdir: Path, server: ChatServer, explorer: str = "llm") -> list[str]:
    settings = (*SMALL, f"workdir={workdir}", f"llm.base_url={server.url}", f"explorer={explorer}")
    flags = [f"--config.{setting}" for setting in settings]
    return [sys.executable, "-m", "experiments.run", "--config=experiments/desk.py", *flags]


def surroundings(cache: Path) -> dict[str, str]:
    return {**os.environ, "COJAX_CACHE": str(cache), "OPENAI_API_KEY": KEY, "PYTHONUNBUFFERED": "1"}


def ran(workdir: Path, server: ChatServer, cache: Path, explorer: str = "llm") -> str:
    done = subprocess.run(
        command(workdir, server, explorer), cwd=ROOT, env=surroundings(cache), capture_output=True, text=True,
        timeout=patience(400),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.nightly
def test_a_run_that_is_killed_in_an_evolution_repeats_no_task_loses_none_and_pays_once(
    cache: Path, tmp_path: Path
) -> None:
    with serving(wanderer()) as server:
        ran(tmp_path / "whole", server, cache)
        whole = [json.dumps(body, sort_keys=True) for body in server.bodies]
    tasks = lines(tmp_path / "whole" / "tasks.jsonl")
    assert any(record["lineage"]["explorer"].startswith("llm:m@") for record in tasks)

    with serving(wanderer()) as server:
        # In the middle of the second evolution, which no checkpoint has seen; nor has it seen the first.
        process = subprocess.Popen(
            command(tmp_path / "run", server), cwd=ROOT, env=surroundings(cache),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        soon(lambda: server.requests > 0.7 * len(whole), 300)
        process.send_signal(signal.SIGKILL)
        process.wait()
        journaled = {
            json.dumps(record["sent"], sort_keys=True) for record in lines_whole(tmp_path / "run/journal.jsonl")
        }
        assert len(journaled) > 0.5 * len(whole)
        before = server.requests
        ran(tmp_path / "run", server, cache)
        again = [json.dumps(body, sort_keys=True) for body in server.bodies[before:]]
    assert not journaled & set(again)
    assert len(again) == len(whole) - len(journaled)
    assert collections.Counter(journaled | set(again)) == collections.Counter(whole)
    assert lines(tmp_path / "run" / "tasks.jsonl") == tasks
    for name in ("drafts.jsonl", "expeditions.jsonl", "quarantine.jsonl"):
        assert lines(tmp_path / "run" / name) == lines(tmp_path / "whole" / name)
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def lines_whole(path: Path) -> list[dict[str, Any]]:
    """The lines that were written whole."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_a_run_whose_endpoint_is_gone_goes_on_and_says_so(cache: Path, tmp_path: Path) -> None:
    with serving(lambda body, server: Answer("who are you", status=401)) as server:
        said = ran(tmp_path / "run", server, cache)
    assert "expeditions found no task; commonest reasons: unauthorised: HTTP 401: who are you." in said
    assert "Check OPENAI_API_KEY, llm.base_url and llm.model" in said
    assert 2 <= server.requests <= 4  # those that were on their way when the first answer came
    assert len(lines(tmp_path / "run" / "tasks.jsonl")) == 12


def test_a_policy_that_only_knows_the_desk_finds_nothing_and_says_so(cache: Path, tmp_path: Path) -> None:
    with serving(wanderer()) as server:
        said = ran(tmp_path / "run", server, cache, "policy")
    assert server.requests == 0
    assert "expeditions found no task; commonest reasons: too_long: " in said


def explored(
    environment: Environment, script: Any, expeditions: list[Expedition], exclusions: Exclusions, **settings: Any
) -> tuple[Synthesis, ChatServer]:
    with serving(script) as server:
        chat_model = ChatClient(LLMSettings(server.url, "m", timeout=20.0))
        explorer = LLMExplorer(chat_model, runs=2, steps=6, width=2, attempt_turns=8, **settings)
        validate = Validation(environment, exclusions, attempts=Attempts(LLMExplorer.attempters, 1, 8), safe=True)
        result = synthesize(
            expeditions,
            environment,
            explorer,
            validate,
            lambda id: False,
            budget=40,
            per_context=6,
            seed=(0, 1),
            step=1,
        )
        return result, server


NEXT = "\n\n[next turn]\n\n"


def test_bfcl_dialogues_of_several_turns_are_explored_abstracted_and_proved() -> None:
    bfcl = environments.load("bfcl")
    held_out = Exclusions.of(bfcl.tasks("eval", 200), 0.7)
    places = sample_setups(bfcl, "seed", 4, (1,))
    trips = [Expedition(place, "unguided", weights=bfcl.popularity()) for place in places]
    plan: dict[str, list[dict[str, Any]]] = {}

    def remember(body: dict[str, Any], at: int) -> Answer:
        """Solves a dialogue by what its abstraction said of it."""
        query = re.search(r"<data \w+>\n(.*?)\n</data", body["messages"][1]["content"], re.DOTALL)
        assert query
        steps = plan.get(query[1], [])
        return says(steps[at] if at < len(steps) else move("", {}))

    plain = wanderer(later=True)

    def script(body: dict[str, Any], server: ChatServer) -> Answer:
        if stage(body) == "solve":
            return remember(body, turn(body))
        if stage(body) == "explore":
            made = json.loads(plain(body, server).text or "")
            return says({**made, "arguments": typed(body, made["tool"], made["arguments"])})
        answer = plain(body, server)
        if stage(body) == "abstract":
            for draft in json.loads(answer.text or "")["drafts"]:
                actions = [draft["query"], draft["later"][0]["query"]]
                plan[draft["query"]] = [m for line in actions for m in (spelled(line), move("", {}))]
        return answer

    result, server = explored(bfcl, script, trips, held_out, ending="", separator=NEXT, shortest=2)
    assert result.counts["drafts"] > 4
    assert result.tasks, [record["verdict"] for record in result.drafts]
    for task in result.tasks:
        assert len(task.query.split(NEXT)) == 2
        assert task.solution[-1] == Action()
        assert sum(not action.calls for action in task.solution) == 2
        assert not held_out.find_rule(task)
    assert "More functions" not in told(server.bodies[0])


def typed(body: dict[str, Any], tool: str, arguments: dict[str, str]) -> dict[str, Any]:
    """Values as the documentation in the prompt wants them: what a prompt shows is text."""
    documents = [json.loads(line) for line in asked(body).splitlines() if line.startswith('{"type": "function"')]
    properties = next(d["function"]["parameters"]["properties"] for d in documents if d["function"]["name"] == tool)
    return {name: value_of(text, properties.get(name, {}).get("type", "string")) for name, text in arguments.items()}


def value_of(text: str, kind: str) -> Any:
    try:
        return {"integer": int, "number": float, "float": float}.get(kind, str)(text)
    except ValueError:
        return text


def spelled(words: str) -> dict[str, Any]:
    tool, pairs = of_words(words)
    return move(tool, {name: json.loads(text) if text.lstrip("-").replace(".", "").isdigit() else text
                       for name, text in pairs.items()})  # fmt: skip


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real SGLang server, whose model is small and random."""
    folder = tmp_path_factory.mktemp("served")
    config = ModelConfig(1040, 64, 128, 2, 4, 2, 16, max_position_embeddings=8192)
    write_weights(folder / "noise", config, to_hf(config, initialize(config, 0)))
    train_byte_tokenizer([json.dumps(tool) for tool in OFFICE.tools()], 1024).save_pretrained(folder / "noise")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        "--model-path", str(folder / "noise"), "--served-model-name", "noise", "--port", str(port),
        "--context-length", "8000", "--dtype", "float32", *_LAUNCH_FLAGS["cpu"],
    ]  # fmt: skip
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [str(find_default_python()), "-m", "sglang.launch_server", *arguments],
            env={**os.environ, **_CPU_ENVIRONMENT}, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:

        def up() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2_000:]
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{port}/health", timeout=patience(2)).status_code == 200
            return False

        soon(up, 300)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.nightly
def test_a_random_model_on_a_real_server_makes_no_task_and_it_is_said_why(noise: str) -> None:
    # The server is launched without a grammar backend.
    chat_model = ChatClient(LLMSettings(noise, "noise", timeout=60.0, max_tokens=48, send_schema=False))
    explorer = LLMExplorer(chat_model, runs=2, steps=3, attempt_turns=3)
    inputs = EvolutionInputs(OFFICE, explorer, SIGNALS[:2], ["3-x-0"], lambda id: EPISODE, None, 4, (0, 9))
    place = dataclasses.replace(PARENT, query="", solution=())
    trips = [*EVOLUTIONS["feedback"](inputs), Expedition(place, "uniform")]
    validate = Validation(OFFICE, attempts=Attempts(LLMExplorer.attempters, 1, 3), safe=True)
    result = synthesize(
        trips, OFFICE, explorer, validate, lambda id: False, budget=4, per_context=2, seed=(0, 9), step=10
    )
    assert result.tasks == ()
    assert result.counts["expeditions"] == 3
    failures = result.figures["failures"]
    assert sum(failures.values()) == 4  # two reflections and two runs, each after one repair
    assert set(failures) <= {"invalid", "truncated", "empty"}
    assert result.figures["calls"] == 8
    assert 0 < result.figures["tokens_out"] <= 8 * 48
    assert result.reasons()[0].partition(":")[0] in failures
