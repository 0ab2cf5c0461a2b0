"""What a run recorded of its time: the seconds of each step's parts, and of each turn of its episodes.

It is read from a run directory (metrics.jsonl, episodes/, config.json), or from a file of a few kilobytes that holds
the same.
"""

import dataclasses
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.storage.episodes import decompress, read_episodes
from cojax.storage.files import Log, read_json, replace_file
from cojax.types import INFRASTRUCTURE, from_json, parse_json, to_json

_DIGITS = 6  # of seconds that are kept


@dataclasses.dataclass(frozen=True)
class TurnTimes:
    """One turn: newly rendered prompt tokens, sampled tokens, and the seconds of the engine and of the world."""

    prompt: int
    sampled: int
    engine: float
    world: float


@dataclasses.dataclass(frozen=True)
class EpisodeTimes:
    """One episode: seconds to start it and to evaluate it, its reward, and its turns."""

    opening: float
    verdict: float
    reward: float
    turns: tuple[TurnTimes, ...]

    @property
    def tokens(self) -> int:
        return sum(turn.prompt + turn.sampled for turn in self.turns)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """One step: the seconds of its parts by their names in metrics.jsonl, whether it evolved, and its groups."""

    seconds: Mapping[str, float]
    evolved: bool
    groups: tuple[tuple[EpisodeTimes, ...], ...]

    @property
    def rollout(self) -> float:
        """Seconds in which the step waited for episodes."""
        return self.seconds.get("generation", 0.0) + self.seconds.get("environment", 0.0)

    @property
    def other(self) -> float:
        """Seconds of no part."""
        parts = (seconds for name, seconds in self.seconds.items() if name != "total" and not name.endswith("_waited"))
        return max(0.0, self.seconds["total"] - sum(parts))

    @property
    def episodes(self) -> tuple[EpisodeTimes, ...]:
        return tuple(episode for group in self.groups for episode in group)


@dataclasses.dataclass(frozen=True)
class RunTimes:
    """The steps of a run after its first, which compiles, and the settings that decide what waits for what.

    `conversations` are the most at once, and `tasks` those of a step, with `group_size` episodes each.
    """

    name: str
    servers: int
    conversations: int
    tasks: int
    group_size: int
    evolve_every: int
    steps: tuple[StepTimes, ...]
    staleness: int = 0
    quorum: float = 1.0


def read_run(path: str | Path) -> RunTimes:
    """The times of a run directory, or of a file that `write_run` wrote.

    Raises ValueError for a run that has no times: one of fewer than two steps, or of a version that did not record how
    long the engine took for each action.
    """
    path = Path(path)
    if path.is_file():
        return _run_from_rows(parse_json(decompress(path.resolve()).decode()))
    if not (path / "metrics.jsonl").exists():
        raise ValueError(f"{path} is not a run directory, and no file of its times; pass the workdir of a run")
    config = read_json(path / "config.json")["config"]
    steps = tuple(_read_step(path, record) for record in Log(path / "metrics.jsonl").read() if record["step"] > 1)
    if not any(turn.engine for step in steps for episode in step.episodes for turn in episode.turns):
        raise ValueError(
            f"{path} holds no times of turns after its first step; expected a run of two steps or more, made by a "
            "version that records engine_seconds"
        )
    servers = 1 if config["engine"]["name"] == "local" else config["sglang"]["servers"]
    return RunTimes(
        path.name,
        servers,
        config["limits"]["concurrency"],
        config["batch_size"],
        config["group_size"],
        config["evolve_every"],
        steps,
        config["staleness"],
        config["quorum"],
    )


def write_run(path: Path, run: RunTimes) -> None:
    """Stores the times of a run in a compressed file; equal times give equal bytes."""
    rows: dict[str, Any] = to_json(run)
    for step in rows["steps"]:
        step["seconds"] = {name: round(value, _DIGITS) for name, value in step["seconds"].items()}
        step["groups"] = [[_episode_to_row(episode) for episode in group] for group in step["groups"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0))


def _episode_to_row(episode: Mapping[str, Any]) -> list[Any]:
    """An episode as a list, and each turn as one: in a file of many, names would be most of it."""
    turns = [
        [t["prompt"], t["sampled"], round(t["engine"], _DIGITS), round(t["world"], _DIGITS)] for t in episode["turns"]
    ]
    return [round(episode["opening"], _DIGITS), round(episode["verdict"], _DIGITS), episode["reward"], turns]


def _run_from_rows(rows: dict[str, Any]) -> RunTimes:
    for step in rows["steps"]:
        step["groups"] = [
            [
                {
                    "opening": opening,
                    "verdict": verdict,
                    "reward": reward,
                    "turns": [dict(zip(("prompt", "sampled", "engine", "world"), turn, strict=True)) for turn in turns],
                }
                for opening, verdict, reward, turns in group
            ]
            for group in step["groups"]
        ]
    found: RunTimes = from_json(RunTimes, rows)
    return found


def _read_step(folder: Path, record: Mapping[str, Any]) -> StepTimes:
    """The times of a step, from its record in metrics.jsonl and its episodes."""
    groups: dict[str, list[EpisodeTimes]] = {}
    for episode in read_episodes(folder / "episodes" / f"{record['step']:06d}.jsonl.gz"):
        if episode["outcome"] not in INFRASTRUCTURE:
            # An episode's id is STEP-TASK-SAMPLE.
            groups.setdefault(episode["episode"].split("-")[1], []).append(_read_episode(episode))
    return StepTimes(record["seconds"], "evolution" in record, tuple(map(tuple, groups.values())))


def _read_episode(record: Mapping[str, Any]) -> EpisodeTimes:
    return EpisodeTimes(
        record.get("opening_seconds", 0.0),
        record.get("verdict_seconds", 0.0),
        record["reward"],
        tuple(_read_turns(record["turns"])),
    )


def _read_turns(turns: Sequence[Mapping[str, Any]]) -> Iterable[TurnTimes]:
    for turn in turns:
        if turn["action_tokens"]:
            yield TurnTimes(
                len(turn["prompt_tokens"]),
                len(turn["action_tokens"]),
                turn["engine_seconds"],
                turn["environment_seconds"],
            )
