"""Findings of an audit: what was found, whether it is accepted, and the exit status that follows."""

import dataclasses
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cojax.types import Action, signature
from .attackers import ATTACKERS, SEVERITIES, Severity
from .player import Run

Verdict = Literal["open", "by design"]
_MAX_ACTIONS, _MAX_CHARS = 60, 300
_KEYS = ("attacker", "task", "reason")


@dataclasses.dataclass(frozen=True)
class Finding:
    """What an attacker found in a task.

    `id` is attacker/task/number of the first attempt that shows it; `shown_by` counts such attempts, `tried` all.
    `actions` and `honest_actions` are readable lines, each with what it was answered.
    """

    id: str
    attacker: str
    severity: Severity
    verdict: Verdict
    task: str
    rule: str
    query: str
    attempt: str
    why: str
    mend: str
    reward: float
    honest_reward: float | None
    shown_by: int = 1
    tried: int = 1
    reason: str = ""
    actions: tuple[tuple[str, str], ...] = ()
    honest_actions: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Accepted:
    """Findings that are by design: an attacker, a task or "*" for all, and the reason."""

    attacker: str
    task: str
    reason: str


def write_transcript(run: Run | None) -> tuple[tuple[str, str], ...]:
    """The actions of a play as readable lines, each with what it was answered."""
    turns = run.trajectory.turns[:_MAX_ACTIONS] if run else ()
    return tuple((describe(turn.action), _shorten(turn.observation.text)) for turn in turns)


def describe(action: Action) -> str:
    """The action as a short line."""
    return _shorten(signature(action) or "(nothing)")


def _shorten(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}… ({len(text):,} characters)"


def read_accepted(path: str, attackers: Collection[str] = tuple(ATTACKERS)) -> list[Accepted]:
    """The entries of a file of accepted findings. Raises ValueError, which names the entry and the fix."""
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("accept", [])
    except (OSError, ValueError) as error:
        raise ValueError(f"--accepted={path}: {error}; expected a TOML file with entries [[accept]]") from error
    accepted = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
        texts = [str(entry.get(key, "")).strip() for key in _KEYS] if isinstance(entry, dict) else []
        if not (all(texts) and len(texts) == len(entry) and texts[0] in attackers):
            raise ValueError(
                f"--accepted={path}: entry {number} is {entry!r:.200}; expected task (an id or *), reason, and "
                f"attacker, one of {', '.join(attackers)}"
            )
        accepted.append(Accepted(*texts))
    return accepted


def read_by_design(namespace: Mapping[str, Any]) -> list[Accepted]:
    """What a world's module documents as by design: BY_DESIGN, attacker → the reason. Raises ValueError."""
    documented = namespace.get("BY_DESIGN", {})
    if not (isinstance(documented, Mapping) and all(isinstance(reason, str) for reason in documented.values())):
        raise ValueError(f"BY_DESIGN is {documented!r:.100}; expected attacker → the reason in words")
    return [Accepted(attacker, "*", reason) for attacker, reason in documented.items()]


def settle(finding: Finding, accepted: Sequence[Accepted]) -> Finding:
    """The finding, by design if an entry covers it."""
    reasons = (e.reason for e in accepted if e.attacker == finding.attacker and e.task in ("*", finding.task))
    reason = next(reasons, None)
    return finding if reason is None else dataclasses.replace(finding, verdict="by design", reason=reason)


def count_open(findings: Sequence[Finding]) -> dict[str, int]:
    """Open findings by severity."""
    open_severities = [finding.severity for finding in findings if finding.verdict == "open"]
    return {severity: open_severities.count(severity) for severity in SEVERITIES}


def exit_status(findings: Sequence[Finding], failures: Sequence[str], fail_on: str) -> int:
    """1 for an open finding at or above `fail_on`, else 2 if something could not be examined, else 0."""
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()  # type: ignore[arg-type]
    if any(count_open(findings)[severity] for severity in failing):
        return 1
    return 2 if failures else 0
