"""The page of an audit: one file that needs no network. All that a world or a task wrote is escaped."""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .findings import Finding

_TEMPLATE = Path(__file__).with_name("page.html")


def expect_writable(path: Path) -> None:
    """Raises OSError if the page could not be written: an audit may take long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.open("ab").close()


def write_page(path: Path, name: str, found: Sequence[Finding], summary: Mapping[str, Any]) -> None:
    """Writes the page. Raises OSError."""
    page = _TEMPLATE.read_text(encoding="utf-8")
    counts = ", ".join(f"{count} {severity}" for severity, count in summary["findings"].items())
    floor = ", ".join(f"{attacker} {reward}" for attacker, reward in summary["floor"].items())
    parts = {
        "NAME": _escape(name),
        "SUMMARY": _escape(f"{summary['tasks']} tasks, {summary['episodes']} episodes. Open findings: {counts}."),
        "FLOOR": _escape(f"Mean rewards of the floor: {floor}. Seed {summary['seed']}."),
        "ATTACKERS": "\n".join(_write_tally(attacker, tally) for attacker, tally in summary["attackers"].items()),
        "FINDINGS": "\n".join(map(_write_finding, found)),
    }
    page = re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], page)
    path.write_text(page, encoding="utf-8")


def _escape(text: Any) -> str:
    shown = "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in str(text))
    return html.escape(shown)


def _write_tally(attacker: str, tally: Mapping[str, Any]) -> str:
    return f"<tr>{''.join(f'<td>{_escape(cell)}</td>' for cell in (attacker, *tally.values()))}</tr>"


def _write_finding(finding: Finding) -> str:
    heads = (finding.severity, finding.attacker, finding.verdict, finding.task, finding.why)
    details = [f"{finding.rule}. To mend it, {finding.mend}.", f"Query: {finding.query}", f"Id: {finding.id}"]
    if finding.reason:
        details.append(f"By design: {finding.reason}")
    columns = (("attacker", finding.actions), ("honest solution", finding.honest_actions))
    return (
        f'<details data-severity="{_escape(finding.severity)}" data-attacker="{_escape(finding.attacker)}" '
        f'data-verdict="{_escape(finding.verdict)}"><summary>{" · ".join(map(_escape, heads))}</summary>'
        f"{''.join(f'<p>{_escape(line)}</p>' for line in details)}"
        f'<div class="pair">{"".join(_write_transcript(*column) for column in columns)}</div></details>'
    )


def _write_transcript(title: str, lines: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<li><code>{_escape(action)}</code><samp>{_escape(answer)}</samp></li>" for action, answer in lines)
    return f"<section><h3>{_escape(title)}</h3><ol>{rows}</ol></section>"
