"""Preflight: builds and checks every part of a run in seconds, and trains nothing."""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cojax import warm_start
from cojax.compile.programs import describe_in_one_line, report
from cojax.compile.targets import find_chip
from cojax.environment import play, traits_of
from cojax.environment.replay import follow
from cojax.explorer import Metered
from cojax.explorer.llm.chat_model import Journal
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.learner.advantages import spread_entries
from cojax.learner.batch import RowShape
from cojax.learner.placement import Placement
from cojax.learner.rehearsal import rehearse
from cojax.report.console import CONSOLE
from cojax.rollout.chat import PolicyActors
from cojax.rollout.engine import Weights
from cojax.rollout.sglang.client import MEMORY_FILE
from cojax.run import assemble, checks, explorers, initial_policy, methods, processes
from cojax.run.parts import Parts, make_sampling
from cojax.run.policies import settle_model
from cojax.run.processes import ALONE, Together, read_params
from cojax.run.states import find_initial_tasks, hold_second_agent
from cojax.storage.files import list_missing_folders, read_json, remove_empty_folders, write_json
from cojax.synthesis import Interrupted
from cojax.types import Group, Message, Task

_D0_TIMEOUT_S = 60.0
_MAX_VERSIONS = 3  # the most versions of the weights on disk at once, while a server takes a new one
_MAX_LOG_BYTES = 200 * 2**20


def run_preflight(config: ConfigDict, together: Together = ALONE) -> int:
    """Runs every examination, prints a line for each, and returns 0 if all pass, else 1."""
    results: dict[str, Any] = {"together": together}
    config = methods.apply_method(settle_model(config))
    weights_folder = Path(config.sglang.folder or config.workdir).absolute()
    # The workdir may hold a run. Servers that follow read only the folder that they were started with.
    scratch_folder = None if config.sglang.follow else weights_folder / f".check-{secrets.token_hex(8)}"
    missing_ancestors = list_missing_folders(weights_folder)
    if scratch_folder is not None:
        config.sglang.folder = str(scratch_folder)
        _copy_notes(weights_folder, scratch_folder)
    has_failure = False
    for examine in EXAMINATIONS:
        examination_name = examine.__name__.removeprefix("_")
        try:
            CONSOLE.print(f"ok      {examination_name}: {examine(config, results)}")
        except Exception as error:
            has_failure = True
            CONSOLE.print(f"failed  {examination_name}: {error}", style="bold red")
            if examination_name == "configuration":
                break
    if "parts" in results:
        results["parts"].engine.close()
    if scratch_folder is not None:
        _copy_notes(scratch_folder, weights_folder)
        shutil.rmtree(scratch_folder, ignore_errors=True)
    remove_empty_folders(missing_ancestors)
    return int(has_failure)


def _copy_notes(source: Path, target: Path) -> None:
    """Copies the notes of servers that a killed run left asleep: the check wakes them, and updates the notes."""
    # The examination that needs the file reports one that cannot be read or written.
    with contextlib.suppress(OSError, ValueError):
        write_json(target / MEMORY_FILE, read_json(source / MEMORY_FILE))


def _require_result(results: dict[str, Any], key: str, noun: str) -> Any:
    """Returns what an earlier examination left in `results`. Raises ValueError if that one failed."""
    if key not in results:
        raise ValueError(f"not tried, as there is no {noun}")
    return results[key]


def _pick_task(parts: Parts) -> Task:
    """Returns a development or evaluation task, or a bare setup if there is none."""
    candidates = parts.development or parts.evaluation or parts.environment.tasks("seed", 1)
    if not candidates:
        raise ValueError(f"environment {parts.environment.name!r} has neither tasks nor setups (the split seed)")
    return candidates[0]


def _configuration(config: ConfigDict, results: dict[str, Any]) -> str:
    checks.check_run(config)
    parts = results["parts"] = assemble.build_parts(config, results["together"])
    devices_text = processes.describe_devices(Placement(parts.model, parts.mesh).devices, jax.devices())
    policy_text = f"preset {config.policy}, " if config.policy else ""
    return f"{policy_text}{parts.environment.name}, {config.evolve}, {config.steps} steps on {devices_text}"


def _environment(config: ConfigDict, results: dict[str, Any]) -> str:
    parts: Parts = results["parts"]
    task = _pick_task(parts)
    if not task.solution:
        return f"{len(parts.evaluation)} evaluation tasks; no solutions to replay"
    trajectory = play(parts.environment, task, follow(task.solution), max_turns=len(task.solution))
    if trajectory.reward < 1.0:
        raise ValueError(
            f"the solution of task {task.id} earns {trajectory.reward:g} ({trajectory.outcome} {trajectory.error}); "
            f"expected 1. Run python -m environments.check {parts.environment.name}"
        )
    return f"{len(parts.evaluation)} evaluation tasks; a solution of {len(task.solution)} actions replays with reward 1"


def _template(config: ConfigDict, results: dict[str, Any]) -> str:
    parts: Parts = results["parts"]
    episode = parts.environment.start(_pick_task(parts))
    ids = parts.chat.open(episode.reset(), episode.tools())
    episode.close()
    if len(ids) >= config.engine.max_length:
        raise ValueError(
            f"an episode opens with {len(ids)} tokens, engine.max_length is {config.engine.max_length}: no room to "
            "act. Raise engine.max_length and learner.row_length, or cut the documentation by model.tools=brief"
        )
    tokens_text = f"{len(parts.chat.tokenizer)} tokens, extends turn by turn; an episode opens with {len(ids)} tokens"
    return "; ".join((tokens_text, f"tools shown: {config.model.tools}", *parts.chat.notes))


def _policy(config: ConfigDict, results: dict[str, Any]) -> str:
    parts: Parts = results["parts"]
    origin_text = f"from {config.model.path}" if config.model.path else "random parameters"
    params = read_params(parts.together, config.model.path, parts.model, config.seed, parts.mesh)
    if config.warm_start.steps:
        # Without noise. Raises if nothing can be learned from. Initial tasks yet to be synthesized will have solutions.
        if config.warm_start.split != initial_policy.INITIAL_SPLIT or traits_of(parts.environment).incomparable:
            initial_policy.find_demonstrations(
                config, parts.environment, (0.0, 0.0), lambda: assemble.find_initial_tasks(config, parts).tasks
            )
        folder_text = f"{origin_text}, " if config.model.path else ""
        origin_text = f"{folder_text}to be warm-started on {config.warm_start.split or 'demonstrations'}"
    results["params"] = params
    parameter_count = results["count"] = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    return f"{parameter_count:,} parameters, {origin_text}"


def _engine(config: ConfigDict, results: dict[str, Any]) -> str:
    parts: Parts = results["parts"]
    learner = assemble.build_learner(config, parts, _require_result(results, "params", "policy"))
    train_state = results["train_state"] = learner.init(results.pop("params"), config.seed)
    learner = results["learner"] = assemble.choose_remat(config, learner, train_state)
    weights: Weights = learner.weights(train_state, 0)
    parts.engine.load(weights)
    policy_sampling = make_sampling(config, parts.chat, config.sampling.temperature)
    actor = PolicyActors(parts.engine, parts.chat, policy_sampling)("preflight", (config.seed,))
    trajectory = play(parts.environment, _pick_task(parts), actor, max_turns=2)
    parts.engine.release("preflight")
    if not trajectory.valid:
        raise ValueError(f"an episode ended in {trajectory.outcome}: {trajectory.error}")
    results["episode"] = trajectory
    token_count = sum(len(turn.action_tokens) for turn in trajectory.turns)
    return f"{config.engine.name} sampled {token_count} tokens in {len(trajectory.turns)} turns"


def _objective(config: ConfigDict, results: dict[str, Any]) -> str:
    """Makes the batch of a group that repeats one episode, with reward 1 every second time.

    Its micro-batch is no larger than the group needs. `_memory` tests whether a full one fits.
    """
    episode, learner = _require_result(results, "episode", "episode"), results["learner"]
    copies = tuple(dataclasses.replace(episode, reward=float(repeat % 2)) for repeat in range(config.group_size))
    try:
        spread_entries(learner.objective.advantage(copies), copies)
    except Exception as error:  # a function may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"advantage {learner.advantage!r} was tried and failed: {reason}") from error
    group = Group(episode.task, copies)
    token_total = sum(len(turn.prompt_tokens) + len(turn.action_tokens) for turn in episode.turns)
    full = learner.shape
    shape = RowShape(min(full.length, token_total * config.group_size), min(full.micro, config.group_size), full.routes)
    batches, _ = learner.objective.pack_batches([group], (config.seed, 0), shape)
    token_count = sum(int((batch.weights > 0).sum()) for batch in batches)
    return f"{learner.loss} would learn from {token_count} tokens of {config.group_size} such episodes"


def _explorer(config: ConfigDict, results: dict[str, Any]) -> str:
    # Not the journal in the workdir, which is the run's.
    explorer = assemble.build_explorer(config, results["parts"], journal=Journal())
    assemble.build_validation(config, results["parts"], explorer)
    describe_initial = functools.partial(_describe_initial_tasks, config, results["parts"])
    if not isinstance(explorer, LLMExplorer):
        return f"{explorer.name}, without a model{describe_initial()}"
    # With a schema, as in most calls of an evolution, because an endpoint may refuse it.
    message, schema = Message("user", 'Answer with {"word": "hello"}.'), {"type": "object"}
    reply = explorer.chat_model.reply(
        [message], budget=explorer.remaining_budget(), seed=config.seed, place="preflight", schema=schema
    )
    return f"{explorer.name} answered with {len(reply.text)} characters{describe_initial()}"


def _describe_initial_tasks(config: ConfigDict, parts: Parts) -> str:
    """What D_0 leaves out, in words, where no model finds it. Raises ValueError if it cannot be found."""
    if isinstance(assemble.build_explorer(config, parts, explorers.name_initial(config), Journal()), Metered):
        return ""
    deadline = time.monotonic() + _D0_TIMEOUT_S
    try:
        synthesis, _ = find_initial_tasks(config, parts, lambda: time.monotonic() > deadline)
    except Interrupted:
        return f"; D_0 was not found within {_D0_TIMEOUT_S:g} s"
    gaps = assemble.word_absent_tools(parts.environment, synthesis.tasks)
    return f"; D_0 has {len(synthesis.tasks)} tasks{gaps and f'; {gaps}'}"


def _programs(config: ConfigDict, results: dict[str, Any]) -> str:
    """Examines a step's programs by experiments.compile, for these accelerators. `_memory` runs them next."""
    train_state, learner = _require_result(results, "train_state", "policy"), results["learner"]
    if jax.process_count() > 1:
        return "not examined: compiled by all processes together, in the rehearsal"
    if (chip := find_chip(learner.placement.devices)) is None:
        kind = learner.placement.devices[0].device_kind
        return f"no forecast is needed for {kind!r}: the next part runs an update"
    group_sizes, agent_count = methods.list_group_sizes(config), methods.agents(config)
    return describe_in_one_line(report(learner, train_state, group_sizes, chip, agents=agent_count))


def _memory(config: ConfigDict, results: dict[str, Any]) -> str:
    train_state, learner = _require_result(results, "train_state", "policy"), results["learner"]
    del results["train_state"]
    results["saved"] = sum(leaf.nbytes for leaf in jax.tree.leaves(train_state)) * methods.agents(config)
    with hold_second_agent(config, learner, train_state):
        rehearse(learner, train_state, methods.list_group_sizes(config))
    return f"an update of {learner.micro_rows} × {learner.row_length} tokens at a time fits, remat {learner.remat}"


def _disk(config: ConfigDict, results: dict[str, Any]) -> str:
    workdir = Path(config.workdir).absolute()
    _check_writable(workdir)
    _check_writable(warm_start.find_cache())
    # A new checkpoint is written before the oldest is deleted.
    bytes_by_folder = {workdir: results.get("saved", 0) * (config.checkpoints_kept + 1) + _MAX_LOG_BYTES}
    if config.engine.name == "sglang":
        # A folder on the workdir's own file system adds to what the workdir needs.
        folder = Path(config.sglang.folder or config.workdir).absolute()
        _check_writable(folder)
        target = workdir if _find_ancestor(folder).stat().st_dev == _find_ancestor(workdir).stat().st_dev else folder
        dtype_bytes = np.dtype(config.sglang.dtype or results["parts"].model.dtype).itemsize
        bytes_by_folder[target] = bytes_by_folder.get(target, 0) + results.get("count", 0) * dtype_bytes * _MAX_VERSIONS
    return "; ".join(_describe_free_space(folder, needed) for folder, needed in bytes_by_folder.items())


def _describe_free_space(folder: Path, need: int) -> str:
    """The free and the needed space of the folder's file system. Raises OSError if there is too little."""
    free = shutil.disk_usage(_find_ancestor(folder)).free
    if free < need:
        raise OSError(f"{free / 2**30:.1f} GiB free under {folder}, {need / 2**30:.1f} GiB needed; free some space")
    return f"{free / 2**30:.0f} GiB free under {folder}, {need / 2**30:.1f} GiB needed"


def _metrics(config: ConfigDict, results: dict[str, Any]) -> str:
    if not config.wandb.project:
        return "metrics.jsonl and TensorBoard"
    if importlib.util.find_spec("wandb") is None:
        raise ModuleNotFoundError("wandb.project is set but wandb is not installed; run `pip install wandb`")
    return f"metrics.jsonl, TensorBoard and W&B project {config.wandb.project}"


def _find_ancestor(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _check_writable(folder: Path) -> None:
    ancestor = _find_ancestor(folder)
    if not (ancestor.is_dir() and os.access(ancestor, os.W_OK)):
        raise OSError(f"cannot write {folder}: {ancestor} is not a writable folder. Choose another one.")


# The order matters: each may read what those before it left in `results`.
EXAMINATIONS: tuple[Callable[[ConfigDict, dict[str, Any]], str], ...] = (
    _configuration, _environment, _template, _policy, _engine, _objective, _explorer, _programs, _memory, _disk,
    _metrics,
)  # fmt: skip
