"""Reads the text of a compiled program (XLA's HLO): how often each instruction runs, its collectives and its kernels.

If a loop's number of rounds is fixed, the text has it. In two loops of cojax the rounds depend on the data: the loop
over micro-batches, and within it the loop over chunks of scored tokens. The caller gives their numbers.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

COLLECTIVE_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_COMPUTATION_PATTERN = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_ASSIGNMENT_PATTERN = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = ")
_CALLEE_PATTERN = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES_PATTERN = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_ARRAY_PATTERN = re.compile(r"\b(pred|bf16|[fsu]\d+\w*|c64|c128)\[([\d,]*)\]")
_BITS_BY_DTYPE = {"pred": 8, "c64": 64, "c128": 128}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`shape_text` is the text of its result's shape; `line` is the whole line."""

    name: str
    shape_text: str
    opcode: str
    line: str


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation, with the bytes that each device sends in one run of a ring algorithm.

    `runs` is how often a call of the program runs it, `loops` how many loops enclose it, `shapes` its results.
    """

    kind: str
    bytes: int
    runs: int
    loops: int
    shapes: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """Computations by name; `entry_name` is the first to run; `alias_count` counts results in an argument's memory."""

    computations: Mapping[str, Sequence[Instruction]]
    entry_name: str
    alias_count: int

    def instructions(self) -> Iterator[Instruction]:
        for lines in self.computations.values():
            yield from lines


def parse_program(text: str) -> Program:
    """Parses the text of `jax.stages.Compiled.as_text`. Raises ValueError for a text without an entry."""
    computations: dict[str, list[Instruction]] = {}
    entry_name, instructions = "", list[Instruction]()
    header_line, _, _ = text.partition("\n")
    for line in text.splitlines():
        if match := _COMPUTATION_PATTERN.match(line):
            instructions = computations.setdefault(match[2], [])
            entry_name = match[2] if match[1] else entry_name
        elif assignment := _ASSIGNMENT_PATTERN.match(line):
            result_shape, after_shape = _split_shape(line[assignment.end() :])
            instructions.append(Instruction(assignment[1], result_shape, after_shape.partition("(")[0].strip(), line))
    if not entry_name:
        raise ValueError("this is not the text of a compiled program: it has no ENTRY computation")
    return Program(computations, entry_name, len(re.findall(r"(?:may|must)-alias", header_line)))


def find_collectives(program: Program, device_count: int, round_counts: Sequence[int]) -> list[Collective]:
    """The program's collectives on `device_count` devices; an operation with separate start and end counts once.

    `round_counts` are the numbers of rounds of the loops for which the text has none, from the outermost inwards.
    """
    by_channel: dict[str, Collective] = {}
    for computation_name, instruction, runs, loops in _walk_program(program, round_counts):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVE_KINDS:
            continue
        # The compiler may write a reduce-scatter as an all-reduce of which each device keeps its part.
        is_scatter = kind == "all-reduce" and computation_name.startswith("all-reduce-scatter")
        size = _count_ring_bytes("reduce-scattered" if is_scatter else kind, instruction, device_count)
        collective = Collective(
            "reduce-scatter" if is_scatter else kind, size, runs, loops, tuple(axes for _, axes in _result(instruction))
        )
        # All collectives that JAX itself writes have channel 1; XLA gives each of its own, and its copies, another one.
        channel_match = re.search(r"channel_id=(?!1\b)(\d+)", instruction.line)
        key = channel_match[1] if channel_match else f"{computation_name}/{instruction.name}"
        if key not in by_channel or (collective.runs, collective.bytes) > (by_channel[key].runs, by_channel[key].bytes):
            by_channel[key] = collective
    return list(by_channel.values())


def count_kernels(program: Program) -> dict[str, int]:
    """Counts the program's kernels by name: those of JAX, of tokamax, and grouped products of the TPU compiler.

    If a compiler has no kernel for a grouped product, it becomes dense products over all groups: `ragged_dot_as_dense`.
    """
    counts: Counter[str] = Counter()
    for instruction in program.instructions():
        target_match = re.search(r'custom_call_target="([^"]*)"', instruction.line)
        if instruction.opcode == "dot" and "ragged_dot" in instruction.line:
            counts["ragged_dot_as_dense"] += 1
        elif target_match and target_match[1] == "tpu_custom_call":
            counts[re.sub(r"[.\d]+$", "", instruction.name)] += 1
        elif target_match and "mosaic_gpu" in target_match[1]:
            function_match = re.search(r'op_name="[^"]*?(\w+)/\w+"', instruction.line)
            counts[function_match[1] if function_match else "mosaic"] += 1
        elif target_match and "triton" in target_match[1]:
            triton_match = re.search(r'\bname = "([^"]*)"', instruction.line)
            counts[triton_match[1] if triton_match else "triton"] += 1
    return dict(sorted(counts.items()))


def count_silent_remat(program: Program) -> int:
    """The number of instructions that XLA computes a second time, of its own accord, to save memory."""
    return sum(".remat" in instruction.name for instruction in program.instructions())


def list_array_axes(program: Program) -> set[tuple[int, ...]]:
    """The axes of every array that the program makes."""
    return {axes for instruction in program.instructions() for _, axes in _parse_arrays(instruction.shape_text)}


def _walk_program(program: Program, round_counts: Sequence[int]) -> Iterator[tuple[str, Instruction, int, int]]:
    """Yields (computation, instruction, runs, enclosing loops) for everything that the entry reaches."""

    def walk(caller: str, runs: int, loop_depth: int, open_count: int) -> Iterator[tuple[str, Instruction, int, int]]:
        for instruction in program.computations.get(caller, ()):
            yield caller, instruction, runs, loop_depth
            if instruction.opcode == "while":
                body_match = re.search(r"\bbody=%?([\w.\-]+)", instruction.line)
                round_count, inner_open = _read_round_count(program, instruction), open_count
                if round_count is None:
                    round_count, inner_open = (
                        (round_counts[open_count] if open_count < len(round_counts) else 1),
                        open_count + 1,
                    )
                if body_match:
                    yield from walk(body_match[1], runs * round_count, loop_depth + 1, inner_open)
                continue
            for callee in _list_callees(instruction.line):
                yield from walk(callee, runs, loop_depth, open_count)

    yield from walk(program.entry_name, 1, 0, 0)


@functools.lru_cache(maxsize=4096)
def _list_callees(line: str) -> tuple[str, ...]:
    branches_match = _BRANCHES_PATTERN.search(line)
    branch_names = re.findall(r"[\w.\-]+", branches_match[1]) if branches_match else []
    return (*_CALLEE_PATTERN.findall(line), *branch_names)


def _read_round_count(program: Program, loop: Instruction) -> int | None:
    """The loop's rounds: the compiler's note, or the constant with which its condition compares the index."""
    if count_match := re.search(r"known_trip_count\W+n\W+(\d+)", loop.line):
        return int(count_match[1])
    condition_match = re.search(r"\bcondition=%?([\w.\-]+)", loop.line)
    instructions = program.computations.get(condition_match[1], ()) if condition_match else ()
    comparisons = [item for item in instructions if item.opcode == "compare" and "direction=LT" in item.line]
    constants = {item.name: item.line for item in instructions if item.opcode == "constant"}
    for comparison in comparisons:
        for operand in re.findall(r"%([\w.\-]+)", comparison.line.partition("compare(")[2].partition(")")[0]):
            if operand in constants and (constant_match := re.search(r"constant\((\d+)\)", constants[operand])):
                return int(constant_match[1])
    return None


def _count_ring_bytes(kind: str, instruction: Instruction, devices: int) -> int:
    """Bytes that each device of a group of n sends by a ring, from the size of the result.

    all-gather and all-to-all: the result · (n − 1)/n. reduce-scatter: the result · (n − 1). all-reduce: twice the
    result · (n − 1)/n. collective-permute: the result.
    """
    result_bytes, group_size = sum(size for size, _ in _result(instruction)), _group_size(instruction.line, devices)
    if kind == "collective-permute":
        return result_bytes
    ring_share = result_bytes * (group_size - 1) // group_size
    return {"all-reduce": 2 * ring_share, "reduce-scatter": result_bytes * (group_size - 1)}.get(kind, ring_share)


def _result(instruction: Instruction) -> list[tuple[int, tuple[int, ...]]]:
    """(bytes, axes) of the arrays of a collective's result. A start operation lists its operands before the result."""
    shape = instruction.shape_text
    if instruction.opcode.endswith("-start") and shape.startswith("(") and not instruction.opcode.startswith("all-red"):
        operands_text, after_operands = _split_shape(shape[1:-1])
        if not operands_text.startswith("("):
            operands_text = operands_text.rstrip(",")
        shape = _split_shape(after_operands.lstrip(", "))[0]
    return _parse_arrays(shape)


def _parse_arrays(shape_text: str) -> list[tuple[int, tuple[int, ...]]]:
    """(bytes, axes) of the arrays in the text of a shape."""
    sized_arrays = []
    for dtype, sizes_text in _ARRAY_PATTERN.findall(shape_text):
        axes = tuple(int(size) for size in sizes_text.split(",") if size)
        bit_count = _BITS_BY_DTYPE.get(dtype) or int(re.findall(r"\d+", dtype)[0])
        sized_arrays.append((math.prod(axes) * bit_count // 8, axes))
    return sized_arrays


def _group_size(line: str, device_count: int) -> int:
    """The number of devices in each group of a collective; the text writes groups in one of three ways."""
    if grid_match := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(grid_match[1])
    if mesh_match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
        sizes = {axis_name: int(axis_size) for axis_name, axis_size in re.findall(r"'([^']+)'=(\d+)", mesh_match[1])}
        axis_parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh_match[2])
        return math.prod(int(axis_part) if axis_part else sizes[axis_name] for axis_name, axis_part in axis_parts)
    groups_match = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    return len(groups_match[1].split(",")) if groups_match else device_count


def _split_shape(text: str) -> tuple[str, str]:
    """Splits a text after the shape at its beginning. A tuple of shapes is in parentheses."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character in " ," and not depth:
            return text[:position], text[position:]
    return text, ""
