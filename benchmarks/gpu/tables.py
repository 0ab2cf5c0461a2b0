"""The tables of docs/performance.md from the records in results/gpu: python -m benchmarks.gpu.tables

Each folder there is what `python -m experiments.bench gpu --out=…` wrote on one card.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.children import ROOT
from benchmarks.gpu.runs import RUNS
from cojax.registry.source import shorten_commit
from cojax.storage.files import read_json, write_text

PAGE, RECORDS_FOLDER = ROOT / "docs" / "performance.md", ROOT / "results" / "gpu"
BEGIN_MARK, END_MARK = "<!-- begin: python -m benchmarks.gpu.tables -->\n", "<!-- end -->"
Record = Mapping[str, Any]
# Heading of a column → the figure of a row, and its digits.
_Columns = Mapping[str, tuple[str, str]]
_UPDATE_COLUMNS: _Columns = {
    "seconds": ("update_seconds", ".2f"), "share of the matmul rate": ("mfu", ".2f"),
    "of the nominal bound": ("share_of_nominal", ".2f"),
    "peak memory, GB": ("peak_device_gb", ".1f"), "predicted for an H100, GB": ("predicted_gb", ".1f"),
    "compilation, s": ("compile_seconds", ".0f"),
}  # fmt: skip
_ATTENTION_COLUMNS: _Columns = {
    "forward, ms": ("forward_ms", ".2f"), "TFLOP/s": ("forward_tflops_per_second", ".0f"),
    "with backward, ms": ("both_passes_ms", ".2f"), "TFLOP/s of both": ("both_passes_tflops_per_second", ".0f"),
    "from blockwise, at most": ("difference", ".1e"),
}  # fmt: skip
_PREFILL_COLUMNS: _Columns = {
    "prefill, s": ("prefill_seconds", ".2f"), "tokens a second": ("tokens_per_second", ",.0f"),
    "share of its bound": ("share_of_bound", ".2f"), "of the nominal bound": ("share_of_nominal", ".2f"),
    "first call, s": ("compile_seconds", ".0f"),
}  # fmt: skip
_DECODE_COLUMNS: _Columns = {
    "decode, s": ("decode_seconds", ".2f"), "tokens a second": ("tokens_per_second", ",.0f"),
    "share of the bandwidth": ("bandwidth_share", ".2f"), "of the nominal bound": ("share_of_nominal", ".2f"),
    "peak memory, GB": ("peak_device_gb", ".1f"),
}  # fmt: skip
_NUMBERS_COLUMNS: _Columns = {
    "logits": ("logits_difference", ".1e"), "log-probs": ("logprobs_difference", ".1e"),
    "loss": ("loss_difference", ".1e"), "gradient's norm": ("grad_norm_difference", ".1e"),
    "AdamW step": ("step_difference", ".1e"), "tokens the same": ("tokens_the_same", ""),
    "sampled log-probs, at most": ("sampled_logprobs_apart", ".1e"),
    "engine and learner, at most": ("engine_and_learner_apart", ".1e"),
}  # fmt: skip
_RUN_COLUMNS: _Columns = {
    "steps": ("steps", "d"), "seconds a step": ("step_seconds", ".2f"), "generation, s": ("generation_seconds", ".2f"),
    "update, s": ("update_seconds", ".2f"), "held out before": ("zero_shot", ".1%"), "after": ("final", ".1%"),
}  # fmt: skip


def make_tables(folder: Path) -> str:
    """The tables of one folder of records, in Markdown. Raises ValueError for a file that is no record."""
    records = [_read_record(path) for path in sorted(folder.glob("*.json"))]
    record_by_part = {record["part"]: record for record in records if "rows" in record}
    sections = [
        _make_heading(folder, records),
        _describe_ceilings(record_by_part.get("ceilings")),
        _make_table("update", _UPDATE_COLUMNS, _select_rows(record_by_part, "update-", _name_by_shape)),
        _make_table(
            "attention alone", _ATTENTION_COLUMNS, _select_rows(record_by_part, "attention", _name_by_kernel, "kernel")
        ),
        _make_table(
            "prefill, conversations",
            _PREFILL_COLUMNS,
            _select_rows(record_by_part, "sample-", _name_by_batch, "prefill_seconds"),
        ),
        _make_table(
            "decode, conversations",
            _DECODE_COLUMNS,
            _select_rows(record_by_part, "sample-", _name_by_batch, "decode_seconds"),
        ),
        _make_table(
            "from the CPU's numbers", _NUMBERS_COLUMNS, _select_rows(record_by_part, "numbers", _name_by_model, "model")
        ),
        _make_table(
            "main command",
            _RUN_COLUMNS,
            [(run_name, record_by_part[run_name]["rows"][0]) for run_name in RUNS if run_name in record_by_part],
        ),
        "".join(f"- Not measured: {record['part']}: {record['failed']}\n" for record in records if "failed" in record),
    ]
    return "\n".join(section for section in sections if section)


def _read_record(path: Path) -> Record:
    record = read_json(path)
    if "part" not in record or not {"rows", "failed"} & set(record):
        raise ValueError(f"{path} is no record of the suite gpu; move it away")
    return record


def _make_heading(folder: Path, records: Sequence[Record]) -> str:
    first_record = records[0]
    device_kinds = {device_kind for record in records for device_kind in record.get("hardware", {}).get("devices", [])}
    days = sorted({record["when"][:10] for record in records})
    days = days if len(days) < 2 else [f"{days[0]} to {days[-1]}"]
    jax_version, commit = first_record["versions"]["jax"], shorten_commit(first_record["commit"])
    heading = f"{', '.join(sorted(device_kinds)) or folder.name}, {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    return f"### {heading}\n\n`results/gpu/{folder.name}`, jax {jax_version}, commit {commit}\n"


def _describe_ceilings(record: Record | None) -> str:
    if record is None:
        return ""
    row = record["rows"][0]
    return (
        f"Measured ceilings: {row['matmul_tflops_per_second']:,.0f} TFLOP/s in bfloat16, "
        f"{row['matmul_tflops_per_second_float32']:,.0f} in float32, {row['bandwidth_gb_per_second']:,.0f} GB/s.\n"
    )


def _select_rows(
    record_by_part: Mapping[str, Record], part_prefix: str, name_row: Callable[[Record], str], required_figure: str = ""
) -> list[tuple[str, Record]]:
    """The rows of all parts of that prefix that have the figure, in the order of their names' numbers."""
    candidate_rows = [
        row for part, record in record_by_part.items() if part.startswith(part_prefix) for row in record["rows"]
    ]
    rows = [row for row in candidate_rows if not required_figure or required_figure in row]
    return [
        (name_row(row), row) for row in sorted(rows, key=lambda row: (row.get("parameters", 0), row.get("batch", 0)))
    ]


def _name_by_shape(row: Record) -> str:
    name = f"{row['shape']}, {row['rows']} × {row['row_length']:,} tokens"
    return f"{name}, {row['micro_rows']} at a time, remat {row['remat']}" if "micro_rows" in row else name


def _name_by_batch(row: Record) -> str:
    name = f"{row['shape']}, {row['batch']}"
    return f"{name} of {row['max_length']:,} positions" if "max_length" in row else name


def _name_by_kernel(row: Record) -> str:
    return f"{row['kernel']}, {row['segments']} segments" if "segments" in row else f"{row['kernel']}, {row['result']}"


def _name_by_model(row: Record) -> str:
    return f"{row['model']}, {row['dtype']}"


def _make_table(title: str, columns: _Columns, rows: Sequence[tuple[str, Record]]) -> str:
    """Columns that no row has are left out."""
    shown_columns = {
        head: column for head, column in columns.items() if any(row.get(column[0]) is not None for _, row in rows)
    }
    if not shown_columns:
        return ""
    lines = [f"| {title} | {' | '.join(shown_columns)} |", "|---" * (len(shown_columns) + 1) + "|"]
    for row_name, row in rows:
        cells = (
            "–" if row.get(figure) is None else format(row[figure], digits) for figure, digits in shown_columns.values()
        )
        lines.append(f"| {row_name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def update_page(page_text: str, folders: Iterable[Path]) -> str:
    """The page with its tables made anew. Raises ValueError where it has no place for them."""
    before, begin, tail = page_text.partition(BEGIN_MARK)
    _, end, after = tail.partition(END_MARK)
    if not begin or not end:
        raise ValueError(
            f"{PAGE} has no lines {BEGIN_MARK.strip()} and {END_MARK}, between which the tables stand; write them"
        )
    return before + begin + "\n".join(make_tables(folder) for folder in folders) + end + after


def main() -> int:
    try:
        page_text = update_page(PAGE.read_text(), sorted(path for path in RECORDS_FOLDER.iterdir() if path.is_dir()))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_text(PAGE, page_text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
