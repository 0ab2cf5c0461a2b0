"""The tables of docs/performance.md from the records in results/gpu: python -m benchmarks.gpu.tables

Each folder there is what `python -m experiments.bench gpu --out=…` wrote on one card.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.children import ROOT
from benchmarks.gpu.runs import RUNS
from cojax.registry.source import short_commit
from cojax.storage.files import read_json, write_text

PAGE, RECORDS = ROOT / "docs" / "performance.md", ROOT / "results" / "gpu"
BEGIN, END = "<!-- begin: python -m benchmarks.gpu.tables -->\n", "<!-- end -->"
Record = Mapping[str, Any]
# Heading of a column → the figure of a row, and its digits.
_Columns = Mapping[str, tuple[str, str]]
_UPDATE: _Columns = {
    "seconds": ("update_seconds", ".2f"), "share of the matmul rate": ("mfu", ".2f"),
    "peak memory, GB": ("peak_device_gb", ".1f"), "predicted for an H100, GB": ("predicted_gb", ".1f"),
    "compilation, s": ("compile_seconds", ".0f"),
}  # fmt: skip
_PREFILL: _Columns = {
    "prefill, s": ("prefill_seconds", ".2f"), "tokens a second": ("tokens_per_second", ",.0f"),
    "share of its bound": ("share_of_bound", ".2f"), "first call, s": ("compile_seconds", ".0f"),
}  # fmt: skip
_DECODE: _Columns = {
    "decode, s": ("decode_seconds", ".2f"), "tokens a second": ("tokens_per_second", ",.0f"),
    "share of the bandwidth": ("bandwidth_share", ".2f"), "peak memory, GB": ("peak_device_gb", ".1f"),
}  # fmt: skip
_NUMBERS: _Columns = {
    "logits": ("logits_difference", ".1e"), "log-probs": ("logprobs_difference", ".1e"),
    "loss": ("loss_difference", ".1e"), "gradient's norm": ("grad_norm_difference", ".1e"),
    "AdamW step": ("step_difference", ".1e"), "tokens the same": ("tokens_the_same", ""),
    "sampled log-probs, at most": ("sampled_logprobs_apart", ".1e"),
    "engine and learner, at most": ("engine_and_learner_apart", ".1e"),
}  # fmt: skip
_RUN: _Columns = {
    "steps": ("steps", "d"), "seconds a step": ("step_seconds", ".2f"), "generation, s": ("generation_seconds", ".2f"),
    "update, s": ("update_seconds", ".2f"), "held out before": ("zero_shot", ".1%"), "after": ("final", ".1%"),
}  # fmt: skip


def tables(folder: Path) -> str:
    """The tables of one folder of records, in Markdown. Raises ValueError for a file that is no record."""
    records = [_record(path) for path in sorted(folder.glob("*.json"))]
    measured = {record["part"]: record for record in records if "rows" in record}
    sections = [
        _heading(folder, records),
        _ceilings(measured.get("ceilings")),
        _table("update", _UPDATE, _rows(measured, "update-", _shape)),
        _table("prefill, conversations", _PREFILL, _rows(measured, "sample-", _batch, "prefill_seconds")),
        _table("decode, conversations", _DECODE, _rows(measured, "sample-", _batch, "decode_seconds")),
        _table("from the CPU's numbers", _NUMBERS, _rows(measured, "numbers", _model, "model")),
        _table("main command", _RUN, [(name, measured[name]["rows"][0]) for name in RUNS if name in measured]),
        "".join(f"- Not measured: {record['part']}: {record['failed']}\n" for record in records if "failed" in record),
    ]
    return "\n".join(section for section in sections if section)


def _record(path: Path) -> Record:
    record = read_json(path)
    if "part" not in record or not {"rows", "failed"} & set(record):
        raise ValueError(f"{path} is no record of the suite gpu; move it away")
    return record


def _heading(folder: Path, records: Sequence[Record]) -> str:
    about = records[0]
    kinds = {kind for record in records for kind in record.get("hardware", {}).get("devices", [])}
    days = sorted({record["when"][:10] for record in records})
    days = days if len(days) < 2 else [f"{days[0]} to {days[-1]}"]
    where = f"`results/gpu/{folder.name}`, jax {about['versions']['jax']}, commit {short_commit(about['commit'])}"
    return (
        f"### {', '.join(sorted(kinds)) or folder.name}, {' to '.join(dict.fromkeys((days[0], days[-1])))}\n\n{where}\n"
    )


def _ceilings(record: Record | None) -> str:
    if record is None:
        return ""
    row = record["rows"][0]
    return (
        f"Measured ceilings: {row['matmul_tflops_per_second']:,.0f} TFLOP/s in bfloat16, "
        f"{row['matmul_tflops_per_second_float32']:,.0f} in float32, {row['bandwidth_gb_per_second']:,.0f} GB/s.\n"
    )


def _rows(
    measured: Mapping[str, Record], prefix: str, name: Callable[[Record], str], figure: str = ""
) -> list[tuple[str, Record]]:
    """The rows of all parts of that prefix that have the figure, in the order of their names' numbers."""
    found = [row for part, record in measured.items() if part.startswith(prefix) for row in record["rows"]]
    kept = [row for row in found if not figure or figure in row]
    return [(name(row), row) for row in sorted(kept, key=lambda row: (row.get("parameters", 0), row.get("batch", 0)))]


def _shape(row: Record) -> str:
    return f"{row['shape']}, {row['rows']} × {row['row_length']:,} tokens"


def _batch(row: Record) -> str:
    return f"{row['shape']}, {row['batch']}"


def _model(row: Record) -> str:
    return f"{row['model']}, {row['dtype']}"


def _table(title: str, columns: _Columns, rows: Sequence[tuple[str, Record]]) -> str:
    """Columns that no row has are left out."""
    shown = {head: column for head, column in columns.items() if any(row.get(column[0]) is not None for _, row in rows)}
    if not shown:
        return ""
    lines = [f"| {title} | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for name, row in rows:
        cells = ("–" if row.get(key) is None else format(row[key], digits) for key, digits in shown.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(text: str, folders: Iterable[Path]) -> str:
    """The page with its tables made anew. Raises ValueError where it has no place for them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no lines {BEGIN.strip()} and {END}, between which the tables stand; write them")
    return before + begin + "\n".join(tables(folder) for folder in folders) + end + after


def main() -> int:
    try:
        made = page(PAGE.read_text(), sorted(path for path in RECORDS.iterdir() if path.is_dir()))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_text(PAGE, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
