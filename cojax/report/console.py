"""Output on the terminal while a run goes: one line per step, progress bars, and tables at the end.

A terminal shows colours and live bars; a pipe or a log file gets the same words as plain lines.
"""

import contextlib
import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cojax.report.run import count_verdicts, describe_origin, describe_probe
from cojax.unicode_forms import plain

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)


class _LoggedConsole(Console):
    """A console that shows text literally. Its lines also go to the log of the process, if that accepts INFO.

    It ignores markup and control characters, because much of the text comes from models and from other people's files.
    """

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))

    def print(self, *objects: Any, **options: Any) -> None:
        # Lines of text are not wrapped; tables and bars fit the window.
        options.setdefault("soft_wrap", all(isinstance(renderable, (str, Text)) for renderable in objects))
        super().print(*objects, **options)
        if _LOG.isEnabledFor(logging.INFO):
            log_text = io.StringIO()
            Console(file=log_text, width=self.width, color_system=None, **_LITERAL_OPTIONS).print(*objects, **options)
            for line in filter(None, map(str.rstrip, log_text.getvalue().split("\n"))):
                _LOG.info("%s", plain(line))


# No emoji: rich would turn "module:fire:" into a flame.
_LITERAL_OPTIONS: Any = {"highlight": False, "emoji": False, "markup": False}
CONSOLE: Console = _LoggedConsole(**_LITERAL_OPTIONS)
TABLE_OPTIONS: Any = {"title_justify": "left", "title_style": "bold", "box": None, "padding": (0, 2)}
_COUNT_KEYS = {"signals": "signals", "verdicts": "verdicts", "tasks added": "added", "outcomes": "outcomes"}
_KIND_STYLES = {"forgetting": "red", "boundary": "blue", "rare": "yellow"}
_MAX_KINDS = 60  # kinds of task that a table lists
REPORT_INTERVAL_S = 15.0  # seconds between the lines that replace a bar without a terminal


def format_time(seconds: float) -> str:
    """Seconds in a readable form: 0.4 s, 12 s, 2:05, 1:02:05."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    hours, seconds_in_hour = divmod(whole_seconds, 3600)
    minutes, seconds_in_minute = divmod(seconds_in_hour, 60)
    return f"{hours}:{minutes:02d}:{seconds_in_minute:02d}" if hours else f"{minutes}:{seconds_in_minute:02d}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def estimate_seconds(step_seconds: Sequence[float], step_count: int) -> float | None:
    """Estimates how many seconds `step_count` more steps take, from those of past steps; None before the third step.

    Each counts as the mean of the last twenty steps, which include some evolutions. The first step, which compiles, is
    left out.
    """
    recent_seconds = list(step_seconds)[1:][-20:]
    return step_count * sum(recent_seconds) / len(recent_seconds) if len(recent_seconds) >= 2 else None


def format_step(record: Mapping[str, Any], step_count: int, eta_s: float | None = None) -> Text:
    """A record of metrics.jsonl as one line of text; `eta_s` is the estimated seconds to the end."""
    count_by_kind, seconds_by_part = record.get("signals", {}), record.get("seconds", {})
    step_seconds = seconds_by_part.get("total", sum(seconds_by_part.values()))
    line = Text.assemble(
        ("step ", "dim"),
        (f"{record['step']:>{len(str(step_count))}}/{step_count}", "bold"),
        ("  success ", "dim"),
        (f"{percent(record['success']) if 'success' in record else '–':>5}", "bold green"),
        *((("  reward ", "dim"), f"{record['reward']:.2f}") if "reward" in record else ()),
        *((("  live ", "dim"), f"{_describe_live_groups(record):>5}") if "live_groups" in record else ()),
        ("  signals ", "dim"),
        *_format_signal_counts(count_by_kind),
        ("  pool ", "dim"),
        f"{record['tasks']:>4d}",
    )
    if record.get("loss") is not None:  # None if all groups of the step lack variance
        line.append_text(Text.assemble(("  loss ", "dim"), f"{record['loss']:+.4f}"))
    line.append_text(Text.assemble(("  ", ""), f"{format_time(step_seconds):>6}"))
    if eta_s is not None:
        line.append_text(Text.assemble(("  ETA ", "dim"), format_time(eta_s)))
    return line


def _describe_live_groups(record: Mapping[str, Any]) -> str:
    """The share of live groups; with dynamic sampling, their number and the number of sampled groups."""
    if "groups_sampled" not in record:
        return percent(record["live_groups"])
    return f"{record['groups_live']:.0f} of {record['groups_sampled']}"


def _format_signal_counts(signals: Mapping[str, int]) -> list[tuple[str, str]]:
    """(text, style) of the count of each kind, by its first letters: F for forgetting, B for boundary, R for rare."""
    letters: dict[str, str] = {}
    for kind in dict.fromkeys((*_KIND_STYLES, *signals)):
        lengths = (length for length in range(1, len(kind)) if kind[:length].capitalize() not in letters.values())
        letters[kind] = kind[: next(lengths, len(kind))].capitalize()
    return [(f"{letters[kind]}{signals.get(kind, 0):<3d}", _KIND_STYLES.get(kind, "magenta")) for kind in letters]


def list_extra_lines(record: Mapping[str, Any]) -> list[Text]:
    """Further lines of a step: its evolution, and its evaluation on the development split."""
    lines = []
    if evolution := record.get("evolution"):
        lines.append(Text.assemble(("     evolved ", "bold magenta"), _describe_evolution(evolution)))
        if explorer_figures := evolution.get("explorer"):
            lines.append(Text.assemble(("     explorer ", "bold magenta"), describe_explorer(explorer_figures)))
    if dev := record.get("dev"):
        partial_text = f", partial reward {percent(dev['partial'])}" if "partial" in dev else ""
        lines.append(Text.assemble(("     dev ", "bold cyan"), f"success {percent(dev['success'])}{partial_text}"))
    return lines


def _describe_evolution(evolution: Mapping[str, Any]) -> str:
    """What an evolution did, or why it did nothing."""
    if evolution.get("idle"):
        return f"no expedition: {evolution['idle']}"
    stage_texts = [f"{evolution['expeditions']} expeditions", f"{evolution['drafts']} drafts"]
    stage_texts += [describe_probe(evolution["probe"])] if evolution.get("probe") else []
    stage_texts += [_describe_counts(count_verdicts(evolution)), f"new tasks: {_describe_counts(evolution['added'])}"]
    return " → ".join(stage_texts)


def describe_explorer(figures: Mapping[str, Any]) -> str:
    """An explorer's figures in one line."""
    token_count = figures["tokens_in"] + figures["tokens_out"]
    phrases = [f"{figures['calls']:,} calls", f"{token_count:,} tokens"]
    phrases += [f"{figures['replayed']:,} of them from the journal"] if figures.get("replayed") else []
    phrases += [f"cost {figures['cost']:.2f}"] if figures.get("cost") else []
    phrases += [f"failed: {_describe_counts(figures['failures'])}"] if figures["failures"] else []
    return ", ".join(phrases)


def show_step(record: Mapping[str, Any], steps: int, eta_s: float | None = None, console: Console = CONSOLE) -> None:
    for line in (format_step(record, steps, eta_s), *list_extra_lines(record)):
        console.print(line, soft_wrap=True)


@contextlib.contextmanager
def show_bar(description: str, total: int | None = None, console: Console = CONSOLE) -> Iterator[Callable[..., None]]:
    """A progress bar for `total` items; yields `advance(count=1)`, which any thread may call."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            task_id = progress.add_task(description, total=total)
            yield lambda count=1: progress.advance(task_id, count)
        return
    start_time = last_report_time = time.monotonic()
    done, total_text = 0, "" if total is None else f"/{total}"

    def advance(count: int = 1) -> None:
        nonlocal done, last_report_time
        done += count
        if (now := time.monotonic()) - last_report_time >= REPORT_INTERVAL_S:
            last_report_time = now
            console.print(f"{description}: {done}{total_text}", soft_wrap=True)

    yield advance
    console.print(f"{description}: {done}{total_text} in {format_time(time.monotonic() - start_time)}", soft_wrap=True)


def show_summary(summary: Mapping[str, Any], report_path: str | Path, console: Console = CONSOLE) -> None:
    """The closing table of a run, from summary.json."""
    _show_origin(summary, console)
    console.print(Group(_make_results_table(summary), _make_time_table(summary["seconds"])))
    console.print(f"report: {report_path}", soft_wrap=True)


def show_evaluation(result: Mapping[str, Any], report_path: str | Path, console: Console = CONSOLE) -> None:
    """The closing tables of an evaluation, from result.json."""
    splits = result["splits"]
    _show_origin(result, console)
    table = Table(title="Result", **TABLE_OPTIONS)
    table.add_column("", style="dim", no_wrap=True)
    for split_name in splits:
        table.add_column(split_name, justify="right", no_wrap=True)

    def add_row(row_title: str, format_cell: Callable[[Mapping[str, Any]], str]) -> None:
        table.add_row(row_title, *map(format_cell, splits.values()))

    add_row("tasks", lambda split: str(split["tasks"]))
    add_row(f"avg@{result['samples']}", lambda split: _format_interval(split["avg_at_k"], 100))
    if result["samples"] > 1:
        for k in dict.fromkeys(k for split in splits.values() for k in split["pass_at_k"]):
            add_row(f"pass@{k}", lambda split, k=k: _format_interval(split["pass_at_k"].get(k), 100))  # type: ignore[misc]
    for measure in dict.fromkeys(measure_name for split in splits.values() for measure_name in split["measures"]):
        add_row(measure, lambda split, measure=measure: _format_interval(split["measures"].get(measure), 1))  # type: ignore[misc]
    add_row("partial reward", lambda split: f"{100 * split['partial']:.1f} %")
    add_row("turns", lambda split: f"{split['turns']:.1f}")
    add_row("lost episodes", lambda split: str(split["lost"]))
    # Lines are not cut in a log file or a narrow window.
    console.print(table, width=max(console.width, 20 + 26 * len(splits)), crop=False)
    console.print(result["interval"], style="dim", soft_wrap=True)
    for split_name, split in splits.items():
        if split["by"]:
            console.print(_make_kinds_table(split_name, split))
    if lost := sum(split["lost"] for split in splits.values()):
        console.print(
            f"{lost} episodes were lost to infrastructure failures; the same command plays them again", style="yellow"
        )
    console.print(f"report: {report_path}", soft_wrap=True, markup=False)


def _show_origin(result: Mapping[str, Any], console: Console) -> None:
    if origin := result.get("origin"):
        console.print(f"policy: {describe_origin(origin)}", soft_wrap=True, markup=False)


def _make_kinds_table(split_name: str, result: Mapping[str, Any]) -> Table:
    table = Table(title=f"\n{split_name}, by {result['by_key']}", **TABLE_OPTIONS)
    for column_title in (result["by_key"], "tasks", "success"):
        table.add_column(column_title, justify="left" if column_title == result["by_key"] else "right")
    shown_kinds = list(result["by"].items())[:_MAX_KINDS]
    for kind, figures in shown_kinds:
        table.add_row(Text(kind), str(figures["tasks"]), f"{100 * figures['success']:.1f} %")
    if extra_count := len(result["by"]) - len(shown_kinds):
        table.add_row(f"and {extra_count} more, in result.json", "", "")
    return table


def _format_interval(estimate: Mapping[str, float] | None, scale: float) -> str:
    """An estimate with its confidence interval, in per cent; `scale` converts it to per cent."""
    if estimate is None:
        return "–"
    return f"{scale * estimate['value']:.1f} % ({scale * estimate['low']:.1f}–{scale * estimate['high']:.1f})"


def _make_results_table(summary: Mapping[str, Any]) -> Table:
    table = Table(title="Result", show_header=False, **TABLE_OPTIONS)
    table.add_column(style="dim")
    table.add_column()
    zero_shot_success, final_success = summary.get("zero_shot"), summary.get("final")
    for row_title, score in (("zero-shot", zero_shot_success), ("final", final_success)):
        if score is not None:
            table.add_row(f"held-out success, {row_title}", f"{100 * score:.1f} %")
    for trial, score in enumerate(summary.get("trials", ())[1:], 2):
        table.add_row(f"  after {trial} trials", f"{100 * score:.1f} %")
    for row_title, score in summary.get("final_by", {}).items():
        table.add_row(f"  {row_title}", f"{100 * score:.1f} %")
    if zero_shot_success is not None and final_success is not None:
        table.add_row("gain", Text(f"{100 * (final_success - zero_shot_success):+.1f} points", style="bold green"))
    table.add_row("steps", str(summary["steps"]))
    table.add_row("tasks, start → end", f"{summary['tasks_initial']} → {summary['tasks_final']}")
    for row_title, summary_key in _COUNT_KEYS.items():
        counts = summary.get(summary_key, {})
        table.add_row(row_title, ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none")
    if probe_stats := summary.get("probe"):
        table.add_row("probe", f"{describe_probe(probe_stats)}, {probe_stats['tokens']:,} tokens")
    if (token_counts := summary.get("tokens")) is not None:
        table.add_row("tokens", ", ".join(f"{count:,} {kind}" for kind, count in token_counts.items()))
    if summary.get("logprob_mismatch") is not None:
        table.add_row("mean |log-prob trainer − sampler|", f"{summary['logprob_mismatch']:.2g}")
    return table


def _make_time_table(seconds: Mapping[str, float]) -> Table:
    total_seconds = seconds["total"]
    by_part = {part: part_seconds for part, part_seconds in seconds.items() if part not in ("total", "warm_start")}
    other_seconds = total_seconds - sum(by_part.values())
    table = Table(title="\nWhere the time went", **TABLE_OPTIONS)
    table.add_column("part", style="dim")
    for column_title in ("time", "share", ""):
        table.add_column(column_title, justify="right" if column_title else "left")
    for part, part_seconds in (*by_part.items(), ("everything else", other_seconds), ("total", total_seconds)):
        share = part_seconds / total_seconds if total_seconds else 0.0
        table.add_row(part, format_time(max(part_seconds, 0.0)), f"{100 * share:.1f} %", "█" * round(30 * share))
    if seconds.get("warm_start"):
        table.add_row("warm start (before)", format_time(seconds["warm_start"]), "", "")
    return table


def _describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "none"
