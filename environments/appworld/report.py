"""Reads the reports of workers: the calls of a model's code, and the changes in the databases.

It refuses calls that no honest worker could report, and compares the changes with those of a synthesized task's
solution, table by table.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from cojax.environment import LimitExceeded
from cojax.types import Call, Check, Evaluation, Observation, canonical

# The most bytes of the calls reported in an episode; the worker's own limit is lower.
REPORT_BYTES = 4 * 2**20
# The most values in the report of one step: small values take far more memory than bytes.
_MAX_REPORT_VALUES = 400_000
# The deepest nesting of a call's arguments.
_MAX_ARGUMENT_DEPTH = 32
# Names of apps and APIs.
_NAME_PATTERN = re.compile(r"[A-Za-z_]{1,60}")


def read_report(observation: Observation) -> tuple[str, list[Call], int]:
    """The output of a step, its calls, and the bytes of their report.

    Raises LimitExceeded for a reply that no honest child sends.
    """
    try:
        output, report_text = (message.content for message in observation.messages)
        if not (isinstance(output, str) and isinstance(observation.ok, bool) and isinstance(observation.done, bool)):
            raise TypeError("an observation needs its text, and true or false for ok and for done")
        if len(report_text) > REPORT_BYTES or sum(map(report_text.count, ",[{")) > _MAX_REPORT_VALUES:
            raise ValueError(f"a report holds at most {REPORT_BYTES:,} bytes and {_MAX_REPORT_VALUES:,} values")
        call_records = json.loads(report_text, parse_constant=str, parse_float=finite)
        return output, [_read_call(call_record) for call_record in call_records], len(report_text)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LimitExceeded(f"the reply to step is none: {error}"[:300]) from error


def _read_call(call_record: Any) -> Call:
    """A call in the judge's form. Raises TypeError or KeyError if the record is no call."""
    app, api, arguments, digest = (call_record[field] for field in ("app", "api", "arguments", "digest"))
    if not (isinstance(app, str) and isinstance(api, str) and isinstance(arguments, dict) and isinstance(digest, str)):
        raise TypeError("a call needs app, api, arguments and digest")
    if not (_NAME_PATTERN.fullmatch(app) and _NAME_PATTERN.fullmatch(api)):
        raise TypeError("a name of an app or API has letters and underscores only, at most 60")
    if _is_deeper_than(arguments, _MAX_ARGUMENT_DEPTH):
        raise TypeError(f"arguments nest deeper than {_MAX_ARGUMENT_DEPTH} levels")
    return Call(f"{app}.{api}", {"arguments": arguments, "digest": digest[:32]})


def finite(number_text: str) -> float | str:
    """Reads a number; returns its text if it is infinite: 1e999 reads as infinity, which JSON does not have."""
    number = float(number_text)
    return number if math.isfinite(number) else number_text


def _is_deeper_than(value: Any, level_count: int) -> bool:
    inner_values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return level_count == 0 or any(_is_deeper_than(inner_value, level_count - 1) for inner_value in inner_values)


def compare_effects(reference_effects: Mapping[str, Any], effects: Mapping[str, Any]) -> Evaluation:
    """Checks an episode's changes, each side as by `judge.diff_world`; reward 1.0 if all checks pass, else 0.0.

    There is one check for each part of a table that the solution changes (rows added, changed, removed, as multisets),
    one that nothing else changed, one for the answer, and one that the task was completed. The targets of the partial
    reward are the parts that the solution changes, and the answer if it gives one.
    """
    goal, actual = _group_rows_by_part(reference_effects), _group_rows_by_part(effects)
    row_checks = [Check(f"{table}: {kind}", actual.get((table, kind)) == rows) for (table, kind), rows in goal.items()]
    extra_parts = actual.keys() - goal.keys()
    answer_check = Check("answer", normalise_answer(effects["answer"]) == normalise_answer(reference_effects["answer"]))
    is_done = effects["status"] is not None and effects["status"] == reference_effects["status"]
    checks = (*row_checks, Check("nothing else changed", not extra_parts), answer_check, Check("completed", is_done))
    has_answer = reference_effects["answer"] is not None
    targets = [*row_checks, answer_check] if has_answer else row_checks
    harm_count = len(extra_parts) + (not has_answer and not answer_check.passed)
    partial = score_partially(sum(check.passed for check in targets), len(targets), harm_count)
    return Evaluation(float(all(check.passed for check in checks)), checks, partial)


def score_partially(right_count: int, target_count: int, harm_count: int) -> float:
    """Returns the partial reward for `right_count` of `target_count` targets, lowered by each forbidden change."""
    return right_count / max(1, target_count + harm_count)


def normalise_answer(answer: Any) -> str:
    """The answer as text for comparison: "7" equals 7; case, outer quotes and the order of a list do not count."""
    if answer is None:
        return "null"
    if isinstance(answer, list):
        return " | ".join(sorted(map(normalise_answer, answer)))
    text = str(int(answer) if isinstance(answer, bool) else answer).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    try:
        number = round(float(text), 2)
        return str(int(number)) if number.is_integer() else str(number)
    except (ValueError, OverflowError):
        return text.strip().lower()


def _group_rows_by_part(effects: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    return {
        (table, change_kind): sorted(map(canonical, rows))
        for table, rows_by_kind in effects["tables"].items()
        for change_kind, rows in rows_by_kind.items()
    }
