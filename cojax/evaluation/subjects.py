"""The policy that an evaluation plays: a checkpoint of a run, a model folder, or a chat endpoint."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from transformers import PreTrainedTokenizerBase

from cojax.evaluation import scores
from cojax.policy.config import ModelConfig
from cojax.rollout.chat import TOOL_DOCUMENTS, Actors, Chat, PolicyActors
from cojax.run import engines, policies, trained
from cojax.run.engines import CacheTooLarge
from cojax.run.entries import entry
from cojax.run.policies import announce
from cojax.run.trained import origin_of
from cojax.settings.presets import PRESETS
from cojax.storage.differences import value_at
from cojax.storage.files import is_number

# Settings that decide the arrays of a policy from scratch.
_SHAPED = ("model.path", "model.tokenizer", "model.vocabulary")


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

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self.policy.tokenizer if self.policy else None


def of_checkpoint(config: ConfigDict, place: Path) -> Subject:
    """The policy of WORKDIR or WORKDIR/checkpoints/STEP.

    Raises CheckpointError where it cannot be read, ValueError where `config` describes another policy than the run's.
    """
    workdir, step = place, None
    if place.parent.name == "checkpoints" and is_number(place.name):
        workdir, step = place.parent.parent, int(place.name)
    run = trained.settings_of(workdir)
    _same_model(config, run, workdir)
    # The model folder that the run began from may have moved since.
    gone = run["model"]["path"] and not Path(run["model"]["path"]).is_dir()
    policy = trained.of_run(workdir, step, config.model.path if gone and Path(config.model.path).is_dir() else "")
    if config.model.dtype:
        policy = dataclasses.replace(policy, model=dataclasses.replace(policy.model, dtype=config.model.dtype))
    identity = {"checkpoint": policy.step, "content": policy.content, "dtype": policy.model.dtype}
    return Subject(f"{policy.step}", identity, policy, origin_of(workdir, policy.step))


def of_folder(config: ConfigDict, folder: Path) -> Subject:
    """A model folder in HF format with tokenizer and template. Raises ValueError or OSError with the fix."""
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"--model {str(folder)!r} is no model folder in HF format (no config.json in it); get one, for example by "
            "`hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B`, or export a checkpoint with "
            "python -m experiments.export"
        )
    own = config.copy_and_resolve_references()
    own.learner.lora.rank = 0
    policy = trained.of_folder(folder, policies.stored_shape(own, folder))
    identity = {"model": policy.content, "dtype": policy.model.dtype}
    return Subject(folder.resolve().name, identity, policy, {"folder": str(folder.resolve())})


def of_endpoint(url: str, model: str) -> Subject:
    """A model behind an OpenAI-compatible chat endpoint."""
    name = "".join(character if character.isalnum() or character in "-._" else "-" for character in model)
    return Subject(name.strip("-.") or "endpoint", {"endpoint": url.rstrip("/"), "model": model})


@contextlib.contextmanager
def playing(subject: Subject, config: ConfigDict, folder: Path) -> Iterator[Actors]:
    """The actors of a subject, with its own engine, which is closed at the end.

    Servers log into `folder`, and read the weights there unless sglang.folder names another one. The engine in this
    process has the number of slots in `folder`/engine.json, if there is one.
    """
    sampling = config.evaluation.temperature
    if subject.policy is None:
        # Imported here: without an endpoint no client is needed.
        from cojax.rollout.endpoint import ChatEndpoint, EndpointActors

        yield EndpointActors(
            ChatEndpoint(
                subject.identity["endpoint"],
                subject.identity["model"],
                temperature=sampling,
                max_tokens=config.sampling.max_tokens,
                # It must end before the watch over the episode gives up.
                deadline=0.9 * config.limits.engine_deadline,
            )
        )
        return
    own = config.copy_and_resolve_references()
    own.workdir = str(folder)
    own.learner.routes = "own"  # nothing learns from these episodes
    if own.engine.name == "local":
        own.engine.slots = slots(own, subject.policy.model, folder / "engine.json")
    engine = entry(config, "engine.name").function(own, subject.policy.model)
    try:
        engine.load(subject.policy.weights())
        chat = Chat(subject.policy.tokenizer, TOOL_DOCUMENTS[config.model.tools])
        announce(chat, config.model.tools)
        yield PolicyActors(engine, chat, scores.sampling(config, chat, sampling))
    finally:
        engine.close()
        # A copy for servers, as large as the model.
        shutil.rmtree(folder / "weights", ignore_errors=True)


def slots(config: ConfigDict, model: ModelConfig, path: Path) -> int:
    """engine.slots; where free memory chooses them it does so once in an evaluation, as sampled bits depend on them."""
    own, given = config.copy_and_resolve_references(), config.engine.slots
    before = engines.kept(path) if given is None else None
    if before:
        own.engine.slots = before
    try:
        count = engines.slots(own, model, trains=False)
    except CacheTooLarge as error:
        if before is None:
            raise
        raise error.once_begun() from error
    if given is None:
        engines.keep(path, count)
    return count


def _same_model(config: ConfigDict, run: Mapping[str, Any], workdir: Path) -> None:
    """Raises ValueError, which names the flags, where a configuration describes another policy than the run's."""
    section, trained_as = config.model.to_dict(), run["model"]
    names = [*_SHAPED, *(f"model.shape.{name}" for name in section["shape"])]
    if section["path"] and trained_as["path"]:
        # The same model may be in another folder on this machine.
        _same_shape(Path(section["path"]), Path(trained_as["path"]), workdir)
        return
    if _at(trained_as, "model.tokenizer") != "bytes":
        names.remove("model.vocabulary")
    here, there = ({name: _at(settings, name) for name in names} for settings in (section, trained_as))
    if here == there:
        return
    policy = run.get("policy", "")
    preset = PRESETS.get(policy, {}) if policy != config.policy else {}
    flags = [f"--config.policy={policy}"] if preset else []
    flags += [
        f"--config.{name}={value}"
        for name, value in there.items()
        if value != (preset[name] if name in preset else here[name])
    ]
    name = next(name for name in names if here[name] != there[name])
    raise ValueError(
        f"{workdir} was trained with another policy than --config describes: {name} is {there[name]!r} in its "
        f"config.json, {here[name]!r} here. Add {' '.join(flags)}"
    )


def _same_shape(here: Path, there: Path, workdir: Path) -> None:
    """Raises ValueError where two model folders differ in shape; the run's record of its own stands for it."""
    kept = workdir / "model.json"
    if not here.is_dir() or not (kept.exists() or there.is_dir()):
        return
    shapes = []
    for source in (here, there):
        if source is there and kept.exists():
            shape = trained.kept_shape(workdir)
        else:
            shape = ModelConfig.from_hf(source)
        shapes.append(dataclasses.asdict(dataclasses.replace(shape, dtype="float32", param_dtype="float32")))
    if different := [name for name in shapes[0] if shapes[0][name] != shapes[1][name]]:
        name = different[0]
        raise ValueError(
            f"{workdir} was trained from another model than --config names: {name} is {shapes[1][name]} there, "
            f"{shapes[0][name]} in {here}. Set --config.model.path={there}, or to where that model is now"
        )


def _at(section: Mapping[str, Any], name: str) -> Any:
    """A leaf of the section `model` by its dotted name."""
    return value_at(section, name.removeprefix("model."), None)
