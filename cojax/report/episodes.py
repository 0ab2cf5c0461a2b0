"""Selects and shortens the episodes that the page shows: a few megabytes from a run of any length."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from cojax.report.lineage import VisitIndex, task_id_of
from cojax.report.run import Json, Run
from cojax.storage.files import StorageError

SAMPLED = 400  # episodes sampled evenly over the steps, besides the sources of lineages
PER_STEP = 6
BYTES = 1_500_000  # of sources and of samples, each
MESSAGE = 1_500  # characters of one message
TOKENS = 2_000  # tokens of one action

Words = Callable[[Sequence[int]], list[str]]  # token ids → the text of each


@dataclasses.dataclass(frozen=True)
class Selection:
    """The episodes shown, oldest first; the number of all stored; source episodes of lineages, shown and in all."""

    episodes: tuple[Json, ...]
    total: int
    sources: int
    sources_total: int


def select(run: Run, sources: Collection[str], visits: VisitIndex) -> Selection:
    """Reads every stored episode once, counts it into `visits`, and selects those for the page.

    They are the source episodes of lineages, and up to six episodes of evenly spaced steps, as unlike each other as the
    step allows.
    """
    words = words_of(run.folder)
    evidence = {(signal["episode"], signal["kind"]): signal["evidence"] for signal in run.signals}
    steps = run.episodes.steps()
    stride = max(1, -(-len(steps) // SAMPLED))
    quota = min(PER_STEP, max(1, SAMPLED // max(1, len(steps))))
    origins, samples, total = [], [], 0
    for index, step in enumerate(steps):
        others = []
        for episode in run.episodes.read(step):
            total += 1
            task = task_id_of(episode)
            visits.add(task, step, episode)
            if episode["episode"] in sources:
                origins.append(compact(episode, task, step, words))
            elif index % stride == 0:
                others.append((task, episode))
        samples += [compact(episode, task, step, words) for task, episode in pick_varied(others, quota)]
    kept = pick_within(origins, BYTES)
    shown = sorted([*kept, *pick_within(samples, BYTES)], key=lambda episode: (episode["step"], episode["id"]))
    for episode in shown:
        episode["signals"] = [[kind, evidence.get((episode["id"], kind), "")] for kind in episode["signals"]]
    return Selection(tuple(shown), total, len(kept), len(origins))


def pairs(run: Run) -> list[Json]:
    """The evaluation tasks that were played before training and after it, with both episodes, in the order played.

    Where they take more than BYTES, some are left out, evenly.
    """
    words = words_of(run.folder)
    after = {task_id_of(episode): episode for episode in run.after}
    found = [
        {"before": compact(before, task, 0, words), "after": compact(after[task], task, 0, words)}
        for before in run.before
        if (task := task_id_of(before)) in after
    ]
    return pick_within(found, BYTES)


def pick_varied(episodes: Iterable[tuple[str, Json]], count: int) -> list[tuple[str, Json]]:
    """Up to `count` of a step's episodes, in turn from each kind: outcome, success or not, signals."""
    kinds: dict[tuple[str, bool, tuple[str, ...]], list[tuple[str, Json]]] = defaultdict(list)
    for task, episode in episodes:
        kinds[episode["outcome"], episode["reward"] >= 1.0, tuple(episode.get("signals", ()))].append((task, episode))
    ranked = [(place, kind, item) for kind, items in kinds.items() for place, item in enumerate(items)]
    return [item for _, _, item in sorted(ranked, key=lambda entry: entry[:2])[:count]]


def pick_within(items: Sequence[Json], limit: int) -> list[Json]:
    """Evenly spaced items whose JSON takes at most `limit` bytes."""
    sizes = [len(json.dumps(item)) for item in items]
    share = min(1.0, limit / max(1, sum(sizes)))
    kept, used = [], 0
    for index, (item, size) in enumerate(zip(items, sizes, strict=True)):
        if int((index + 1) * share) > int(index * share) and used + size <= limit:
            kept.append(item)
            used += size
    return kept


def compact(episode: Json, task: str, step: int, words: Words | None) -> Json:
    """An episode as the page shows it: long texts cut, and tokens as text where the run keeps its tokenizer."""
    checks = [[check["name"], check["passed"]] for check in episode["checks"]]
    return {
        "id": episode["episode"],
        "step": step,
        "task": task,
        "query": _cut(episode["task"]["query"]),
        "origin": episode["task"]["origin"],
        "outcome": episode["outcome"],
        "error": _cut(episode["error"]),
        "reward": episode["reward"],
        "checks": checks,
        "signals": episode.get("signals", []),
        "agent": episode.get("agent", ""),
        "opening": _messages(episode["opening"]),
        "turns": [_turn(turn, words) for turn in episode["turns"]],
    }


def _turn(turn: Json, words: Words | None) -> Json:
    tokens = turn["action_tokens"][:TOKENS]
    return {
        "text": _cut(turn["action"]["text"]),
        "calls": [[call["name"], call["arguments"]] for call in turn["action"]["calls"]],
        "error": turn["action"]["error"],
        "words": words(tokens) if words else [],
        "logprobs": [round(value, 3) for value in turn["action_logprobs"][:TOKENS]],
        "tokens": len(turn["action_tokens"]),
        "prompt": len(turn["prompt_tokens"]),
        "messages": _messages(turn["observation"]["messages"]),
        "ok": turn["observation"]["ok"],
        "weights": turn["weights_version"],
    }


def _messages(messages: Iterable[Json]) -> list[list[str]]:
    return [[message["role"], _cut(message["content"])] for message in messages]


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]} … [{len(text) - MESSAGE} characters more]"


def words_of(folder: Path) -> Words | None:
    """Decodes single tokens; None where the run directory holds no tokenizer. Raises StorageError for a damaged one."""
    paths = [folder / name for name in ("tokenizer.json", "tokenizer/tokenizer.json") if (folder / name).exists()]
    if not paths:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(paths[0]))
    except Exception as error:  # the package raises no other type
        raise StorageError(f"{paths[0]} cannot be read ({error}). Restore it from a copy, or delete it.") from error
    return lambda tokens: [tokenizer.decode([token], skip_special_tokens=False) for token in tokens]
