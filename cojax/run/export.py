"""Writes a checkpoint of a run as a model folder in Hugging Face format, tokenizer and chat template included.

python -m experiments.export --workdir=runs/desk models/desk            # the newest sound checkpoint
python -m experiments.export --workdir=runs/desk --step=80 models/desk-80 --dtype=bfloat16

`transformers` and SGLang load the folder as it is, as do --config.model.path and `experiments.evaluate --model`.
Adapters are summed into their base. The run may go on meanwhile: nothing in its directory is changed.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cojax.command import CommandLineParser
from cojax.durable import sync_folder, sync_tree
from cojax.policy.pretrained import write_model
from cojax.report.console import CONSOLE
from cojax.rollout.export import write_tokenizer
from cojax.run import trained
from cojax.storage.checkpoint import CheckpointError
from cojax.storage.files import explain, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def export(policy: trained.TrainedPolicy, folder: Path) -> None:
    """Writes the policy with parameters in `model.param_dtype`; the folder appears whole or not at all.

    Raises FileExistsError for a folder that holds anything, and OSError, with what to do about it, if the files cannot
    be written.
    """
    policy = trained.cast(policy, policy.model.param_dtype)
    with make_new_folder(folder) as temporary_folder:
        write_model(temporary_folder, policy.model, policy.params)
        save_tokenizer(temporary_folder, policy.tokenizer)


@contextlib.contextmanager
def make_new_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder to fill. When the block ends, it becomes `folder` on disk; if the block fails, nothing is left.

    Raises FileExistsError for a folder that holds anything, and OSError, with what to do about it, if the files cannot
    be written.
    """
    refuse_full(folder)
    folder = folder.absolute()
    temporary_folder = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary_folder.mkdir(parents=True)
        yield temporary_folder
        sync_tree(temporary_folder)
        # This replaces an empty folder. The system refuses to replace one that was filled in the meantime.
        temporary_folder.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise explain(OSError(error.errno, os.strerror(error.errno)), folder) if error.errno else error from error
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def save_tokenizer(folder: Path, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Writes tokenizer, chat template and the tokens that end a turn, for programs that do not read the template."""
    write_tokenizer(folder, tokenizer)
    tokens = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    write_json(folder / "generation_config.json", {name: token for name, token in tokens.items() if token is not None})


def refuse_full(folder: Path) -> None:
    """Raises FileExistsError unless the folder is missing or empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} is there already and not an empty folder; name a new one")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0, or 1 if nothing could be exported."""
    parser = CommandLineParser("python -m experiments.export", __doc__)
    parser.add_argument("--workdir", required=True, type=Path, help="run directory, such as runs/desk")
    parser.add_argument("--step", type=int, help="the checkpoint's step; the newest sound one where none is given")
    parser.add_argument("--base", default="", help="where the model folder is now that adapters were trained beside")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the weights; that of the run by default")
    parser.add_argument("out", metavar="OUT", type=Path, help="the model folder to write; new or empty")
    options = parser.parse_args(arguments)
    try:
        refuse_full(options.out)
        policy = trained.of_run(options.workdir, options.step, options.base)
        export(trained.cast(policy, options.dtype or policy.model.param_dtype), options.out)
    except (CheckpointError, OSError, ValueError) as error:
        CONSOLE.print(f"error: {error}", style="bold red")
        return 1
    size_bytes = sum(path.stat().st_size for path in options.out.iterdir())
    CONSOLE.print(f"step {policy.step} of {options.workdir} is in {options.out} ({size_bytes / 2**20:.1f} MiB)")
    return 0
