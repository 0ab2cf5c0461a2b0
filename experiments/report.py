"""Rebuilds the report of a run, or prints why one of its tasks exists and whether it helped.

python -m experiments.report runs/desk               # writes runs/desk/report.html
python -m experiments.report runs/desk --task=3a0ad5 # the lineage of one task; a prefix of its id is enough
python -m experiments.report runs/desk/evaluations/… # the report of an evaluation
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from cojax.console import CONSOLE
from cojax.report import Story, Visit, lineage, write_evaluation_report, write_report
from cojax.store import StorageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 when the folder is no run or the id fits no task."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", help="run directory, such as runs/desk")
    parser.add_argument("--task", metavar="ID", help="print the lineage of this task (a prefix of its id is enough)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.task is None:
            evaluated = (Path(chosen.workdir) / "result.json").exists()
            write = write_evaluation_report if evaluated else write_report
            CONSOLE.print(f"report: {write(chosen.workdir)}", soft_wrap=True, markup=False)
        else:
            for line in told(lineage(chosen.workdir, chosen.task)):
                CONSOLE.print(line, soft_wrap=True)
    except (FileNotFoundError, StorageError, KeyError) as error:
        message = error.args[0] if isinstance(error, KeyError) else error  # a KeyError's own text is its repr
        print(f"error: {message}", file=sys.stderr)
        return 2
    return 0


def told(story: Story) -> Iterator[Text]:
    """A story as lines for the terminal, from the oldest ancestor to the visits since."""
    yield _line("task", f"{story.id}  {story.query}")
    for depth, action in enumerate(story.solution, 1):
        yield _line("solution" if depth == 1 else "", f"{depth}. {action}")
    yield _line("origin", f"{story.origin}, joined the pool at step {story.step}")
    for depth, parent in enumerate(story.parents, 1):
        yield _line("parent" if depth == 1 else f"parent ×{depth}", f"{parent.id}  {parent.origin}  {parent.query}")
    if story.signal:
        yield _line("signal", f"{story.signal}: {story.signal_evidence}")
    if story.source_episode:
        yield _line("episode", story.source_episode)
    if story.explorer:
        yield _line("explorer", f"{story.explorer}, run {', '.join(map(str, story.runs)) or '–'}")
    if story.verdict:
        yield _line("verdict", story.verdict)
    for evidence in story.verdict_evidence:
        yield _line("", f"· {evidence}")
    yield _line("visits", _visits(story.visits) or "none stored")
    if story.parents:
        before = [visit for visit in story.parent_visits if visit.step <= story.step]
        after = [visit for visit in story.parent_visits if visit.step > story.step]
        yield _line("its parent", f"before: {_visits(before) or 'none stored'}")
        yield _line("", f"since: {_visits(after) or 'none stored'}")


def _visits(visits: Sequence[Visit]) -> str:
    return ", ".join(f"{visit.successes}/{visit.episodes} solved at step {visit.step}" for visit in visits)


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<11}", "dim"), text)


if __name__ == "__main__":
    sys.exit(main())
