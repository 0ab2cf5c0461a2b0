"""Suites `sync` and `conversations`: new weights to an SGLang server launched here, and many conversations on it."""

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import cojax
from benchmarks.folders import choose_config, count_bytes, read_plainly, temporary_folder, write_plainly, write_random
from benchmarks.results import Row, Spread
from cojax.compile.programs import parameter_count
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.transformer import initialize
from cojax.rollout.chat import PolicyActors
from cojax.rollout.collect import EpisodeCollector
from cojax.rollout.engine import Weights
from cojax.rollout.export import write_weights
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings
from cojax.run import assemble, engines
from cojax.run.parts import sampling
from cojax.types import Trajectory
from experiments import desk

_LENGTH = 64  # tokens a conversation that the server of `sync` must hold


def sync(
    *, sizes: Sequence[float] = (0.01, 0.1, 1.1), dtype: str = "bfloat16", python: str = "", repeats: int = 5
) -> list[Row]:
    """New weights of a model of `sizes` gigabytes (10⁹ bytes), from the trainer's arrays to a server that serves them.

    Each repetition also times a plain copy: the same bytes written to one file, fsynced and read again.
    """
    return [_synced(choose_config(size, dtype), python, repeats) for size in sizes]


def _synced(config: ModelConfig, python: str, repeats: int) -> Row:
    with temporary_folder(6 * count_bytes(config)) as folder:
        write_random(folder / "source", config)
        params = cojax.load(folder / "source").params
        launch = _launch(python, folder / "logs", config.param_dtype)
        engine = SGLangEngine(config, folder=folder, max_length=_LENGTH, launch=launch)
        versions = itertools.count()

        def load(path: Callable[[], str] | None = None) -> None:
            engine.load(Weights(next(versions), lambda: to_hf(config, params), path))

        def export() -> None:
            shutil.rmtree(folder / "apart", ignore_errors=True)
            write_weights(folder / "apart", config, to_hf(config, params))

        def copy() -> None:
            write_plainly(folder / "copy", count_bytes(config))
            read_plainly(folder / "copy")

        try:
            load()  # starts the server
            actions = {
                "sync_seconds": load,
                "export_seconds": export,
                "reload_seconds": lambda: load(lambda: str(folder / "apart")),
                "plain_seconds": copy,
            }
            times: dict[str, list[float]] = {name: [] for name in actions}
            for _ in range(repeats + 1):  # the first warms up
                for name, action in actions.items():
                    (folder / "copy").unlink(missing_ok=True)
                    began = time.perf_counter()
                    action()
                    times[name].append(time.perf_counter() - began)
        finally:
            engine.close()
    figures = {name: Spread(tuple(seconds[1:])) for name, seconds in times.items()}
    pairs = zip(figures["sync_seconds"].values, figures["plain_seconds"].values, strict=True)
    return {
        "parameters": parameter_count(config),
        "dtype": config.dtype,
        "gigabytes": count_bytes(config) / 1e9,
        **figures,
        "times_plain": Spread(tuple(whole / plain for whole, plain in pairs)),
    }


def _launch(python: str, logs: Path, dtype: str) -> LaunchSettings:
    """Launches the server of the interpreter `python`; without one, that of `make sglang` on the CPU."""
    interpreter, device = (python, "") if python else (str(engines.default_python()), "cpu")
    return LaunchSettings(interpreter, logs, _LENGTH, dtype, device=device)


def conversations(*, batch: int = 64, turns: int = 8, python: str = "", repeats: int = 3) -> list[Row]:
    """`batch` episodes of the desk at once, 8 of a task, by the demo's policy untrained: at most 16 tokens a turn."""
    config = desk.get_config()
    config.engine.name, config.engine.max_length, config.engine.slots = "sglang", 512, batch
    config.learner.row_length = 512
    config.sglang.python = python
    config.sampling.max_tokens = 16
    config.limits.max_turns, config.limits.concurrency = turns, batch
    with temporary_folder(0) as folder:
        config.workdir = str(folder)
        parts = assemble.build_parts(config)
        engine = parts.engine
        assert isinstance(engine, SGLangEngine)
        params = initialize(parts.model, 0)
        sampler = sampling(config, parts.chat, config.sampling.temperature)
        tasks = parts.environment.tasks("seed", max(1, batch // 8))
        actors = PolicyActors(engine, parts.chat, sampler)
        collector = EpisodeCollector(actors, parts.environment, parts.limits, batch // len(tasks))
        rounds: list[tuple[float, Counter[str], list[Trajectory]]] = []
        try:
            for number in range(repeats + 1):  # the first warms up
                engine.load(Weights(number, lambda: to_hf(parts.model, params)))
                before, began = engine.served.copy(), time.perf_counter()
                groups = collector.collect(tasks, seed=(number,), label=str(number))
                seconds = time.perf_counter() - began
                rounds.append((seconds, engine.served - before, [t for g in groups for t in g.trajectories]))
        finally:
            engine.close()
    episodes = [trajectory for _, _, trajectories in rounds[1:] for trajectory in trajectories]
    prompts = sum(counts["prompt_tokens"] for _, counts, _ in rounds[1:])
    return [
        {
            "conversations": len(rounds[0][2]),
            "turns": sum(len(trajectory.turns) for trajectory in episodes) / len(episodes),
            "completions": sum(counts["completions"] for _, counts, _ in rounds[1:]) // repeats,
            "sampled_tokens": sum(len(turn.action_tokens) for t in episodes for turn in t.turns) // repeats,
            "seconds": Spread(tuple(seconds for seconds, _, _ in rounds[1:])),
            "requests_per_second": Spread(tuple(counts["completions"] / seconds for seconds, counts, _ in rounds[1:])),
            "repeated_share": _repeated(episodes) / prompts,
            "prefix_cache_hit_rate": sum(counts["cached_tokens"] for _, counts, _ in rounds[1:]) / prompts,
        }
    ]


def _repeated(trajectories: Sequence[Trajectory]) -> int:
    """Prompt tokens that the conversation's turn before had already: the least that a prefix cache can hit."""
    total = 0
    for trajectory in trajectories:
        length = 0
        for turn in trajectory.turns:
            total += length
            length += len(turn.prompt_tokens) + len(turn.action_tokens)
    return total
