"""An engine whose completions depend on seed and prompt alone, and an advantage that learns from any of them.

It takes actions from a list, by chance. It still reads all weights that it is given, and notes what they add up to.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

import environments
from cojax.learner.placement import Hosts
from cojax.policy.config import ModelConfig
from cojax.rollout.chat import TOOL_DOCUMENTS, Chat
from cojax.rollout.engine import Completion, Engine, Sampling, Weights, check_prompt
from cojax.run import policies
from cojax.run.engines import build_local
from cojax.types import Trajectory

# The variable that names the file for the sums of weights, one line a version.
SUMS = "STEADY_ENGINE_SUMS"
# Beside that file, one line for every time that weights begin to be read, and for every group before its update.
LOADS, ADVANTAGES = ".loads", ".advantages"


class SteadyEngine:
    busy_seconds = 0.0

    def __init__(self, actions: Sequence[tuple[int, ...]], vocabulary: int, length: int) -> None:
        self._actions, self._vocabulary, self._length = actions, vocabulary, length
        self._version = -1

    def load(self, weights: Weights) -> None:
        self._version = weights.version
        note(LOADS)
        sums = {name: float(np.abs(array.astype(np.float64)).sum()) for name, array in weights.arrays()}
        if path := os.environ.get(SUMS):
            with open(path, "a") as file:
                file.write(json.dumps({"version": weights.version, "sums": sums}) + "\n")

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        check_prompt(prompt, self._vocabulary, self._length)
        tokens = random.Random(repr((seed, tuple(prompt)))).choice(self._actions)
        tokens = tokens[: min(sampling.max_tokens, self._length - len(prompt))]
        reason = "stop" if tokens[-1] in sampling.stop_tokens else "length"
        return Completion(tokens, (-1.0,) * len(tokens), self._version, reason)

    def release(self, session: str) -> None:
        pass

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass


def steady(config: ConfigDict, model: ModelConfig) -> SteadyEngine:
    environment = environments.load("desk")
    tokenizer, _ = policies.read_model(config, environment)
    chat = Chat(tokenizer, TOOL_DOCUMENTS[config.model.tools])
    demonstrations = environment.demonstrations(100, 0, (0.0, 0.0))
    actions = {chat.encode_action(action): None for _, actions in demonstrations for action in written(chat, actions)}
    return SteadyEngine(sorted(actions), model.vocab_size, config.engine.max_length)


class ScheduledEngine:
    """The local engine samples as it would, and then the steady engine's completion is taken in place of its own."""

    def __init__(self, local: Engine, steady: SteadyEngine) -> None:
        self._local, self._steady, self._calls = local, steady, itertools.count()

    @property
    def busy_seconds(self) -> float:
        return self._local.busy_seconds

    def load(self, weights: Weights) -> None:
        self._local.load(weights)
        self._steady.load(weights)

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        call = f"{session}, call {next(self._calls)}"
        try:
            sampled = self._local.generate(prompt, sampling, session=call, seed=seed)
        finally:
            self._local.release(call)
        steady = self._steady.generate(prompt, sampling, session=session, seed=seed)
        assert sampled.weights_version == steady.weights_version
        return steady

    def release(self, session: str) -> None:
        pass

    def rest(self) -> None:
        self._local.rest()

    def close(self) -> None:
        self._local.close()


def scheduled(config: ConfigDict, model: ModelConfig, hosts: Hosts) -> ScheduledEngine:
    return ScheduledEngine(build_local(config, model, hosts), steady(config, model))


def written(chat: Chat, actions):
    import dataclasses

    return [dataclasses.replace(action, text=chat.write(action.calls)) for action in actions]


def by_length(trajectories: Sequence[Trajectory]) -> list[float]:
    """Shorter than the others of its group is better: it differs where rewards do not."""
    note(ADVANTAGES)
    counts = [sum(len(turn.action_tokens) for turn in trajectory.turns) for trajectory in trajectories]
    mean = sum(counts) / len(counts)
    return [(mean - count) / 8.0 for count in counts]


def note(what: str) -> None:
    """Says that this begins, for a test that waits for it."""
    if path := os.environ.get(SUMS):
        with open(path + what, "a") as file:
            file.write("\n")


def sums(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
