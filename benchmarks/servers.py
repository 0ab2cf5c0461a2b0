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
from cojax.compile.programs import count_parameters
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
from cojax.run.parts import make_sampling
from cojax.types import Trajectory
from experiments import desk

_CONTEXT_LENGTH = 64  # tokens a conversation that the server of `sync` must hold


def sync(
    *, sizes: Sequence[float] = (0.01, 0.1, 1.1), dtype: str = "bfloat16", python: str = "", repeats: int = 5
) -> list[Row]:
    """New weights of a model of `sizes` gigabytes (10⁹ bytes), from the trainer's arrays to a server that serves them.

    Each repetition also times a plain copy: the same bytes written to one file, fsynced and read again.
    """
    return [_measure_sync(choose_config(size, dtype), python, repeats) for size in sizes]


def _measure_sync(config: ModelConfig, python_path: str, repeat_count: int) -> Row:
    with temporary_folder(6 * count_bytes(config)) as folder:
        write_random(folder / "source", config)
        params = cojax.load(folder / "source").params
        launch = _make_launch(python_path, folder / "logs", config.param_dtype)
        engine = SGLangEngine(config, folder=folder, max_length=_CONTEXT_LENGTH, launch=launch)
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
            action_by_figure = {
                "sync_seconds": load,
                "export_seconds": export,
                "reload_seconds": lambda: load(lambda: str(folder / "apart")),
                "plain_seconds": copy,
            }
            seconds_by_figure: dict[str, list[float]] = {name: [] for name in action_by_figure}
            for _ in range(repeat_count + 1):  # the first warms up
                for figure_name, action in action_by_figure.items():
                    (folder / "copy").unlink(missing_ok=True)
                    started_at = time.perf_counter()
                    action()
                    seconds_by_figure[figure_name].append(time.perf_counter() - started_at)
        finally:
            engine.close()
    figures = {name: Spread(tuple(seconds[1:])) for name, seconds in seconds_by_figure.items()}
    pairs = zip(figures["sync_seconds"].values, figures["plain_seconds"].values, strict=True)
    return {
        "parameters": count_parameters(config),
        "dtype": config.dtype,
        "gigabytes": count_bytes(config) / 1e9,
        **figures,
        "times_plain": Spread(tuple(sync_s / plain_s for sync_s, plain_s in pairs)),
    }


def _make_launch(python_path: str, logs_folder: Path, dtype: str) -> LaunchSettings:
    """Launches the server of the interpreter `python_path`; without one, that of `make sglang` on the CPU."""
    interpreter, device = (python_path, "") if python_path else (str(engines.find_default_python()), "cpu")
    return LaunchSettings(interpreter, logs_folder, _CONTEXT_LENGTH, dtype, device=device)


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
        sampler = make_sampling(config, parts.chat, config.sampling.temperature)
        tasks = parts.environment.tasks("seed", max(1, batch // 8))
        actors = PolicyActors(engine, parts.chat, sampler)
        collector = EpisodeCollector(actors, parts.environment, parts.limits, batch // len(tasks))
        rounds: list[tuple[float, Counter[str], list[Trajectory]]] = []
        try:
            for round_number in range(repeats + 1):  # the first warms up
                engine.load(Weights(round_number, lambda: to_hf(parts.model, params)))
                served_before, started_at = engine.served.copy(), time.perf_counter()
                groups = collector.collect(tasks, seed=(round_number,), label=str(round_number))
                seconds = time.perf_counter() - started_at
                rounds.append((seconds, engine.served - served_before, [t for g in groups for t in g.trajectories]))
        finally:
            engine.close()
    episodes = [trajectory for _, _, trajectories in rounds[1:] for trajectory in trajectories]
    prompt_token_count = sum(counts["prompt_tokens"] for _, counts, _ in rounds[1:])
    return [
        {
            "conversations": len(rounds[0][2]),
            "turns": sum(len(trajectory.turns) for trajectory in episodes) / len(episodes),
            "completions": sum(counts["completions"] for _, counts, _ in rounds[1:]) // repeats,
            "sampled_tokens": sum(len(turn.action_tokens) for t in episodes for turn in t.turns) // repeats,
            "seconds": Spread(tuple(seconds for seconds, _, _ in rounds[1:])),
            "requests_per_second": Spread(tuple(counts["completions"] / seconds for seconds, counts, _ in rounds[1:])),
            "repeated_share": _count_repeated_tokens(episodes) / prompt_token_count,
            "prefix_cache_hit_rate": sum(counts["cached_tokens"] for _, counts, _ in rounds[1:]) / prompt_token_count,
        }
    ]


def _count_repeated_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Prompt tokens that the conversation's turn before had already: the least that a prefix cache can hit."""
    token_count = 0
    for trajectory in trajectories:
        length = 0
        for turn in trajectory.turns:
            token_count += length
            length += len(turn.prompt_tokens) + len(turn.action_tokens)
    return token_count
