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


def timed(
    run: Callable[[], object], repeats: int, prepare: Callable[[], object] = lambda: None
) -> tuple[float, Spread]:
    """Seconds of a first call, which warms up, and of `repeats` further ones; `prepare` runs before each, untimed.

    `run` must wait until its work is done.
    """
    seconds = []
    for _ in range(repeats + 1):
        prepare()
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return seconds[0], Spread(tuple(seconds[1:]))


def compile_seconds(first: float, warm: Spread) -> float:
    """Seconds that the first call took longer than a warm one: tracing, compiling and loading the program."""
    return max(0.0, first - warm.median)


def as_json(row: Row) -> dict[str, Any]:
    """The row with the median of each spread, and all repetitions under \"values\"."""
    values = {name: list(figure.values) for name, figure in row.items() if isinstance(figure, Spread)}
    plain = {name: figure.median if isinstance(figure, Spread) else figure for name, figure in row.items()}
    return {**plain, "values": values}


def table(suite: str, rows: Sequence[Row]) -> Table:
    """A table with a line for each figure and a column for each row."""
    grid = Table(title=f"{suite}: median (smallest to largest)", title_justify="left", show_header=False)
    grid.add_column(no_wrap=True)
    for _ in rows:
        grid.add_column(justify="right")
    for name in dict.fromkeys(name for row in rows for name in row):
        grid.add_row(name.replace("_", " "), *(_cell(row[name]) if name in row else "" for row in rows))
    return grid


def _cell(figure: Any) -> str:
    if isinstance(figure, Spread):
        return f"{_number(figure.median)} ({_number(min(figure.values))} to {_number(max(figure.values))})"
    return _number(figure)


def _number(figure: Any) -> str:
    if isinstance(figure, float):
        return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"
    return f"{figure:,}" if isinstance(figure, int) and not isinstance(figure, bool) else str(figure)
