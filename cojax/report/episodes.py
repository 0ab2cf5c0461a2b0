"""The episodes that the page shows, selected and shortened to a few megabytes, and what became of every stored one."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cojax.learner.advantages import ADVANTAGES
from cojax.report.lineage import Rewards, add_visit, find_task_id
from cojax.report.pieces import Pieces, name_steps_piece
from cojax.report.run import Json, Run, begin_text, cut_text
from cojax.storage.files import StorageError, read_whole
from cojax.types import INFRASTRUCTURE, Action, Observation, Task, Trajectory, Turn

MAX_SAMPLES = 400  # episodes sampled evenly over the steps, besides the sources of lineages
MAX_PER_STEP = 6
MAX_BYTES = 1_000_000  # of sources, of samples and of pairs, each
MAX_INLINE_BYTES = 2_000_000  # up to so many bytes, all episodes of a run are in the page
MAX_MESSAGE_CHARACTERS = 1_500  # characters of one message
MAX_CALL_CHARACTERS = 4_000  # characters of the arguments of one call
MAX_ACTION_TOKENS = 2_000  # tokens of one action

MAX_INDEX_BYTES = 2_500_000  # bytes of all groups in one page
MAX_QUERY = 300  # characters of a query
ADVANTAGE_DIGITS = 3  # of an advantage

Advantages = Callable[[Sequence[Json]], list[Any]]  # a group's episodes → a number each, one for each turn, or None
TokenDecoder = Callable[[Sequence[int]], list[str]]  # token ids → the text of each


def make_page_form(run: Run) -> Callable[[Json, str, int], Json]:
    """(an episode of the run, the id of its task, its step) → the episode as the page shows it."""
    decode = make_decoder(run.folder)
    evidence_by_signal = {(signal["episode"], signal["kind"]): signal["evidence"] for signal in run.signals}

    def build_view(episode: Json, task_id: str, step: int) -> Json:
        view = compact(episode, task_id, step, decode)
        return {**view, "signals": [[kind, evidence_by_signal.get((view["id"], kind), "")] for kind in view["signals"]]}

    return build_view


def pick(run: Run, sources: Collection[str], index: "EpisodeIndex", pieces: Pieces) -> tuple[list[Json], list[int]]:
    """Reads every stored episode once, adds it to `index`, and selects those for the page, oldest first.

    Returns the selection, and the numbers of source episodes of lineages that it holds and that the run stored.

    All are selected if they take at most MAX_INLINE_BYTES. Otherwise the selection holds the source episodes of
    lineages, and of evenly spaced steps up to six episodes that are as varied as possible; `pieces` gets every step.
    """
    shape, compute_advantages = make_page_form(run), make_advantages(run)
    steps = run.episodes.list_steps()
    stride = max(1, -(-len(steps) // MAX_SAMPLES))
    quota = min(MAX_PER_STEP, max(1, MAX_SAMPLES // max(1, len(steps))))
    source_views: list[Json] = []
    samples: list[Json] = []
    views_by_step: dict[int, list[Json]] | None = {}  # None once they take more than the page has room for
    used_bytes = 0
    for position, step in enumerate(steps):
        episodes = run.episodes.read(step)
        tasks = index.add(step, episodes, compute_advantages)
        views = {episode["episode"]: shape(episode, task, step) for task, episode in zip(tasks, episodes, strict=True)}
        if views_by_step is not None:
            views_by_step[step] = list(views.values())
            used_bytes += sum(len(json.dumps(view)) for view in views.values())
            if used_bytes > MAX_INLINE_BYTES:
                for earlier_step, step_views in views_by_step.items():
                    pieces.put(name_steps_piece(earlier_step), step_views)
                views_by_step = None
        else:
            pieces.put(name_steps_piece(step), list(views.values()))
        source_views += [views[episode_id] for episode_id in views if episode_id in sources]
        if position % stride == 0:
            other_episodes = (episode for episode in episodes if episode["episode"] not in sources)
            samples += [views[episode["episode"]] for episode in pick_varied(other_episodes, quota)]
    if views_by_step is not None:
        origins, selection = source_views, [view for step_views in views_by_step.values() for view in step_views]
    else:
        origins = pick_within(source_views, MAX_BYTES)
        selection = sorted(
            [*origins, *pick_within(samples, MAX_BYTES)], key=lambda episode: (episode["step"], episode["id"])
        )
    return selection, [len(origins), len(source_views)]


def follow(run: Run, index: "EpisodeIndex") -> None:
    """Reads the steps that `index` does not have yet."""
    compute_advantages = make_advantages(run)
    for step in run.episodes.list_steps():
        if step not in index.steps:
            index.add(step, run.episodes.read(step), compute_advantages)


def pair_up(run: Run) -> list[Json]:
    """The evaluation tasks that were played both before and after training, with both episodes, in the order played.

    If they take more than MAX_BYTES, some are left out, evenly.
    """
    decode = make_decoder(run.folder)
    after_by_task = {find_task_id(episode): episode for episode in run.after}
    episode_pairs = [
        {"before": compact(before, task_id, 0, decode), "after": compact(after_by_task[task_id], task_id, 0, decode)}
        for before in run.before
        if (task_id := find_task_id(before)) in after_by_task
    ]
    return pick_within(episode_pairs, MAX_BYTES)


def pick_varied(episodes: Iterable[Json], count: int) -> list[Json]:
    """Picks up to `count` of a step's episodes, in turn from each kind: outcome, success or failure, and signals."""
    groups: dict[tuple[str, bool, tuple[str, ...]], list[Json]] = defaultdict(list)
    for episode in episodes:
        groups[episode["outcome"], episode["reward"] >= 1.0, tuple(episode.get("signals", ()))].append(episode)
    entries = [(rank, kind, episode) for kind, group in groups.items() for rank, episode in enumerate(group)]
    return [episode for _, _, episode in sorted(entries, key=lambda ranked_episode: ranked_episode[:2])[:count]]


def pick_within(items: Sequence[Any], max_bytes: int) -> list[Any]:
    """Picks evenly spaced items whose JSON takes at most `max_bytes` bytes."""
    sizes = [len(json.dumps(item)) for item in items]
    share = min(1.0, max_bytes / max(1, sum(sizes)))
    chosen_items, used_bytes = [], 0
    for index, (item, size) in enumerate(zip(items, sizes, strict=True)):
        if int((index + 1) * share) > int(index * share) and used_bytes + size <= max_bytes:
            chosen_items.append(item)
            used_bytes += size
    return chosen_items


def compact(episode: Json, task_id: str, step: int, decode: TokenDecoder | None) -> Json:
    """An episode as the page shows it: long texts cut, and tokens as text if the run keeps its tokenizer."""
    return {
        "id": episode["episode"],
        "step": step,
        "task": task_id,
        "query": cut_text(episode["task"]["query"], MAX_MESSAGE_CHARACTERS),
        "origin": episode["task"]["origin"],
        "outcome": episode["outcome"],
        "error": cut_text(episode["error"], MAX_MESSAGE_CHARACTERS),
        "reward": episode["reward"],
        "checks": [[check["name"], check["passed"]] for check in episode["checks"]],
        "signals": episode.get("signals", []),
        "agent": episode.get("agent", ""),
        "opening": _compact_messages(episode["opening"]),
        "turns": [_compact_turn(turn, decode) for turn in episode["turns"]],
    }


def _compact_turn(turn: Json, decode: TokenDecoder | None) -> Json:
    token_ids = turn["action_tokens"][:MAX_ACTION_TOKENS]
    return {
        "text": cut_text(turn["action"]["text"], MAX_MESSAGE_CHARACTERS),
        "calls": [[call["name"], _compact_arguments(call["arguments"])] for call in turn["action"]["calls"]],
        "error": turn["action"]["error"],
        "words": decode(token_ids) if decode else [],
        "logprobs": [round(logprob, 3) for logprob in turn["action_logprobs"][:MAX_ACTION_TOKENS]],
        "tokens": len(turn["action_tokens"]),
        "prompt": len(turn["prompt_tokens"]),
        "messages": _compact_messages(turn["observation"]["messages"]),
        "ok": turn["observation"]["ok"],
        "weights": turn["weights_version"],
    }


def _compact_arguments(values: Json) -> Json:
    """The arguments of a call; if they are long, the text of each is cut."""
    if len(json.dumps(values)) <= MAX_CALL_CHARACTERS:
        return values
    max_characters = max(80, MAX_CALL_CHARACTERS // len(values))
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in list(values.items())[:40]}
    return {cut_text(name, 80): cut_text(content, max_characters) for name, content in texts.items()}


def _compact_messages(messages: Iterable[Json]) -> list[list[str]]:
    return [[message["role"], cut_text(message["content"], MAX_MESSAGE_CHARACTERS)] for message in messages]


def make_decoder(folder: Path) -> TokenDecoder | None:
    """A decoder of single tokens; None if the run directory has no tokenizer. Raises StorageError for a damaged one."""
    paths = [folder / name for name in ("tokenizer.json", "tokenizer/tokenizer.json") if (folder / name).exists()]
    if not paths:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(read_whole(paths[0]))
    except StorageError:
        raise
    except Exception as error:  # the package raises no other type
        raise StorageError(f"{paths[0]} cannot be read ({error}). Restore it from a copy, or delete it.") from error
    return lambda tokens: [tokenizer.decode([token], skip_special_tokens=False) for token in tokens]


def make_advantages(run: Run) -> Advantages | None:
    """The advantage that the run was trained with, as its config.json names it.

    None for a user's own advantage, whose code a report does not run, and for a run that learns from preferences.
    """
    learner_section = run.config.get("config", {}).get("learner") or {}
    code_entry = run.config.get("code", {}).get("learner.advantage") or {}
    advantage_name = str(code_entry.get("name") or learner_section.get("advantage"))
    if advantage_name not in ADVANTAGES or any("preference" in record for record in run.metrics):
        return None
    settings = code_entry.get("settings") or learner_section.get("advantage_settings") or {}
    return lambda episodes: _list_advantages(ADVANTAGES[advantage_name], settings, episodes)


def _list_advantages(advantage: Callable[..., Any], settings: Mapping[str, Any], episodes: Sequence[Json]) -> list[Any]:
    """One entry for each episode; None for one that is masked, lost, or the only valid one."""
    valid_indices = [index for index, episode in enumerate(episodes) if episode["outcome"] not in INFRASTRUCTURE]
    rounded_values: list[Any] = [None] * len(episodes)
    if len(valid_indices) < 2:
        return rounded_values
    try:
        values = advantage([_to_trajectory(episodes[index]) for index in valid_indices], **settings)
    except (TypeError, ValueError):  # settings of another version
        return rounded_values
    masks = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else np.zeros(len(valid_indices), bool)
    for index, episode_advantage, value_mask in zip(valid_indices, values, masks, strict=True):
        rounded_values[index] = None if np.any(value_mask) else _round_advantage(episode_advantage)
    return rounded_values


def _round_advantage(value: Any) -> Any:
    array = np.asarray(value, np.float64)
    if array.ndim == 0:
        return round(float(array), ADVANTAGE_DIGITS) + 0.0
    return [round(float(np.mean(turn_values)), ADVANTAGE_DIGITS) + 0.0 for turn_values in array]


def _to_trajectory(episode: Json) -> Trajectory:
    """The part of an episode that an advantage reads: its reward and outcome, and its turns without their texts."""
    turns = (
        Turn(Action(), Observation(ok=turn["observation"]["ok"]), action_tokens=tuple(turn["action_tokens"]))
        for turn in episode["turns"]
    )
    task, reward, outcome = Task("", "", {}), episode["reward"], episode["outcome"]
    return Trajectory(task, episode["episode"], turns=tuple(turns), reward=reward, outcome=outcome)


class EpisodeIndex:
    """The groups of the steps that were added, and the rewards of their tasks.

    A row of `steps` is a group in columns, by sample. A column that holds only its default is left out:

    t  the number of its task in `tasks`     r  rewards                    k  numbers of turns
    n  names, default 0, 1, 2, …; a name is what follows "STEP-TASK-" in the episode's id, or the whole id
    o  outcomes, default "finished"          s  kinds of signal, default none
    v  advantages, default 0                 a  the agent of the whole group, default the policy
    """

    def __init__(self) -> None:
        self.rewards: Rewards = {}
        self.steps: dict[int, list[Json]] = {}
        self.tasks: list[list[str]] = []  # id, query, origin
        self._number_by_task: dict[str, int] = {}

    def add(self, step: int, episodes: Sequence[Json], advantages: Advantages | None) -> list[str]:
        """Adds the episodes of a step and returns the task id of each."""
        id_by_stem: dict[str, str] = {}
        groups: dict[tuple[str, str], list[Json]] = {}
        task_ids = []
        for episode in episodes:
            # Episodes of a group have the same name but for the sample; their task is hashed once.
            stem = episode["episode"].rpartition("-")[0] or episode["episode"]
            task_id = id_by_stem[stem] if stem in id_by_stem else id_by_stem.setdefault(stem, find_task_id(episode))
            task_ids.append(task_id)
            add_visit(self.rewards, task_id, step, episode)
            groups.setdefault((task_id, episode.get("agent", "")), []).append(episode)
        self.steps[step] = [
            self._row(step, task_id, agent, group, None if agent else advantages)
            for (task_id, agent), group in groups.items()
        ]
        return task_ids

    def _row(self, step: int, task_id: str, agent: str, group: Sequence[Json], advantages: Advantages | None) -> Json:
        prefix = f"{step}-{task_id}-"
        names: list[Any] = []
        for episode in group:
            sample = episode["episode"].removeprefix(prefix)
            names.append(int(sample) if sample.isdecimal() and str(int(sample)) == sample else episode["episode"])
        row = {
            "t": self._number_task(task_id, group[0]),
            "r": [round(episode["reward"], 4) for episode in group],
            "k": [len(episode["turns"]) for episode in group],
        }
        group_values = advantages(group) if advantages else [0] * len(group)
        columns = {
            "n": (names, list(range(len(group)))),
            "o": ([episode["outcome"] for episode in group], ["finished"] * len(group)),
            "s": ([episode.get("signals", []) for episode in group], [[]] * len(group)),
            "v": (group_values, [0] * len(group)),
        }
        row |= {sample: column for sample, (column, default) in columns.items() if column != default}
        return row | ({"a": agent} if agent else {})

    def _number_task(self, task_id: str, episode: Json) -> int:
        if task_id not in self._number_by_task:
            self._number_by_task[task_id] = len(self.tasks)
            self.tasks.append([task_id, begin_text(episode["task"]["query"], MAX_QUERY), episode["task"]["origin"]])
        return self._number_by_task[task_id]

    @property
    def group_count(self) -> int:
        return sum(len(group["r"]) for groups in self.steps.values() for group in groups)

    def build_index(self) -> Json:
        """The tasks, and the groups by step. Steps are left out evenly if they take more than MAX_INDEX_BYTES."""
        steps = pick_within([[step, self.steps[step]] for step in sorted(self.steps)], MAX_INDEX_BYTES)
        task_numbers = {row["t"] for _, rows in steps for row in rows}
        tasks = [task if number in task_numbers else [task[0], "", task[2]] for number, task in enumerate(self.tasks)]
        return {"tasks": tasks, "steps": steps}
