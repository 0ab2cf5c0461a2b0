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
from cojax.report.exchanges import describe_exchange, find_places, read_exchanges
from cojax.report.lineage import TaskHistory, TaskVisit, format_action, hash_task, read_lineage
from cojax.report.live import serve
from cojax.report.page import write_evaluation_report
from cojax.report.page import write_report as write_run_report
from cojax.report.run import Json, Run, find_expedition, read_run
from cojax.unicode_forms import plain

# Raised on reading a record that no run wrote.
NOT_WRITTEN = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, RecursionError)
Row = tuple[str, str]  # the title and the text of a line; a row without text prints no line


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0, or 2 when a folder is not a run or the id matches no task."""
    parser = CommandLineParser("python -m experiments.report", __doc__)
    parser.add_argument(
        "workdirs", nargs="+", metavar="workdir", help="run directory, such as runs/desk; several: compare"
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--task", metavar="ID", help="print the lineage of this task (a prefix of its id is enough)")
    one.add_argument("--draft", metavar="STEP[/NUMBER]", help="list the drafts of an evolution, or print one of them")
    one.add_argument("--live", action="store_true", help="serve the report on this machine, redrawn while the run goes")
    parser.add_argument("--port", type=int, default=0, help="port for --live; 0 takes a free one")
    parser.add_argument("--out", default="compare.html", help="the file for a comparison of several runs")
    options = parser.parse_args(arguments)
    if len(options.workdirs) > 1 and (options.live or options.task is not None or options.draft is not None):
        parser.error("--live, --task and --draft take one run; name one")
    if not 0 <= options.port < 65_536:
        parser.error(f"--port={options.port}; expected 0 to 65535")
    # A KeyError names the requested task or draft that does not exist.
    return _show_or_fail(parser, options.workdirs, lambda: _show_reports(options), (OSError, KeyError))


def compare(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0, or 2 if a folder holds no finished run or is named twice, or the page cannot be made."""
    parser = CommandLineParser("python -m experiments.compare", comparison.__doc__)
    parser.add_argument("first", metavar="WORKDIR", type=Path, help="the run that the others are compared with")
    parser.add_argument("others", metavar="WORKDIR", type=Path, nargs="+", help="another run")
    parser.add_argument("--tasks", action="store_true", help="also list the evaluation tasks on which they differ")
    parser.add_argument("--out", default="compare.html", help="the file for the page")
    options = parser.parse_args(arguments)
    folders = (options.first, *options.others)

    def show_comparison() -> None:
        runs = [comparison.read_ended_run(folder) for folder in folders]
        CONSOLE.print(comparison.build_table(runs))
        CONSOLE.print(comparison.build_differences(runs))
        if options.tasks:
            CONSOLE.print(comparison.build_task_table(runs))

    return _show_or_fail(parser, folders, show_comparison) or main([*map(str, folders), f"--out={options.out}"])


def _show_or_fail(
    parser: CommandLineParser,
    folders: Sequence[str | Path],
    show_runs: Callable[[], None],
    user_errors: tuple[type[Exception], ...] = (OSError,),
) -> int:
    """Shows these runs. Returns exit status 0, or prints one line that says why this failed and returns 2.

    Errors of the types `user_errors` have a message for the user; any other error means a damaged record. A run that is
    named twice ends the command before anything is read.
    """
    try:
        check_folders(folders)
    except ValueError as error:
        parser.error(str(error))
    try:
        show_runs()
    except user_errors as error:
        message = str(error.args[0] if isinstance(error, KeyError) else error)  # str() of a KeyError is a repr
    except NOT_WRITTEN as error:
        message = not_written(folders, error)
    else:
        return 0
    print(f"error: {plain(message)}", file=sys.stderr)
    return 2


def not_written(folders: Iterable[str | Path], error: Exception) -> str:
    """The message if `error` keeps runs from being shown: a report needs records as a run writes them."""
    return (
        f"{', '.join(map(str, folders))} holds a record that no run wrote "
        f"({plain(f'{type(error).__name__}: {error}')}). The same command of the run names the file and the "
        "line; restore it from a copy."
    )


def _show_reports(options: argparse.Namespace) -> None:
    """Does what the command line asks for."""
    workdir = options.workdirs[0]
    if len(options.workdirs) > 1:
        _print_path("comparison", write_comparison(options.workdirs, options.out))
    elif options.task is not None:
        _print_lines(_render_task(workdir, options.task))
    elif options.draft is not None:
        _print_lines(_render_drafts(read_run(workdir), options.draft))
    elif options.live:
        with contextlib.suppress(KeyboardInterrupt):
            serve(workdir, options.port, lambda address: _print_path("live, until Ctrl-C", address))
    else:
        is_evaluation = (Path(workdir) / "result.json").exists()
        _print_path("report", (write_evaluation_report if is_evaluation else write_run_report)(workdir))


def _print_path(title: str, path: str | Path) -> None:
    CONSOLE.print(f"{title}: {path}")


def _print_lines(lines: Iterable[Text]) -> None:
    for line in lines:
        CONSOLE.print(line)


def _render_task(workdir: str, task_id: str) -> Iterator[Text]:
    """The history of a task, its expedition, and the texts sent and received for it."""
    history, run = read_lineage(workdir, task_id), read_run(workdir)
    yield from _render_lines((*_list_history(history), *_list_expedition(run, history.expedition)))
    yield from _render_exchanges(run, history.expedition, history.id)


def _render_drafts(run: Run, draft_name: str) -> Iterator[Text]:
    """One line for each draft of a step, or all of the draft with that name. Raises KeyError if there is none."""
    draft_by_name = dict(run.numbered_drafts())
    if draft_name in draft_by_name:
        yield from _render_draft(run, draft_name, draft_by_name[draft_name])
        return
    step_drafts = {name: draft for name, draft in draft_by_name.items() if name.startswith(f"{draft_name}/")}
    if not step_drafts:
        steps_text = ", ".join(dict.fromkeys(name.partition("/")[0] for name in draft_by_name)) or "none"
        raise KeyError(
            f"draft {draft_name!r} not found; give STEP or STEP/NUMBER. Steps with drafts in "
            f"{run.folder / 'drafts.jsonl'}: {steps_text}"
        )
    yield from _render_lines(
        (name, f"{draft['verdict']['status']}, {draft['origin']}: {draft['draft']['query']}")
        for name, draft in step_drafts.items()
    )


def _render_draft(run: Run, draft_name: str, draft: Json) -> Iterator[Text]:
    verdict, draft_fields, expedition = draft["verdict"], draft["draft"], find_expedition(draft)
    titled_texts = [
        ("draft", f"{draft_name}  {draft_fields['query']}"),
        *_list_solution(map(format_action, draft_fields.get("solution", ()))),
        *((title, draft.get(title, "")) for title in ("origin", "parent", "signal", "episode")),
        ("verdict", verdict["status"]),
        ("set aside", verdict.get("quarantine", "")),
        *_list_evidence(verdict["evidence"]),
        ("task", draft.get("task", "")),
        *_list_expedition(run, expedition),
    ]
    yield from _render_lines(titled_texts)
    task_id = hash_task(draft_fields) if {"environment", "query", "setup"} <= draft_fields.keys() else ""
    yield from _render_exchanges(run, expedition, task_id)


def _list_solution(actions: Iterable[str]) -> Iterator[Row]:
    return (("" if number > 1 else "solution", f"{number}. {action}") for number, action in enumerate(actions, 1))


def _list_evidence(lines: Iterable[str]) -> Iterator[Row]:
    return (("", f"· {line}") for line in lines)


def _list_expedition(run: Run, expedition_key: tuple[int, int] | None) -> Iterator[Row]:
    """The explorer's context and the results of its runs, as far as the run recorded them."""
    record = run.expeditions.get(expedition_key) if expedition_key else None
    if record is None:
        return
    for index, (context_name, context_value) in enumerate((record.get("context") or {}).items()):
        for line in context_value if isinstance(context_value, list) else [context_value]:
            if line:
                yield "" if index else "context", f"{context_name.replace('_', ' ')}: {line}"
    for run_record in record.get("runs", ()):
        yield f"run {run_record['run']}", f"{run_record['ok']} of {run_record['actions']} actions worked"
    for failure in (*record.get("failures", ()), record.get("error", "")):
        yield "failure", failure


def _render_exchanges(run: Run, expedition_key: tuple[int, int] | None, task_id: str) -> Iterator[Text]:
    """All texts sent to a model and received from it, for an expedition and for the validation of a task."""
    journal = run.folder / "journal.jsonl"
    if not (places_by_key := find_places(journal)):
        return
    for stage, exchange_key in (("exploration", expedition_key or ""), ("validation", task_id)):
        exchanges = read_exchanges(journal, places_by_key.get(exchange_key, ()))
        heading = f"{stage}: {len(exchanges)} call{'' if len(exchanges) == 1 else 's'} to a model"
        yield Text.assemble(("\n" + "═" * 100 + "\n", "dim"), (heading, "bold"))
        for exchange in exchanges:
            yield from _render_exchange(exchange)


def _render_exchange(exchange: Json) -> Iterator[Text]:
    place_text, facts_text = plain(exchange["place"]), plain(describe_exchange(exchange))
    yield Text.assemble(("\n" + "─" * 100 + "\n", "dim"), (place_text, "bold"), (f"\n{facts_text}", "dim"))
    objects = {name: value for name, value in exchange["settings"].items() if not isinstance(value, (str, int, float))}
    if objects:
        yield Text.assemble(("sent, besides the messages: ", "dim"), plain(json.dumps(objects, ensure_ascii=False)))
    if shared_count := exchange["shared"]:
        yield Text(f"sent: the {shared_count} messages of the call before, word for word, then", style="dim")
    for role, content in exchange["messages"][shared_count:]:
        yield Text.assemble((f"sent, {plain(role)}:\n", "dim"), _indent(content, 2))
    reply_text = exchange["text"]
    yield Text.assemble(("received:\n", "dim"), "nothing" if reply_text is None else _indent(reply_text, 2))


def _indent(text: str, depth: int) -> str:
    """Indents each line of the text, so that none can be mistaken for one of the report's own."""
    return "\n".join(" " * depth + line for line in plain(text).split("\n"))


def _list_history(history: TaskHistory) -> Iterator[Row]:
    """The rows of a task's history: its solution, origin, parents and verdict, and the visits since."""
    yield "task", f"{history.id}  {history.query}"
    yield from _list_solution(history.solution)
    yield "origin", f"{history.origin}, joined the pool at step {history.step}"
    for depth, parent in enumerate(history.parents, 1):
        yield "parent" if depth == 1 else f"parent ×{depth}", "  ".join(parent)
    yield "signal", history.signal and f"{history.signal}: {history.signal_evidence}"
    yield "episode", history.source_episode
    yield "explorer", history.explorer and f"{history.explorer}, run {', '.join(map(str, history.runs)) or '–'}"
    yield "verdict", history.verdict
    yield from _list_evidence(history.verdict_evidence)
    if history.difficulty is not None:
        yield "difficulty", f"{100 * history.difficulty:.0f} % of the attempts on the query alone failed"
    yield "visits", _describe_visits(history.visits)
    if history.parents:
        yield "its parent", f"before: {_describe_visits(v for v in history.parent_visits if v.step <= history.step)}"
        yield "", f"since: {_describe_visits(v for v in history.parent_visits if v.step > history.step)}"


def _describe_visits(visits: Iterable[TaskVisit]) -> str:
    visit_texts = (f"{visit.successes}/{visit.episodes} solved at step {visit.step}" for visit in visits)
    return ", ".join(visit_texts) or "none stored"


def _render_lines(rows: Iterable[Row]) -> Iterator[Text]:
    """One line for each row that has a text; further lines of the text are indented to match."""
    return (Text.assemble((f"{title:<11}", "dim"), _indent(text, 11).lstrip(" ")) for title, text in rows if text)
