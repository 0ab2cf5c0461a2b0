"""Results of suites: rows of named figures, as a table or as JSON."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

# Name → figure: a Spread, a number or a word. Names end in units (…_seconds, …_gb).
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Spread:
    """One figure measured in several repetitions, at least one."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def map(self, function: Callable[[float], float]) -> "Spread":
        return Spread(tuple(function(value) for value in self.values))


def time_calls(
    run: Callable[[], object], repeat_count: int, prepare: Callable[[], object] = lambda: None
) -> tuple[float, Spread]:
    """Seconds of a first call, which warms up, and of `repeat_count` further ones; `prepare` runs before each, untimed.

    `run` must wait until its work is done.
    """
    seconds = []
    for _ in range(repeat_count + 1):
        prepare()
        started_at = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started_at)
    return seconds[0], Spread(tuple(seconds[1:]))


def compute_compile_s(first_s: float, warm_seconds: Spread) -> float:
    """Seconds that the first call took longer than a warm one: tracing, compiling and loading the program."""
    return max(0.0, first_s - warm_seconds.median)


def row_to_json(row: Row) -> dict[str, Any]:
    """The row with the median of each spread, and all repetitions under `values`."""
    values = {figure_name: list(figure.values) for figure_name, figure in row.items() if isinstance(figure, Spread)}
    figures = {
        figure_name: figure.median if isinstance(figure, Spread) else figure for figure_name, figure in row.items()
    }
    return {**figures, "values": values}


def make_table(suite_name: str, rows: Sequence[Row]) -> Table:
    """A table with a line for each figure and a column for each row."""
    grid = Table(title=f"{suite_name}: median (smallest to largest)", title_justify="left", show_header=False)
    grid.add_column(no_wrap=True)
    for _ in rows:
        grid.add_column(justify="right")
    for figure_name in dict.fromkeys(name for row in rows for name in row):
        grid.add_row(
            figure_name.replace("_", " "),
            *(_format_cell(row[figure_name]) if figure_name in row else "" for row in rows),
        )
    return grid


def _format_cell(figure: Any) -> str:
    if isinstance(figure, Spread):
        least, most = _format_number(min(figure.values)), _format_number(max(figure.values))
        return f"{_format_number(figure.median)} ({least} to {most})"
    return _format_number(figure)


def _format_number(figure: Any) -> str:
    if figure is None:
        return "–"
    if isinstance(figure, float):
        return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"
    return f"{figure:,}" if isinstance(figure, int) and not isinstance(figure, bool) else str(figure)
