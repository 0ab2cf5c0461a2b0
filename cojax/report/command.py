"""Rebuilds the report of a run, or prints why one of its tasks exists and whether it helped.

python -m experiments.report runs/desk               # writes runs/desk/report.html
python -m experiments.report runs/desk --live        # serves it on this machine while the run goes; Ctrl-C ends it
python -m experiments.report runs/one runs/two       # writes compare.html: both with paired differences to the first
python -m experiments.report runs/desk --task=3a0ad5 # the lineage of one task, and all that was sent to a model for it
                                                     # and received, in full; a prefix of its id is enough
python -m experiments.report runs/desk --draft=20    # the drafts of step 20's evolution, accepted or not
python -m experiments.report runs/desk --draft=20/3  # one of them, as a task
python -m experiments.report runs/desk/evaluations/… # the report of an evaluation
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from cojax.command import CommandLineParser
from cojax.report import comparison
from cojax.report.comparison import check_folders, write_comparison
from cojax.report.console import CONSOLE
from cojax.report.exchanges import about, places_of, read_exchanges
from cojax.report.lineage import TaskHistory, TaskVisit, action_text, id_of, lineage
from cojax.report.live import serve
from cojax.report.page import write_evaluation_report
from cojax.report.page import write_report as write_run_report
from cojax.report.run import Json, Run, expedition_of, read_run
from cojax.unicode_forms import plain

# What reading a record raises that no run wrote.
NOT_WRITTEN = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, RecursionError)
Row = tuple[str, str]  # the title of a line and its text; without a text there is no line


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 when a folder is no run or the id fits no task."""
    parser = CommandLineParser("python -m experiments.report", __doc__)
    parser.add_argument(
        "workdirs", nargs="+", metavar="workdir", help="run directory, such as runs/desk; several: compare"
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--task", metavar="ID", help="print the lineage of this task (a prefix of its id is enough)")
    one.add_argument("--draft", metavar="STEP[/NUMBER]", help="list the drafts of an evolution, or print one of them")
    one.add_argument("--live", action="store_true", help="serve the report on this machine, redrawn while the run goes")
    parser.add_argument("--port", type=int, default=0, help="of --live; 0 takes a free one")
    parser.add_argument("--out", default="compare.html", help="where the comparison of several runs goes")
    chosen = parser.parse_args(arguments)
    if len(chosen.workdirs) > 1 and (chosen.live or chosen.task is not None or chosen.draft is not None):
        parser.error("--live, --task and --draft are of one run; name one")
    if not 0 <= chosen.port < 65_536:
        parser.error(f"--port={chosen.port}; expected 0 to 65535")
    # A KeyError names a task or a draft that was asked for and is not there.
    return _carry_out(parser, chosen.workdirs, lambda: _act(chosen), (OSError, KeyError))


def compare(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 where a folder holds no run that has ended, is named twice, or the page cannot be made."""
    parser = CommandLineParser("python -m experiments.compare", comparison.__doc__)
    parser.add_argument("first", metavar="WORKDIR", type=Path, help="the run that the others are compared with")
    parser.add_argument("others", metavar="WORKDIR", type=Path, nargs="+", help="another run")
    parser.add_argument("--tasks", action="store_true", help="also list the evaluation tasks on which they differ")
    parser.add_argument("--out", default="compare.html", help="where the page goes")
    chosen = parser.parse_args(arguments)
    folders = (chosen.first, *chosen.others)

    def show() -> None:
        results = [comparison.ended_run(folder) for folder in folders]
        CONSOLE.print(comparison.table(results))
        CONSOLE.print(comparison.differences(results))
        if chosen.tasks:
            CONSOLE.print(comparison.by_task(results))

    return _carry_out(parser, folders, show) or main([*map(str, folders), f"--out={chosen.out}"])


def _carry_out(
    parser: CommandLineParser,
    folders: Sequence[str | Path],
    show: Callable[[], None],
    worded: tuple[type[Exception], ...] = (OSError,),
) -> int:
    """The exit status: 0, or 2 where showing these runs fails, with one line that says why.

    Errors of the types `worded` say it themselves; others come of a damaged record. A run that is named twice ends the
    command before anything is read.
    """
    try:
        check_folders(folders)
    except ValueError as error:
        parser.error(str(error))
    try:
        show()
    except worded as error:
        message = str(error.args[0] if isinstance(error, KeyError) else error)  # a KeyError's own text is its repr
    except NOT_WRITTEN as error:
        message = not_written(folders, error)
    else:
        return 0
    print(f"error: {plain(message)}", file=sys.stderr)
    return 2


def not_written(folders: Iterable[str | Path], error: Exception) -> str:
    """The message where showing runs fails by `error`: it can only be done from records as a run writes them."""
    return (
        f"{', '.join(map(str, folders))} holds a record that no run wrote "
        f"({plain(f'{type(error).__name__}: {error}')}). The same command of the run names the file and the line; "
        "restore it from a copy."
    )


def _act(chosen: argparse.Namespace) -> None:
    """What the command line asks for."""
    workdir = chosen.workdirs[0]
    if len(chosen.workdirs) > 1:
        _wrote("comparison", write_comparison(chosen.workdirs, chosen.out))
    elif chosen.task is not None:
        _show(_of_task(workdir, chosen.task))
    elif chosen.draft is not None:
        _show(_of_drafts(read_run(workdir), chosen.draft))
    elif chosen.live:
        with contextlib.suppress(KeyboardInterrupt):
            serve(workdir, chosen.port, lambda address: _wrote("live, until Ctrl-C", address))
    else:
        evaluated = (Path(workdir) / "result.json").exists()
        _wrote("report", (write_evaluation_report if evaluated else write_run_report)(workdir))


def _wrote(what: str, where: str | Path) -> None:
    CONSOLE.print(f"{what}: {where}")


def _show(lines: Iterable[Text]) -> None:
    for line in lines:
        CONSOLE.print(line)


def _of_task(workdir: str, id: str) -> Iterator[Text]:
    """The history of a task, its expedition, and what was sent and received."""
    history, run = lineage(workdir, id), read_run(workdir)
    yield from _lines((*_history(history), *_expedition(run, history.expedition)))
    yield from _exchanges(run, history.expedition, history.id)


def _of_drafts(run: Run, name: str) -> Iterator[Text]:
    """The drafts of a step, a line each, or the one of that name. Raises KeyError where there is none."""
    drafts = dict(run.numbered_drafts())
    if name in drafts:
        yield from _of_draft(run, name, drafts[name])
        return
    listed = {key: draft for key, draft in drafts.items() if key.startswith(f"{name}/")}
    if not listed:
        steps = ", ".join(dict.fromkeys(key.partition("/")[0] for key in drafts)) or "none"
        raise KeyError(
            f"draft {name!r} not found; give STEP or STEP/NUMBER. Steps with drafts in "
            f"{run.folder / 'drafts.jsonl'}: {steps}"
        )
    yield from _lines(
        (key, f"{draft['verdict']['status']}, {draft['origin']}: {draft['draft']['query']}")
        for key, draft in listed.items()
    )


def _of_draft(run: Run, name: str, draft: Json) -> Iterator[Text]:
    verdict, words, expedition = draft["verdict"], draft["draft"], expedition_of(draft)
    rows = [
        ("draft", f"{name}  {words['query']}"),
        *_solution(map(action_text, words.get("solution", ()))),
        *((title, draft.get(title, "")) for title in ("origin", "parent", "signal", "episode")),
        ("verdict", verdict["status"]),
        ("set aside", verdict.get("quarantine", "")),
        *_evidence(verdict["evidence"]),
        ("task", draft.get("task", "")),
        *_expedition(run, expedition),
    ]
    yield from _lines(rows)
    task = id_of(words) if {"environment", "query", "setup"} <= words.keys() else ""
    yield from _exchanges(run, expedition, task)


def _solution(actions: Iterable[str]) -> Iterator[Row]:
    return (("" if depth > 1 else "solution", f"{depth}. {action}") for depth, action in enumerate(actions, 1))


def _evidence(lines: Iterable[str]) -> Iterator[Row]:
    return (("", f"· {line}") for line in lines)


def _expedition(run: Run, key: tuple[int, int] | None) -> Iterator[Row]:
    """The explorer's context and the results of its runs, as far as the run noted them."""
    record = run.expeditions.get(key) if key else None
    if record is None:
        return
    for number, (name, value) in enumerate((record.get("context") or {}).items()):
        for line in value if isinstance(value, list) else [value]:
            if line:
                yield "" if number else "context", f"{name.replace('_', ' ')}: {line}"
    for made in record.get("runs", ()):
        yield f"run {made['run']}", f"{made['ok']} of {made['actions']} actions worked"
    for failure in (*record.get("failures", ()), record.get("error", "")):
        yield "failure", failure


def _exchanges(run: Run, expedition: tuple[int, int] | None, task: str) -> Iterator[Text]:
    """Every text sent to a model for an expedition and a validation, and received from it, in full."""
    journal = run.folder / "journal.jsonl"
    if not (places := places_of(journal)):
        return
    for part, key in (("exploration", expedition or ""), ("validation", task)):
        found = read_exchanges(journal, places.get(key, ()))
        calls = f"{part}: {len(found)} call{'' if len(found) == 1 else 's'} to a model"
        yield Text.assemble(("\n" + "═" * 100 + "\n", "dim"), (calls, "bold"))
        for exchange in found:
            yield from _exchange(exchange)


def _exchange(exchange: Json) -> Iterator[Text]:
    title, text = plain(exchange["place"]), plain(about(exchange))
    yield Text.assemble(("\n" + "─" * 100 + "\n", "dim"), (title, "bold"), (f"\n{text}", "dim"))
    rest = {name: value for name, value in exchange["settings"].items() if not isinstance(value, (str, int, float))}
    if rest:
        yield Text.assemble(("sent, beside the messages: ", "dim"), plain(json.dumps(rest, ensure_ascii=False)))
    if shared := exchange["shared"]:
        yield Text(f"sent: the {shared} messages of the call before, word for word, then", style="dim")
    for role, content in exchange["messages"][shared:]:
        yield Text.assemble((f"sent, {plain(role)}:\n", "dim"), _indented(content, 2))
    reply = exchange["text"]
    yield Text.assemble(("received:\n", "dim"), "nothing" if reply is None else _indented(reply, 2))


def _indented(text: str, depth: int) -> str:
    """The text with each line indented, so that none can be mistaken for one of ours."""
    return "\n".join(" " * depth + line for line in plain(text).split("\n"))


def _history(history: TaskHistory) -> Iterator[Row]:
    """A history from the oldest ancestor to the visits since."""
    yield "task", f"{history.id}  {history.query}"
    yield from _solution(history.solution)
    yield "origin", f"{history.origin}, joined the pool at step {history.step}"
    for depth, parent in enumerate(history.parents, 1):
        yield "parent" if depth == 1 else f"parent ×{depth}", "  ".join(parent)
    yield "signal", history.signal and f"{history.signal}: {history.signal_evidence}"
    yield "episode", history.source_episode
    yield "explorer", history.explorer and f"{history.explorer}, run {', '.join(map(str, history.runs)) or '–'}"
    yield "verdict", history.verdict
    yield from _evidence(history.verdict_evidence)
    if history.difficulty is not None:
        yield "difficulty", f"{100 * history.difficulty:.0f} % of the attempts on the query alone failed"
    yield "visits", _visits(history.visits)
    if history.parents:
        yield "its parent", f"before: {_visits(v for v in history.parent_visits if v.step <= history.step)}"
        yield "", f"since: {_visits(v for v in history.parent_visits if v.step > history.step)}"


def _visits(visits: Iterable[TaskVisit]) -> str:
    solved = (f"{visit.successes}/{visit.episodes} solved at step {visit.step}" for visit in visits)
    return ", ".join(solved) or "none stored"


def _lines(rows: Iterable[Row]) -> Iterator[Text]:
    """A line for each row that has a text, which is indented below its title."""
    return (Text.assemble((f"{name:<11}", "dim"), _indented(text, 11).lstrip(" ")) for name, text in rows if text)
