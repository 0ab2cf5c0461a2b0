"""Reads the text of a compiled program (XLA's HLO): what runs how often, what crosses devices, and which kernels.

A loop's number of rounds is in the text where it is fixed. The loops of cojax whose rounds depend on the data are two:
over micro-batches, and within it over chunks of scored tokens. Their numbers are given by the reader.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_NAMED = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"\b(pred|bf16|[fsu]\d+\w*|c64|c128)\[([\d,]*)\]")
_BITS = {"pred": 8, "c64": 64, "c128": 128}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`shape` is the text of its result's shape; `line` is the whole line."""

    name: str
    shape: str
    opcode: str
    line: str


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation, with the bytes that each device sends in one run of a ring algorithm.

    `runs` is how often a call of the program runs it, `loops` how many loops enclose it, `arrays` its results.
    """

    kind: str
    bytes: int
    runs: int
    loops: int
    arrays: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """Computations by name; `entry` is the first to run; `aliased` counts results in an argument's memory."""

    computations: Mapping[str, Sequence[Instruction]]
    entry: str
    aliased: int

    def instructions(self) -> Iterator[Instruction]:
        for lines in self.computations.values():
            yield from lines


def parse(text: str) -> Program:
    """The program of `jax.stages.Compiled.as_text`. Raises ValueError for a text without an entry."""
    found: dict[str, list[Instruction]] = {}
    entry, lines = "", list[Instruction]()
    header, _, _ = text.partition("\n")
    for line in text.splitlines():
        if opened := _COMPUTATION.match(line):
            lines = found.setdefault(opened[2], [])
            entry = opened[2] if opened[1] else entry
        elif named := _NAMED.match(line):
            shape, rest = _split_shape(line[named.end() :])
            lines.append(Instruction(named[1], shape, rest.partition("(")[0].strip(), line))
    if not entry:
        raise ValueError("this is no text of a compiled program: it has no ENTRY computation")
    return Program(found, entry, len(re.findall(r"(?:may|must)-alias", header)))


def collectives(program: Program, devices: int, rounds: Sequence[int]) -> list[Collective]:
    """The program's collectives on `devices` devices; an operation that is begun and ended apart is one.

    `rounds` are the numbers of rounds of the loops whose rounds the text does not fix, from the outermost inwards.
    """
    found: dict[str, Collective] = {}
    for name, instruction, runs, loops in _executed(program, rounds):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        # A reduce-scatter that the compiler wrote as an all-reduce of which each device keeps its part.
        scattered = kind == "all-reduce" and name.startswith("all-reduce-scatter")
        sent = _sent("reduce-scattered" if scattered else kind, instruction, devices)
        one = Collective(
            "reduce-scatter" if scattered else kind, sent, runs, loops, tuple(axes for _, axes in _result(instruction))
        )
        channel = re.search(r"channel_id=(\d+)", instruction.line)
        key = channel[1] if channel else f"{name}/{instruction.name}"
        if key not in found or (one.runs, one.bytes) > (found[key].runs, found[key].bytes):
            found[key] = one
    return list(found.values())


def kernels(program: Program) -> dict[str, int]:
    """Name → number of the program's kernels: Pallas kernels and grouped products of the TPU compiler, by their names.

    A grouped product for which a compiler has no kernel becomes dense products over all groups: `ragged_dot_as_dense`.
    """
    found: Counter[str] = Counter()
    for one in program.instructions():
        target = re.search(r'custom_call_target="([^"]*)"', one.line)
        if one.opcode == "dot" and "ragged_dot" in one.line:
            found["ragged_dot_as_dense"] += 1
        elif target and target[1] == "tpu_custom_call":
            found[re.sub(r"[.\d]+$", "", one.name)] += 1
        elif target and "triton" in target[1]:
            given = re.search(r'\bname = "([^"]*)"', one.line)
            found[given[1] if given else "triton"] += 1
    return dict(sorted(found.items()))


def arrays(program: Program) -> set[tuple[int, ...]]:
    """The axes of every array that the program makes."""
    return {axes for one in program.instructions() for _, axes in _arrays(one.shape)}


def _executed(program: Program, rounds: Sequence[int]) -> Iterator[tuple[str, Instruction, int, int]]:
    """(computation, instruction, runs, enclosing loops) of everything that the entry leads to."""

    def walk(name: str, runs: int, loops: int, open_loops: int) -> Iterator[tuple[str, Instruction, int, int]]:
        for one in program.computations.get(name, ()):
            yield name, one, runs, loops
            if one.opcode == "while":
                body = re.search(r"\bbody=%?([\w.\-]+)", one.line)
                fixed = _fixed_rounds(program, one)
                if fixed is None:
                    fixed, inner = (rounds[open_loops] if open_loops < len(rounds) else 1), open_loops + 1
                else:
                    inner = open_loops
                if body:
                    yield from walk(body[1], runs * fixed, loops + 1, inner)
                continue
            for called in _called(one.line):
                yield from walk(called, runs, loops, open_loops)

    yield from walk(program.entry, 1, 0, 0)


@functools.lru_cache(maxsize=4096)
def _called(line: str) -> tuple[str, ...]:
    branches = _BRANCHES.search(line)
    names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
    return (*_CALLED.findall(line), *names)


def _fixed_rounds(program: Program, loop: Instruction) -> int | None:
    """The loop's rounds: as the compiler notes them, or the constant that its condition compares the index with."""
    if known := re.search(r"known_trip_count\W+n\W+(\d+)", loop.line):
        return int(known[1])
    condition = re.search(r"\bcondition=%?([\w.\-]+)", loop.line)
    lines = program.computations.get(condition[1], ()) if condition else ()
    compared = [one for one in lines if one.opcode == "compare" and "direction=LT" in one.line]
    constants = {one.name: one.line for one in lines if one.opcode == "constant"}
    for one in compared:
        for operand in re.findall(r"%([\w.\-]+)", one.line.partition("compare(")[2].partition(")")[0]):
            if operand in constants and (number := re.search(r"constant\((\d+)\)", constants[operand])):
                return int(number[1])
    return None


def _sent(kind: str, instruction: Instruction, devices: int) -> int:
    """Bytes that each device of a group of n sends by a ring, from the size of the result.

    all-gather and all-to-all: the result · (n − 1)/n. reduce-scatter: the result · (n − 1). all-reduce: twice the
    result · (n − 1)/n. collective-permute: the result.
    """
    size, group = sum(size for size, _ in _result(instruction)), _group(instruction.line, devices)
    if kind == "collective-permute":
        return size
    share = size * (group - 1) // group
    return {"all-reduce": 2 * share, "reduce-scatter": size * (group - 1)}.get(kind, share)


def _result(instruction: Instruction) -> list[tuple[int, tuple[int, ...]]]:
    """(bytes, axes) of the arrays of a collective's result. One that is only begun gives its operands before it."""
    shape = instruction.shape
    if instruction.opcode.endswith("-start") and shape.startswith("(") and not instruction.opcode.startswith("all-red"):
        operands, rest = _split_shape(shape[1:-1])
        if not operands.startswith("("):
            operands = operands.rstrip(",")
        shape = _split_shape(rest.lstrip(", "))[0]
    return _arrays(shape)


def _arrays(shape: str) -> list[tuple[int, tuple[int, ...]]]:
    """(bytes, axes) of the arrays in the text of a shape."""
    found = []
    for dtype, sizes in _ARRAY.findall(shape):
        axes = tuple(int(size) for size in sizes.split(",") if size)
        bits = _BITS.get(dtype) or int(re.findall(r"\d+", dtype)[0])
        found.append((math.prod(axes) * bits // 8, axes))
    return found


def _group(line: str, devices: int) -> int:
    """How many devices take part together in a collective; the text writes its groups in one of three ways."""
    if grid := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(grid[1])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        parts = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part) if part else sizes[name] for name, part in parts)
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    return len(listed[1].split(",")) if listed else devices


def _split_shape(text: str) -> tuple[str, str]:
    """A shape at the beginning of the text, and what follows it. A tuple of shapes is in parentheses."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter in " ," and not depth:
            return text[:at], text[at:]
    return text, ""
