"""Compiles the cells of the table in docs/pods.md: python -m benchmarks.compile_table [--minutes=100] [--only=h100x8]

It compiles the cells one by one, each in its own process, and stores each in benchmarks/compiled as it ends. Run again,
the command continues with the missing cells. A cell that does not fit is followed by one with the suggested settings,
and so on until one fits.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shapes import SHAPES
from cojax.command import CommandLineParser
from cojax.compile.programs import format_setting
from cojax.compile.targets import GIB
from cojax.storage.files import read_json, write_json, write_text

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks/compiled", ROOT / "docs/pods.md"
TABLE_MARKS = "<!-- table: begin -->", "<!-- table: end -->"
MODELS = {"Qwen3-4B": "4b", "Qwen2.5-7B": "7b", "Qwen3-30B-A3B": "30b-a3b"}
METHODS = {"full": {}, "lora": {"learner.lora.rank": 16}}
ROW_LENGTHS = (16_384, 32_768)
# Target → mesh of the dense models, mesh of the sparse one.
MESHES: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] = {
    "h100x8": ({"fsdp": 8}, {"fsdp": 4, "expert": 2}),
    "v5e-16": ({"fsdp": 8, "tensor": 2}, {"fsdp": 4, "expert": 4}),
    "v5p-64": ({"fsdp": 16, "tensor": 2}, {"fsdp": 8, "expert": 4}),
    "v5e-64": ({"fsdp": 16, "tensor": 4}, {"fsdp": 16, "expert": 4}),
}
# Cells in which a row is split over devices, in addition to those of all combinations: target, model, row length, mesh.
SPLIT_ROWS: Sequence[tuple[str, str, int, Mapping[str, int]]] = (
    ("h100x16", "Qwen3-30B-A3B", 32_768, {"fsdp": 4, "context": 4}),
    ("v5e-16", "Qwen3-4B", 32_768, {"fsdp": 4, "context": 2, "tensor": 2}),
)
# The share of a card that the cells give JAX, as experiments.bench does.
CARD_MEMORY_SHARE = "0.92"
MAX_SUGGESTIONS = 4  # one after another, for a cell that does not fit
FITS_BY_STATUS = {0: True, 3: False}  # by the exit status of the command


@dataclasses.dataclass(frozen=True)
class Cell:
    """One line of the table: a model on a target, as the paper's settings for BFCL train it.

    `split_mesh` is a mesh that splits rows; {} stands for the target's own one.
    """

    target: str
    model: str
    method: str
    row_length: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    suggestion_count: int = 0  # that were followed
    split_mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> Path:
        suffix = f"-context-{self.split_mesh['context']}" if self.split_mesh else ""
        suffix += "-suggested" if self.settings else ""
        if self.suggestion_count > 1:
            suffix += f"-{self.suggestion_count}"
        return RESULTS / self.target / f"{self.model}-{self.method}-{self.row_length}{suffix}.json"

    @property
    def mesh(self) -> Mapping[str, int]:
        return self.split_mesh or MESHES[self.target][SHAPES[MODELS[self.model]].sparse]

    def flags(self, folder: str) -> list[str]:
        """The arguments of experiments.compile, with the model in `folder`. Each device has one row at a time."""
        mesh = {f"mesh.{setting}": size for setting, size in self.mesh.items()}
        settings = {
            "model.path": folder,
            **mesh,
            "learner.micro_rows": self.mesh.get("data", 1) * self.mesh["fsdp"],
            "learner.row_length": self.row_length,
            "learner.remat": "inputs",
            **METHODS[self.method],
            **self.settings,
        }
        return [
            f"--target={self.target}",
            "--config=experiments/bfcl.py",
            *(format_setting(setting, value) for setting, value in settings.items() if not setting.isupper()),
        ]


def list_cells() -> list[Cell]:
    """All lines of the table."""
    combinations = itertools.product(ROW_LENGTHS, MESHES, MODELS, METHODS)
    cells = [Cell(target, model, method, length) for length, target, model, method in combinations]
    return cells + [Cell(target, model, "full", length, split_mesh=mesh) for target, model, length, mesh in SPLIT_ROWS]


def compile_cell(cell: Cell, timeout_s: float) -> bool:
    """Compiles and stores a cell, or returns False if `timeout_s` are too few. Raises ValueError on its error."""
    config = dataclasses.replace(SHAPES[MODELS[cell.model]], dtype="bfloat16", param_dtype="bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config.to_hf()))
        command = [sys.executable, "-m", "experiments.compile", *cell.flags(folder), "--json"]
        environment = {**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": CARD_MEMORY_SHARE}
        try:
            process = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return False
    if process.returncode not in FITS_BY_STATUS:
        raise ValueError(f"{cell.path.stem} on {cell.target}: {(process.stdout + process.stderr)[-2000:]}")
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    arguments = cell.flags(f"models/{cell.model}")
    write_json(
        cell.path, {"command": ["python", "-m", "experiments.compile", *arguments], **json.loads(process.stdout)}
    )
    return True


def follow_suggestion(cell: Cell) -> Cell | None:
    """The cell with the settings suggested for it because it does not fit; None if there are none."""
    result = read_result(cell)
    if (
        result is None
        or result["fits"]
        or not result["suggestion"]["settings"]
        or cell.suggestion_count == MAX_SUGGESTIONS
    ):
        return None
    settings = {**cell.settings, **result["suggestion"]["settings"]}
    return dataclasses.replace(cell, settings=settings, suggestion_count=cell.suggestion_count + 1)


def read_result(cell: Cell) -> dict[str, Any] | None:
    return read_json(cell.path) if cell.path.exists() else None


def make_table() -> str:
    """The table in Markdown, from the stored cells."""
    head = (
        "| target | model | learns | tokens a row | mesh | fits | GiB a device: arguments + temporaries → peak | "
        "GiB that a device sends a step | PFLOP a step | a step takes at least | kernels | compiled in, of a core |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(_make_line(cell) for cell in list_cells())


def _make_line(cell: Cell) -> str:
    mesh = " × ".join(f"{axis_name} {size}" for axis_name, size in cell.mesh.items())
    first_columns = [cell.target, cell.model, cell.method, f"{cell.row_length:,}", mesh]
    if (result := read_result(cell)) is None:
        return _join_columns([*first_columns, "not compiled", *[""] * 6])
    sizes = [f"{result[f'bytes_{axis_name}'] / GIB:.1f}" for axis_name in ("argument", "temporary", "peak", "limit")]
    sent_gib = sum(collective["bytes"] for collective in result["collectives"].values()) / GIB
    longest_bound = max(result["bounds"], key=result["bounds"].get)
    return _join_columns(
        [
            *first_columns,
            "yes" if result["fits"] else f"no; {_describe_suggestion(cell, result)}",
            f"{sizes[0]} + {sizes[1]} → {sizes[2]} of {sizes[3]}",
            f"{sent_gib:,.0f}" if result["collectives"] else "",
            f"{result['flops'] / 1e15:,.0f}",
            f"{result['bound_seconds']:.0f} s ({longest_bound})",
            ", ".join(result["kernels"]),
            f"{result['cpu_seconds']:.0f} s",
        ]
    )


def _describe_suggestion(cell: Cell, result: Mapping[str, Any]) -> str:
    """Says what would make the cell fit, and whether that was compiled."""
    attempts = [cell]
    while (next_cell := follow_suggestion(attempts[-1])) is not None:
        attempts.append(next_cell)
    if len(attempts) == 1:
        return "no setting is estimated to make it fit"
    settings = ", ".join(f"`{name}={value}`" for name, value in attempts[-1].settings.items())
    if (last_result := read_result(attempts[-1])) is None:
        previous_result = read_result(attempts[-2]) or result
        return (
            f"with {settings} it is estimated to take {previous_result['suggestion']['bytes_peak_estimated'] / GIB:.1f}"
        )
    fits = "fits" if last_result["fits"] else "does not fit either"
    return f"with {settings} it {fits}, compiled: {last_result['bytes_peak'] / GIB:.1f}"


def _join_columns(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_page() -> None:
    """Puts the table into docs/pods.md, between its marks."""
    before, rest = PAGE.read_text().split(TABLE_MARKS[0])
    _, after = rest.split(TABLE_MARKS[1])
    write_text(PAGE, f"{before}{TABLE_MARKS[0]}\n{make_table()}\n{TABLE_MARKS[1]}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0, or 1 if a cell ended with an error, which does not stop the others."""
    parser = CommandLineParser("python -m benchmarks.compile_table", __doc__)
    parser.add_argument("--minutes", type=float, default=100, help="when to stop; 0 only writes the table (100)")
    parser.add_argument("--only", choices=(*MESHES, "h100x16"), help="the cells of this target alone")
    options = parser.parse_args(arguments)
    deadline, has_failed = time.monotonic() + 60 * options.minutes, False
    for cell in list_cells():
        if options.only not in (None, cell.target):
            continue
        next_cell: Cell | None = cell
        while next_cell is not None and (next_cell.path.exists() or _compile_and_store(next_cell, deadline)):
            next_cell = follow_suggestion(next_cell)
        has_failed |= next_cell is not None and time.monotonic() < deadline
    write_page()
    return int(has_failed)


def _compile_and_store(cell: Cell, deadline: float) -> bool:
    """Whether the cell was compiled in time and without an error, which is printed."""
    try:
        if deadline <= time.monotonic() or not compile_cell(cell, deadline - time.monotonic()):
            return False
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{cell.path.relative_to(ROOT)} is stored", flush=True)
    write_page()
    return True


if __name__ == "__main__":
    sys.exit(main())
