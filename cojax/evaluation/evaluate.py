"""Evaluates one policy: plays the tasks of splits, scores them, and writes the evaluation's folder.

The policy, a `Subject`, is a checkpoint of a run, a model folder, or a chat endpoint.
"""

import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax import worlds
from cojax.environment import Environment
from cojax.host.processes import end_all, end_descendants_at_exit, tell_owner
from cojax.policy.config import ModelConfig
from cojax.report.console import CONSOLE, show_bar, show_evaluation
from cojax.report.page import write_evaluation_report
from cojax.rollout.chat import TOOL_DOCUMENTS, Actors, Chat, PolicyActors
from cojax.rollout.collect import EpisodeCollector
from cojax.rollout.export import other_model, write_tokenizer
from cojax.run import engines, entries, parts, processes, trained
from cojax.run.configuration import read_configuration
from cojax.run.entries import entry
from cojax.run.machine import read_facts
from cojax.run.policies import announce
from cojax.run.processes import EXPECTED_ERRORS, describe_error, keep_programs, log_to
from cojax.run.states import read_held_out_of
from cojax.run.trained import read_origin
from cojax.scoring import describe, estimate_mean, make_kinds
from cojax.settings.presets import PRESETS
from cojax.settings.ranges import check_ranges
from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import expect_no_link, flat, is_number, write_json
from cojax.types import Group, Task, Trajectory, content_hash

_LOG = logging.getLogger("cojax")
_INTERVAL_NOTE = (
    "In brackets 95 % intervals: Wilson's score intervals over tasks, for TGC and SGC over scenarios, the unit that is "
    "drawn; they stay within 0 and 100 %, and keep their width where everything fails or succeeds."
)
# The sections and settings that decide the result of an evaluation.
_RESULT_SETTINGS = ("seed", "environment", "sampling.max_tokens", "limits.max_turns", "evaluation")
_MODEL_KEYS = ("model.tools", "engine.name", "engine.max_length", "engine.lanes", "engine.prefill_rows", "sglang.dtype")


# Settings of the section `model` that decide the arrays of a policy from scratch.
_SHAPE_SETTINGS = ("path", "tokenizer", "vocabulary")


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A policy to evaluate; `policy` is None behind an endpoint.

    `identity` holds, for config.json, what distinguishes it from every other. `name` can name a folder. `origin` is as
    in cojax/run/trained.py, empty behind an endpoint.
    """

    name: str
    identity: Mapping[str, Any]
    policy: trained.TrainedPolicy | None = None
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def subject_of_checkpoint(config: ConfigDict, workdir: Path, step: int | None) -> Subject:
    """The policy of a run at a step; by default that of its newest checkpoint.

    Raises CheckpointError if it cannot be read, ValueError if `config` describes another policy than the run's.
    """
    run_settings = trained.read_run_settings(workdir)
    _check_same_model(config, run_settings, workdir)
    # The model folder that the run began from may have moved since.
    is_moved = run_settings["model"]["path"] and not Path(run_settings["model"]["path"]).is_dir()
    policy = trained.of_run(workdir, step, config.model.path if is_moved and Path(config.model.path).is_dir() else "")
    if config.model.dtype not in ("", "auto"):  # the run's own
        policy = dataclasses.replace(policy, model=dataclasses.replace(policy.model, dtype=config.model.dtype))
    identity_fields = {"checkpoint": policy.step, "content": policy.content, "dtype": policy.model.dtype}
    return Subject(f"{policy.step}", identity_fields, policy, read_origin(workdir, policy.step))


def subject_of_folder(config: ConfigDict, folder: Path) -> Subject:
    """A model folder in HF format with tokenizer and template. Raises ValueError or OSError with the fix."""
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"--model {str(folder)!r} is no model folder in HF format (no config.json in it); get one, for example by "
            "`hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B`, or export a checkpoint with "
            "python -m experiments.export"
        )
    shape_config = config.copy_and_resolve_references()
    shape_config.learner.lora.rank = 0
    policy = trained.read_folder_policy(folder, trained.read_folder_shape(shape_config, folder))
    identity_fields = {"model": policy.content, "dtype": policy.model.dtype}
    return Subject(folder.resolve().name, identity_fields, policy, {"folder": str(folder.resolve())})


@contextlib.contextmanager
def open_actors(subject: Subject, config: ConfigDict, folder: Path) -> Iterator[Actors]:
    """The actors of a subject, with its own engine, which is closed at the end.

    Servers log into `folder`, and read the weights there unless sglang.folder names another one. The engine in this
    process has the number of slots in `folder`/engine.json, if there is one.
    """
    temperature = config.evaluation.temperature
    if subject.policy is None:
        # Imported here: without an endpoint no client is needed.
        from cojax.rollout.endpoint import EndpointActors, make_chat_endpoint

        address, model = subject.identity["endpoint"], subject.identity["model"]
        # It must end before the episode's own deadline.
        max_tokens, timeout_s = config.sampling.max_tokens, 0.9 * config.limits.engine_deadline
        yield EndpointActors(
            make_chat_endpoint(address, model, temperature=temperature, max_tokens=max_tokens, timeout_s=timeout_s)
        )
        return
    engine_config = config.copy_and_resolve_references()
    engine_config.workdir = str(folder)
    engine_config.learner.routes = "own"  # nothing learns from these episodes
    if engine_config.engine.name == "local":
        engine_config.engine.slots = choose_slots(engine_config, subject.policy.model, folder / "engine.json")
    engine = entry(config, "engine.name").function(engine_config, subject.policy.model)
    try:
        engine.load(subject.policy.weights())
        chat = Chat(subject.policy.tokenizer, TOOL_DOCUMENTS[config.model.tools])
        announce(chat, config.model.tools)
        yield PolicyActors(engine, chat, parts.make_sampling(config, chat, temperature))
    finally:
        engine.close()
        # The servers' copy is as large as the model.
        shutil.rmtree(folder / "weights", ignore_errors=True)


def choose_slots(config: ConfigDict, model: ModelConfig, file: Path) -> int:
    """engine.slots; if free memory decides it, the number with which the evaluation began."""
    return engines.keep_slots(
        config, file, file.exists(), lambda own: engines.choose_slot_count(own, model, trains=False), int
    )


def _check_same_model(config: ConfigDict, run_settings: Mapping[str, Any], workdir: Path) -> None:
    """Raises ValueError, which names the flags, if a configuration describes another policy than the run's."""
    model_section, run_section = flat(config.model.to_dict()), flat(run_settings["model"])
    keys = [*_SHAPE_SETTINGS, *(f"shape.{name}" for name in config.model.shape)]
    if model_section["path"] and run_section["path"]:
        # The same model may be in another folder on this machine.
        _check_same_shape(Path(model_section["path"]), Path(run_section["path"]), workdir)
        return
    if run_section.get("tokenizer") != "bytes":
        keys.remove("vocabulary")
    values, run_values = ({f"model.{name}": model.get(name) for name in keys} for model in (model_section, run_section))
    if values == run_values:
        return
    run_policy = run_settings.get("policy", "")
    preset = PRESETS.get(run_policy, {}) if run_policy != config.policy else {}
    flags = [f"--config.policy={run_policy}"] if preset else []
    flags += [
        f"--config.{name}={setting_value}"
        for name, setting_value in run_values.items()
        if setting_value != (preset[name] if name in preset else values[name])
    ]
    name = next(name for name in values if values[name] != run_values[name])
    raise ValueError(
        f"{workdir} was trained with another policy than --config describes: {name} is {run_values[name]!r} in its "
        f"config.json, {values[name]!r} here. Add {' '.join(flags)}"
    )


def _check_same_shape(folder: Path, run_folder: Path, workdir: Path) -> None:
    """Raises ValueError if two model folders differ in shape. The run's own record, if any, replaces its folder."""
    on_record = (workdir / "model.json").exists()
    if not folder.is_dir() or not (on_record or run_folder.is_dir()):
        return
    if difference := other_model(folder, trained.kept_shape(workdir) if on_record else ModelConfig.from_hf(run_folder)):
        raise ValueError(
            f"{workdir} was trained from another model than --config names: {folder} has {difference}. Set "
            f"--config.model.path={run_folder}, or to where that model is now"
        )


def measure_split(config: ConfigDict, groups: Sequence[Group]) -> dict[str, Any]:
    """The environment's own measures of a split, in per cent, each with its interval."""

    def to_percent(values: Sequence[float], episodes: int, **other_figures: float) -> dict[str, float]:
        figures = {**estimate_mean(values, episodes), **other_figures}
        return {name: value if name == "count" else 100 * value for name, value in figures.items()}

    return {name: to_percent(**sample) for name, sample in worlds.measures(config.environment.name, groups).items()}


def find_kinds(config: ConfigDict) -> tuple[str, Callable[[Task], Iterable[str]]]:
    """The key by which success is listed, and a task's kinds: KINDS of our environment's file, or `evaluation.by`."""
    by_key = config.evaluation.by
    default_kinds = (by_key, make_kinds(by_key)) if by_key else ("", lambda task: ())
    return worlds.read_own_names(config.environment.name).get("KINDS", default_kinds)


def evaluate(
    config: ConfigDict, subject: Subject, splits: Sequence[str], samples: int, out: Path, held_out: Sequence[Task] = ()
) -> dict[str, Any]:
    """Plays the episodes that are missing in `out`, then writes and returns the result.

    `held_out` are the tasks that the policy's run held out; they stand for an evaluation.split without tasks.
    """
    with EvaluationDirectory(out) as directory:
        environment = entries.build_environment(config)
        tasks_by_split = {split: tasks_of(config, environment, split, held_out) for split in splits}
        code_record = {"code": {"environment.name": entries.entry(config, "environment.name").describe()}}
        directory.claim(identity(config, subject, tasks_by_split, samples), {**read_facts(), **code_record})
        log_to(out / "evaluate.log")
        if subject.policy:
            write_tokenizer(out / "tokenizer", subject.policy.tokenizer)
        by_key, kinds = find_kinds(config)
        for task in (task for subset in tasks_by_split.values() for task in subset):
            kinds(task)
        groups_by_split = play_splits(config, subject, environment, tasks_by_split, samples, directory)
        result = {
            "environment": config.environment.name,
            "policy": dict(subject.identity),
            **({"origin": dict(subject.origin)} if subject.origin else {}),
            "samples": samples,
            "temperature": config.evaluation.temperature,
            "interval": _INTERVAL_NOTE,
            "splits": {
                split: {**describe(groups, samples, kinds), "by_key": by_key, "measures": measure_split(config, groups)}
                for split, groups in groups_by_split.items()
            },
        }
        write_json(out / "result.json", result)
    return result


def play_splits(
    config: ConfigDict,
    subject: Subject,
    environment: Environment,
    tasks: Mapping[str, Sequence[Task]],
    samples: int,
    directory: EvaluationDirectory,
) -> dict[str, list[Group]]:
    """The groups of each split; episodes that are stored in the directory are not played again."""
    episodes = directory.valid_episodes()
    ids = {f"{split}-{task.id}-{k}" for split, subset in tasks.items() for task in subset for k in range(samples)}
    stored_count = len(ids & episodes.keys())
    if stored_count:
        CONSOLE.print(f"{stored_count} of {len(ids)} episodes are stored already")

    def play_split(actors: Any, split: str, subset: Sequence[Task], advance: Callable[[], None]) -> list[Group]:
        def store(trajectory: Trajectory) -> None:
            directory.add(split, trajectory)
            advance()

        collector = EpisodeCollector(actors, environment, parts.make_limits(config, environment), samples)
        return collector.collect(subset, seed=(config.seed, 0), label=split, known_episodes=episodes, on_episode=store)

    if stored_count == len(ids):
        return {split: play_split(None, split, subset, lambda: None) for split, subset in tasks.items()}
    groups_by_split = {}
    with open_actors(subject, config, directory.folder) as actors:
        for split, subset in tasks.items():
            missing_count = sum(f"{split}-{task.id}-{k}" not in episodes for task in subset for k in range(samples))
            with show_bar(f"episodes of {split}", missing_count) as advance:
                groups_by_split[split] = play_split(actors, split, subset, advance)
    return groups_by_split


def tasks_of(config: ConfigDict, environment: Environment, split: str, extras: Sequence[Task] = ()) -> tuple[Task, ...]:
    """The tasks of a split, as many as the configuration says; `extras` for an evaluation.split without tasks.

    Raises ValueError for a split without tasks.
    """
    section = config.evaluation
    count_by_split = {
        # First the split names of every environment, then those of the configuration.
        "challenge": section.challenge_tasks or section.tasks,
        "dev": section.dev_tasks,
        section.challenge_split: section.challenge_tasks or section.tasks,
        section.dev_split: section.dev_tasks,
        section.split: section.tasks,
    }
    seed = section.seed if split == section.split else 0
    tasks = environment.tasks(split, count_by_split.get(split, section.tasks), seed)
    if not tasks and split == section.split:
        tasks = tuple(task for task in extras if task.environment == environment.name)
    if not tasks:
        raise ValueError(f"split {split!r} of environment {environment.name!r} has no task; choose others in --splits")
    return tuple({task.id: task for task in tasks}.values())


def choose_splits(config: ConfigDict, split_names: Sequence[str] | None) -> list[str]:
    """The splits to evaluate, each once. "all" means those in EVALUATION of the environment's module, or, without it,
    the configuration's three. Raises ValueError for an empty list."""
    section = config.evaluation
    if not split_names:
        return [section.split]
    if list(split_names) == ["all"]:
        module = worlds.module(config.environment.name)
        split_names = vars(module).get("EVALUATION", (section.split, section.dev_split, section.challenge_split))
    splits = list(dict.fromkeys(split.strip() for split in split_names if split.strip()))
    if not splits:
        raise ValueError(
            "--splits is empty; leave it out for evaluation.split, or name splits with commas between them"
        )
    return splits


def identity(config: ConfigDict, subject: Subject, tasks: Mapping[str, Sequence[Task]], samples: int) -> dict[str, Any]:
    """The settings that decide the result, with a hash of the task ids of each split.

    A folder holds the episodes of one identity only.
    """
    config_record = json.loads(json.dumps(config.to_dict()))
    split_hashes = {split: content_hash([task.id for task in subset]) for split, subset in tasks.items()}
    record: dict[str, Any] = {"policy": dict(subject.identity), "splits": split_hashes, "samples": samples}
    for setting_key in _RESULT_SETTINGS + (_MODEL_KEYS if subject.policy else ()):
        section, _, leaf_key = setting_key.rpartition(".")
        if section:
            record.setdefault(section, {})[leaf_key] = config_record[section][leaf_key]
        else:
            record[leaf_key] = config_record[leaf_key]
    # Where episodes are played does not decide how they end.
    del record["environment"]["cluster"]
    if subject.policy and config.engine.name == "local" and any(size != 1 for size in config_record["mesh"].values()):
        record["mesh"] = config_record["mesh"]
    return record


def choose_subject(
    config: ConfigDict, checkpoint: str | None, model: str | None, endpoint: str | None, endpoint_model: str | None
) -> tuple[Subject, Path]:
    """The policy to evaluate, and the default folder of its evaluations. Raises ValueError unless one is named."""
    named_policies = [subject_name for subject_name in (checkpoint, model, endpoint) if subject_name]
    if len(named_policies) != 1:
        raise ValueError(f"{len(named_policies)} policies are named; name one with --checkpoint, --model or --endpoint")
    if checkpoint:
        workdir, step = Path(checkpoint), None
        if workdir.parent.name == "checkpoints" and is_number(workdir.name):
            workdir, step = workdir.parent.parent, int(workdir.name)
        return subject_of_checkpoint(config, workdir, step), workdir / "evaluations"
    if model:
        return subject_of_folder(config, Path(model)), Path("runs/evaluations")
    model_name = endpoint_model or ""
    subject_name = re.sub(r"[^\w.-]", "-", model_name).strip("-.") or "endpoint"
    return Subject(subject_name, {"endpoint": str(endpoint).rstrip("/"), "model": model_name}), Path("runs/evaluations")


def _check_config(config: ConfigDict, sample_count: int) -> None:
    check_ranges(config)
    if not config.environment.name:
        raise ValueError("environment.name is empty; name the environment to evaluate in: --config.environment=desk")
    for _ in entries.list_entries(config):
        pass
    entries.check_cluster(config)
    if processes.is_enabled(config):
        raise ValueError("section distributed is set, but an evaluation has one process; leave it out")
    temperature = config.evaluation.temperature
    if config.evaluation.trials > 1:
        raise ValueError(
            f"evaluation.trials is {config.evaluation.trials}, but this command plays every task once for each sample; "
            "set it to 1, or use it in a run (experiments.run), whose final evaluation tries failed tasks again"
        )
    if sample_count > 1 and temperature == 0:
        raise ValueError(
            f"--samples={sample_count} at evaluation.temperature=0 would play the same episode {sample_count} times; "
            f"add --config.evaluation.temperature={config.sampling.temperature:g}, or leave --samples out"
        )


def _raise_interrupt(signal_number: int, frame: Any) -> None:
    raise KeyboardInterrupt(signal_number)


def run(flags: Sequence[str | None], only_splits: Sequence[str] | None, samples: int, folder: str | None) -> None:
    """Evaluates the policy that the flags name: checkpoint, model folder, endpoint and its model."""
    checkpoint, _, endpoint, _ = flags
    end_descendants_at_exit()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _raise_interrupt)
    try:
        config = read_configuration()
        _check_config(config, samples)
        if not endpoint:
            engines.check_servers(config)
        keep_programs()
        splits = choose_splits(config, only_splits)
        subject, out_parent = choose_subject(config, *flags)
        title = f"{subject.name}-{config.environment.name}-{'+'.join(splits)}-x{samples}"
        out = Path(folder) if folder else out_parent / title.replace("/", "-")  # a name must not lead to another folder
        if checkpoint and not folder:
            for result_path in (out_parent, out):
                expect_no_link(result_path)
        tell_owner(out=str(out.absolute()))
        held_out = read_held_out_of(checkpoint) if checkpoint else ()
        result = evaluate(config, subject, splits, samples, out, held_out)
        show_evaluation(result, write_evaluation_report(out))
    except EXPECTED_ERRORS as error:
        _LOG.info("the evaluation ended", exc_info=True)
        CONSOLE.print(f"error: {describe_error(error)}", style="bold red")
        sys.exit(1)
    except KeyboardInterrupt as interrupt:
        CONSOLE.print("stopped; run the same command again to go on")
        # Exit without waiting for threads that still work in an environment or an engine.
        end_all()
        os._exit(128 + (interrupt.args[0] if interrupt.args else signal.SIGINT))
