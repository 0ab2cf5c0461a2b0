"""An engine without a model that takes as long as the simulated servers do: the loop itself, with rates that are known.

`--config.engine.name=benchmarks.simulate.paced:paced` puts it in a run, in place of `sglang.servers` servers. It plays
the desk with actions of official solutions drawn by chance, so its episodes say nothing about a policy.
"""

import dataclasses
import random
import threading
import time
from collections.abc import Sequence

from ml_collections import ConfigDict

from benchmarks.simulate.servers import Rates, Server
from cojax import worlds
from cojax.environment import EngineError
from cojax.policy.config import ModelConfig
from cojax.rollout.chat import TOOL_DOCUMENTS, Chat
from cojax.rollout.engine import BusyTime, Completion, Sampling, Weights, check_prompt
from cojax.run import policies

# Tokens a second of each server by its requests at once.
SERVER_RATES = Rates(((1.0, 8.0), (4.0, 24.0), (16.0, 60.0), (64.0, 100.0)))
_SOLVED_TASKS = 50  # whose solutions are played


class PacedEngine:
    """Completions out of `actions`, as late as `servers` of these rates would give them."""

    def __init__(self, actions: Sequence[tuple[int, ...]], server_count: int, vocabulary: int, length: int) -> None:
        self._actions, self._vocabulary, self._length = actions, vocabulary, length
        self._servers: list[Server[str]] = [Server(SERVER_RATES) for _ in range(server_count)]
        self._placed: dict[str, int] = {}  # session → server
        self._waiting: dict[str, threading.Event] = {}  # session → set once its request has ended
        self._changed = threading.Condition()
        self._busy, self._version, self._closed = BusyTime(), -1, False
        threading.Thread(target=self._end_requests, name="paced", daemon=True).start()

    @property
    def busy_seconds(self) -> float:
        return self._busy.total_seconds

    def load(self, weights: Weights) -> None:
        self._version = weights.version

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, session: str, seed: tuple[int, ...]) -> Completion:
        """As `Engine.generate`."""
        check_prompt(prompt, self._vocabulary, self._length)
        tokens = random.Random(repr((seed, tuple(prompt)))).choice(self._actions)
        tokens = tokens[: min(sampling.max_tokens, self._length - len(prompt))]
        with self._busy:
            with self._changed:
                if self._closed:
                    raise EngineError("the engine was closed")
                end_event = self._waiting[session] = threading.Event()
                self._servers[self._choose_server(session)].arrive(time.monotonic(), float(len(tokens)), session)
                self._changed.notify()
            end_event.wait()
        if self._closed:
            raise EngineError("the engine was closed")
        is_stopped = tokens[-1] in sampling.stop_tokens
        return Completion(tokens, (-1.0,) * len(tokens), self._version, "stop" if is_stopped else "length")

    def _end_requests(self) -> None:
        """Ends every request when it is due, until the engine is closed."""
        with self._changed:
            while not self._closed:
                for server in self._servers:
                    while (ends := server.ends()) is not None and ends <= time.monotonic():
                        if event := self._waiting.pop(server.end(ends), None):
                            event.set()
                due = [ends for server in self._servers if (ends := server.ends()) is not None]
                self._changed.wait(max(0.0, min(due) - time.monotonic()) if due else None)
            for event in self._waiting.values():
                event.set()

    def _choose_server(self, session: str) -> int:
        """The server of the session: a new one's has the fewest sessions."""
        session_counts = [list(self._placed.values()).count(server_index) for server_index in range(len(self._servers))]
        return self._placed.setdefault(session, session_counts.index(min(session_counts)))

    def release(self, session: str) -> None:
        with self._changed:
            server_index = self._placed.pop(session, None)
            if server_index is not None and (event := self._waiting.pop(session, None)):
                self._servers[server_index].leave(time.monotonic(), session)
                self._changed.notify()
                event.set()

    def rest(self) -> None:
        pass

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()


def paced(config: ConfigDict, model: ModelConfig) -> PacedEngine:
    """The engine of a configuration of the desk."""
    environment = worlds.load("desk")
    tokenizer, _ = policies.read_model(config, environment)
    chat = Chat(tokenizer, TOOL_DOCUMENTS[config.model.tools])
    solutions = [task.solution for task in environment.tasks("seed", _SOLVED_TASKS)]
    actions = [dataclasses.replace(act, text=chat.write(act.calls)) for solution in solutions for act in solution]
    return PacedEngine([chat.encode_action(act) for act in actions], config.sglang.servers, model.vocab_size,
                       config.engine.max_length)  # fmt: skip
