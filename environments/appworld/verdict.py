"""The verdict on a synthesized task: compares the episode's changes with its solution's, table by table."""

from collections.abc import Mapping
from typing import Any

from cojax.types import Check, Evaluation, canonical


def compare(reference: Mapping[str, Any], done: Mapping[str, Any]) -> Evaluation:
    """The checks on an episode's changes, both sides as of `changes.changes`; reward 1.0 if all pass, else 0.0.

    One check for each part of a table that the solution changes (rows added, changed, removed, as multisets); one that
    nothing else changed; one for the answer; one that the task was completed. The expected changes of the partial
    reward are the parts that the solution changes, and the answer if it gives one.
    """
    expected, found = _parts(reference), _parts(done)
    parts = [Check(f"{table}: {part}", found.get((table, part)) == rows) for (table, part), rows in expected.items()]
    others = found.keys() - expected.keys()
    answer = Check("answer", answer_text(done["answer"]) == answer_text(reference["answer"]))
    completed = done["status"] is not None and done["status"] == reference["status"]
    checks = (*parts, Check("nothing else changed", not others), answer, Check("completed", completed))
    answers = reference["answer"] is not None
    wanted = [*parts, answer] if answers else parts
    harm = len(others) + (not answers and not answer.passed)
    partial = achieved(sum(check.passed for check in wanted), len(wanted), harm)
    return Evaluation(float(all(check.passed for check in checks)), checks, partial)


def achieved(right: int, wanted: int, harm: int) -> float:
    """The partial reward: of `wanted` things `right` were done; each of `harm` forbidden changes lowers it."""
    return right / max(1, wanted + harm)


def answer_text(answer: Any) -> str:
    """The answer as it is compared: "7" equals 7; case, outer quotes and the order of a list do not count."""
    if answer is None:
        return "null"
    if isinstance(answer, list):
        return " | ".join(sorted(map(answer_text, answer)))
    text = str(int(answer) if isinstance(answer, bool) else answer).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    try:
        number = round(float(text), 2)
        return str(int(number)) if number.is_integer() else str(number)
    except (ValueError, OverflowError):
        return text.strip().lower()


def _parts(done: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    return {
        (table, part): sorted(map(canonical, rows))
        for table, parts in done["tables"].items()
        for part, rows in parts.items()
    }
