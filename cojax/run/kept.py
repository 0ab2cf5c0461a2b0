"""What a run keeps beside its checkpoints: tokenizer, shape and base model, and the number of its engine's slots.

Tokenizer, shape and base model are written again where they are lost, and then verified.
"""

import json
from collections.abc import Callable

from ml_collections import ConfigDict
from transformers import PreTrainedTokenizerBase

from cojax.report.console import CONSOLE
from cojax.report.run import origin_line
from cojax.rollout.local import LocalEngine
from cojax.run import assemble, cache_memory, origins, policies, trained
from cojax.run.cache_memory import CacheTooLarge
from cojax.run.entries import reads_initial
from cojax.run.initial_policy import InitialPolicy, teaches_folder
from cojax.run.parts import Parts
from cojax.run.processes import read_params
from cojax.storage.run_directory import RunDirectory
from cojax.storage.run_files import Verified
from cojax.synthesis import Synthesis


def parts(config: ConfigDict, directory: RunDirectory, found: Verified | None) -> Parts:
    """`assemble.parts`. Where the slots of the local engine follow free memory, they do so once in a run.

    Sampled bits depend on their number, which engine.json holds. A run that does not go on from `found` chooses anew.
    Raises ValueError for a damaged file, and for a number that no longer fits.
    """
    path, chosen = directory.folder / "engine.json", config.copy_and_resolve_references()
    if found is None:
        path.unlink(missing_ok=True)
    elif config.engine.slots is None and (slots := cache_memory.kept(path)):
        chosen.engine.slots = slots
        CONSOLE.print(f"engine: {slots} slots, as the run began", soft_wrap=True)
    try:
        made = assemble.parts(chosen)
    except CacheTooLarge as error:
        if found is None:
            raise
        raise error.once_begun() from error
    if chosen.engine.slots is None and isinstance(made.engine, LocalEngine):
        cache_memory.keep(path, made.engine.slots)
    return made


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: RunDirectory, found: Verified | None) -> None:
    """Saves the tokenizer of a run. A run that goes on from `found` saves it only where it is lost or was never noted.

    Raises ValueError where the run began with another tokenizer, StorageError where a file comes out different.
    """
    folder = directory.folder / "tokenizer"
    lost = found is None or not found.checked or directory.files.lacks(folder.name)
    policies.keep_tokenizer(tokenizer, folder, begun=found is not None, lost=lost)
    if found is not None:
        directory.files.prove(folder.name)


def initial_policy(
    config: ConfigDict,
    made: Parts,
    initial: Callable[[], Synthesis],
    directory: RunDirectory,
    found: Verified | None,
) -> InitialPolicy:
    """The policy before the first step.

    A run that goes on from `found` with a warm-started model folder needs no cache: it has the policy in base/, or
    needs only its shapes, as its checkpoints hold what was learned. `initial` finds D_0.
    """
    folder = directory.folder
    if found is not None and teaches_folder(config) and (folder / "model.json").exists():
        origin = origins.origin_of(folder)
        params = trained.kept_base(folder, made.model, made.mesh, made.together)
        if params is None and not reads_initial(config) and directory.files.has_zero_shot:
            params = read_params(made.together, config.model.path, made.model, config.seed, made.mesh)
        if params is not None:
            CONSOLE.print(f"policy: {origin_line(origin)}", soft_wrap=True, markup=False)
            return InitialPolicy(params, origin)
    return assemble.initial_policy(config, made, initial)


def keep_model(
    made: Parts, begins: InitialPolicy, config: ConfigDict, directory: RunDirectory, found: Verified | None
) -> None:
    """Writes model.json and base/ of a run as `keep_tokenizer` does. A base that was never noted stays as it is."""
    places = ("model.json", "base")
    noted = found is not None and (found.checked or bool(config.learner.lora.rank))
    has_begun = noted and not any(map(directory.files.lacks, places))
    plain = json.loads(json.dumps(config.to_dict()))
    reference = reads_initial(config)
    trained.keep(directory.folder, made.model, begins.params, plain, has_begun, begins.origin, reference, made.together)
    if found is not None:
        for name in places:
            directory.files.prove(name)
