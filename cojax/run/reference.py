"""Prints every setting with its default, range and meaning.

python -m experiments.reference                       # all, in Markdown
python -m experiments.reference learner.loss evolve   # those with one of these words in their names
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from cojax.command import CommandLineParser
from cojax.registry.annotations import say_type
from cojax.run.entries import CHOICES
from cojax.settings.presets import PRESETS
from cojax.settings.tree import ENTRIES, LEAVES, OPEN_SECTIONS, SECTIONS, Leaf, read_leaves, read_purpose
from cojax.signals import SIGNALS

_PAGE_HEAD = Path(__file__).with_name("reference.md").read_text("utf-8")
_OUTSIDE_HINT = "or `package.module:name`"


def list_lines() -> Iterator[str]:
    """Yields the lines of docs/settings.md."""
    yield _PAGE_HEAD
    for prefix, section in SECTIONS.items():
        section_title = f"`{prefix}`" if prefix else "Without a section"
        yield f"## {section_title}\n"
        yield f"{read_purpose(section)}\n"
        if prefix in OPEN_SECTIONS:
            yield f"Also the settings of {OPEN_SECTIONS[prefix]}.\n"
        yield "| setting | default | range | meaning |\n|---|---|---|---|"
        for setting in read_leaves(section):
            full_name = f"{prefix}.{setting}".lstrip(".")
            yield _make_table_row(full_name, LEAVES[full_name])
        yield ""
    yield "## Settings of entries\n"
    yield "Each of these is read by the entries in the first column alone.\n"
    for prefix, prefix_rows in itertools.groupby(ENTRIES, lambda entry_row: entry_row[0]):
        entry_rows = list(prefix_rows)
        yield f"### `{prefix}`\n"
        if len(entry_rows) == 1:
            yield f"{read_purpose(entry_rows[0][2])}\n"
        yield "| read by | setting | default | range | meaning |\n|---|---|---|---|---|"
        for _, readers, section in entry_rows:
            for setting in read_leaves(section):
                yield f"| {readers} {_make_table_row(f'{prefix}.{setting}', LEAVES[f'{prefix}.{setting}'])}"
        yield ""
    yield "### Of registries\n"
    yield "Each section sets keywords of the entry in the second column, whose signature declares their ranges.\n"
    yield "| section | keywords of |\n|---|---|"
    for setting, owner in OPEN_SECTIONS.items():
        yield f"| `{setting}` | {_escape(owner)} |"


def _make_table_row(setting: str, leaf: Leaf) -> str:
    default_text = '""' if leaf.default == "" else str(leaf.default)
    return f"| `{setting}` | `{default_text}` | {_escape(_describe_range(setting, leaf))} | {_escape(leaf.meaning)} |"


def _describe_range(setting: str, leaf: Leaf) -> str:
    if setting in CHOICES:
        return f"{', '.join(CHOICES[setting].list_names())}, {_OUTSIDE_HINT}"
    if setting == "signals":
        return f"any of {', '.join(SIGNALS)}, {_OUTSIDE_HINT}, separated by commas"
    if setting == "policy":
        return f'{", ".join(PRESETS)}, or ""'
    return say_type(leaf.range)


def _escape(cell_text: str) -> str:
    return cell_text.replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0, or 2 if there is a word that no setting has in its name."""
    parser = CommandLineParser("python -m experiments.reference", __doc__)
    parser.add_argument("words", metavar="WORD", nargs="*", help="print only settings with this word in their names")
    words = parser.parse_args(arguments).words
    if unknown_words := [word for word in words if not any(_find_rows([word]))]:
        parser.error(f"no setting has {unknown_words[0]!r} in its name; without a word, all are printed")
    print("\n".join(_find_rows(words) if words else list_lines()))
    return 0


def _find_rows(words: Sequence[str]) -> Iterator[str]:
    """Yields the rows of settings, and of sections of entries, that have one of the words in their names."""
    for line in list_lines():
        if line.startswith("| ") and "`" in line and any(word in line.split("`")[1] for word in words):
            yield line
