"""NAME.json → NAME.md: the page of a table (page.md.jinja), with success in per cent and differences in points."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from cojax.registry.source import shortened
from .record import FAILURE_SHARES
from .summary import EXAMPLES, LONG

# A table by tool is left out of the page where it has more rows; NAME.json has it.
_MOST_ROWS = 60
_PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    autoescape=False,  # a page of Markdown
)


def percent(share: Any, digits: int = 1, unknown: str = "–", unit: str = "") -> str:
    """A share in per cent; `unknown`, a dash, where it is not known."""
    return _told(100 * share if isinstance(share, (int, float)) else None, f".{digits}f", unknown, unit)


def _told(value: Any, form: str, unknown: str = "–", unit: str = "") -> str:
    """The value in this form, such as ".1f", with its unit; `unknown`, a dash, where it is not known."""
    return f"{value:{form}}{unit}" if isinstance(value, (int, float)) else unknown


def _interval(found: Mapping[str, Any]) -> str:
    """A mean share (keys mean, low, high) in per cent, with half the width of its interval where it has one."""
    half = "" if found["low"] is None else f" ± {100 * (found['high'] - found['mean']):.1f}"
    return percent(found["mean"]) + half


def _points(value: float | None) -> str:
    """A difference of shares in points, with its sign."""
    return _told(None if value is None else 100 * value, "+.1f")


def _bounds(row: Mapping[str, Any]) -> str:
    """The interval of a difference in points."""
    return "" if row["low"] is None else f"[{_points(row['low'])}, {_points(row['high'])}]"


def _compared(arm: Mapping[str, Any], name: str, reference: Mapping[str, Any] | None) -> str:
    """A budget of an arm; in brackets how much more it is than the reference's."""
    value = arm["budget"].get(name, 0)
    against = reference["budget"].get(name, 0) if reference and reference is not arm else 0
    return f"{value:,.0f}" + (f" ({100 * (value / against - 1):+.0f} %)" if against else "")


def _rate(gain: float, unit: int, cost: float) -> str:
    """Points gained per `unit` of a cost; a dash where an arm cost nothing."""
    return _told(unit * (100 * gain) / cost if cost else None, ".2f")


def _one_line(text: str) -> str:
    return " ".join(text.split()) + "\n"


def _head(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n|{' --- |' * len(cells)}"


_PAGES.filters |= {
    "percent": percent, "told": _told, "interval": _interval, "points": _points, "bounds": _bounds,
    "compared": _compared, "rate": _rate, "one_line": _one_line, "shortened": shortened,
}  # fmt: skip
_PAGES.globals |= {
    "head": _head, "EXAMPLES": EXAMPLES, "FAILURE_SHARES": list(FAILURE_SHARES), "LONG": LONG, "MOST_ROWS": _MOST_ROWS,
}  # fmt: skip


def render_page(summary: Mapping[str, Any], figures: Sequence[str] = ()) -> str:
    """The text of the page; `figures` are names of pictures in the folder NAME/ beside it."""
    arms = summary["arms"]
    counts = sorted({one.get("NPROC", "1") for one in summary["made_with"]["threads"]})
    text = _PAGES.get_template("page.md.jinja").render(
        summary,
        folder=summary["name"],
        figures=figures,
        titles={arm["arm"]: arm["title"] for arm in arms},
        given=next((arm for arm in arms if arm["arm"] == summary["reference"]), None),
        tried_again=any(arm["settings"].get("evaluation.trials", 1) > 1 for arm in arms),
        learned=lambda name: all(name in arm["learning"] for arm in arms),
        reasons=list(dict.fromkeys(reason for arm in arms for reason in arm["refused"])),
        threads=" or ".join("one thread" if count == "1" else f"{count} threads" for count in counts),
    )
    return re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"
