"""The measure of the pool after each evolution, from a configuration."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.quality import EMBEDDINGS, EmbeddingError, describe_pool
from cojax.report.console import CONSOLE
from cojax.settings.reading import choose
from cojax.storage.files import Log
from cojax.types import Task

_LOG = logging.getLogger("cojax")

Quality = Callable[[Iterable[Task]], dict[str, Any]]


def quality(config: ConfigDict, targets: Sequence[Task]) -> Quality:
    """A function from the pool to its quality, beside these evaluation tasks, of which only numbers are kept.

    Where the embedding fails, the figures that need it are left out, with a warning; the run goes on. The vectors of an
    endpoint are kept in embeddings.jsonl of the run, without the texts.
    """
    section = config.quality
    kept = Log(Path(config.workdir) / "embeddings.jsonl")
    embed = choose(EMBEDDINGS, section.embedding, "quality.embedding")(section.base_url, section.model, kept)

    def described(pool: Iterable[Task]) -> dict[str, Any]:
        tasks = tuple(pool)
        try:
            return describe_pool(tasks, targets, embed, section.k)
        except (EmbeddingError, OSError) as error:
            message = f"the pool's diversity and its distance to the evaluation tasks are left out: {error}"
            _LOG.warning(message)
            CONSOLE.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)
            return describe_pool(tasks, targets, None, section.k)

    return described
