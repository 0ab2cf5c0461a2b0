"""Answers that were merely written down, in a call or in code, and that no step before has shown.

A replay compares an answer with itself, so that a written one would always be right. In code an answer is *written* if
the call that ends the episode stands on the top level of a block and its answer is a literal, or a name that the last
statement to set it, on the top level too, sets to one. Everything else counts as worked out: conditional endings,
loops, functions, whatever is computed. Who hides a literal there is found out by validation's attempts, which see the
query alone. No code is run.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate, islice
from typing import Any

from cojax.types import Triplet
from cojax.unicode_forms import normal_form

# Characters of one action's code and of an answer, brackets in brackets, values that one answer holds.
_LONGEST, _LONGEST_ANSWER, _DEEPEST, _MOST = 20_000, 4_000, 80, 100
# The block that is run: the first one.
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?(?!\w|\.\d)")
_GROUPING = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # 1,234 may be one number or two
_EDGE = re.compile(r"(\b)|(?<!\w)(?!\w)")
_CASTS = {"str": str, "int": int, "float": float}
# What may be filled after it was written.
_CONTAINERS = (ast.List, ast.Dict, ast.Set)

Names = Mapping[str, ast.expr]  # name → the expression that it was last set to


class _NotLiteral(Exception):
    """The expression holds more than literals."""


def unfounded(steps: Sequence[Triplet], ending: str, parameter: str | None, answer: str = "") -> list[str]:
    """What speaks against the answers that these steps give, one line each, and against `answer`, given after them.

    `ending` is the tool that ends an episode, whose last part (after its dots) code calls; "" for any call in the last
    step with an argument `answer`. `parameter` is its argument that carries the answer, None where it takes none.
    """
    try:
        return list(dict.fromkeys(_against(steps, ending, parameter, answer)))[:5]
    except (RecursionError, MemoryError):
        return ["its code or its answer nests too deep to be read"]
    except (SyntaxError, ValueError) as error:
        return [f"its code cannot be read: {' '.join(str(error).split())}"[:120]]


def written(steps: Sequence[Triplet], ending: str, parameter: str | None) -> list[Any]:
    """The values that these steps write down as an answer; `unfounded` says whether these can be read."""
    try:
        return [value for given, _ in _given_by(steps, ending, parameter) for value in given]
    except (RecursionError, MemoryError, SyntaxError, ValueError):
        return []


def holds(text: str, value: Any) -> bool:
    """Whether a text says a value: in whole words of any case and width, numbers by value."""
    said = str(value).strip()
    return 0 < len(said) <= _LONGEST_ANSWER and _Text(_folded(text)).holds(_folded(said))


def _folded(text: str) -> str:
    return normal_form("NFKC", text).casefold()


def _given_by(
    steps: Sequence[Triplet], ending: str, parameter: str | None
) -> Iterator[tuple[list[Any], tuple[_Text, _Text]]]:
    """The answers that each step writes down; and what it showed before it gave them up to its end, with what its own
    code says there."""
    carries = parameter or ("" if ending else "answer")
    trees = [parsed(step) for step in steps]
    names = _last_set(trees)
    for place, (step, tree) in enumerate(zip(steps, trees, strict=True)):
        last = place == len(steps) - 1 and step.observation.done
        given = [
            value for call in step.action.calls if ending and call.name == ending for value in leaves(call.arguments)
        ]
        for call in _calls(tree) if carries else ():
            given += _given(call, ending.rpartition(".")[2], carries, last, names)
        yield given, (_Text(step.observation.text), _Text("\n".join(map(str, _said(tree, names)))))


def _against(steps: Sequence[Triplet], ending: str, parameter: str | None, answer: str) -> Iterator[str]:
    told: list[tuple[_Text, _Text]] = []  # what each step showed, and what its own code says there
    for step, (given, shown) in zip(steps, _given_by(steps, ending, parameter), strict=True):
        if len(given) > _MOST:
            yield f"its answer holds more than {_MOST} values"
        for value in given[:_MOST]:
            yield from _unshown(value, [*told, *_before_the_end(step, ending)])
        told.append(shown)
    if answer:
        yield from _unshown(answer, told)


def _before_the_end(step: Triplet, ending: str) -> Iterator[tuple[_Text, _Text]]:
    """What the calls of one action showed before the one among them that ended the episode."""
    names = [call.name for call in step.action.calls]
    if ending in names[1:] and len(names) == len(step.observation.messages):
        for message in step.observation.messages[: names.index(ending)]:
            yield _Text(message.content), _Text("")


class _Text:
    """A text in which values are looked for: text by whole words, numbers by value, booleans in any case."""

    def __init__(self, text: str) -> None:
        self.text = text

    @functools.cached_property
    def numbers(self) -> set[Decimal]:
        return {Decimal(said) for text in (self.text, _GROUPING.sub("", self.text)) for said in _NUMBER.findall(text)}

    @functools.cached_property
    def edged(self) -> str:
        return _edged(self.text)

    def holds(self, said: str) -> bool:
        if _NUMBER.fullmatch(plain := _GROUPING.sub("", said)):
            return Decimal(plain) in self.numbers
        if said.lower() in ("true", "false"):
            return bool(re.search(rf"(?<!\w){said}(?!\w)", self.text, re.IGNORECASE))
        # A search by pattern would take as long as both texts' lengths multiplied.
        return said in self.text and _edged(said) in self.edged


def _edged(text: str) -> str:
    """The text with marks where a word begins or ends and where none is: within another one so marked, it stands in
    whole words."""
    return _EDGE.sub(lambda edge: "\ufdd0" if edge[1] is None else "\ufdd1", text)


def _unshown(value: Any, told: Sequence[tuple[_Text, _Text]]) -> Iterator[str]:
    if value is None:
        return
    said = str(value).strip()
    # What a block's own code says, it does not show.
    if not 0 < len(said) <= _LONGEST_ANSWER or not any(t.holds(said) and not own.holds(said) for t, own in told):
        yield f"no step shows the answer {said[:100]!r}"


def parsed(step: Triplet) -> ast.Module:
    """An action's code: its first fenced block outside of thoughts, or else its text if that is code; empty where it
    has none. Raises ValueError, SyntaxError for a block that cannot be read."""
    spoken = step.action.text.rpartition("</think>")[2].partition("<think>")[0]
    block = _BLOCK.search(spoken)
    code = block[1] if block else "" if step.action.calls else spoken
    nested = accumulate((char in "([{") - (char in ")]}") for char in code)
    if len(code) > _LONGEST or max(nested, default=0) > _DEEPEST:
        raise ValueError(f"it has {len(code):,} characters, or brackets in more than {_DEEPEST} brackets")
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError):
        if block:  # what stands in no fence need not be Python
            raise
        return ast.Module([], [])


def _last_set(trees: Sequence[ast.Module]) -> Names:
    """The names that the last statement of the top level which sets them sets by a plain assignment."""
    names: dict[str, ast.expr] = {}
    shared: set[str] = set()
    for statement in (statement for tree in trees for statement in tree.body):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                names.pop(node.id, None)
            elif isinstance(node, ast.alias):
                names.pop(node.asname or node.name, None)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.pop(node.name, None)
            elif isinstance(node, ast.Global):
                shared |= {*node.names}
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {target.id: statement.value for target in targets if isinstance(target, ast.Name)}
    return {name: value for name, value in names.items() if name not in shared}


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls that are made in any case: those that are statements of the top level, or are assigned there."""
    for statement in tree.body:
        if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Call):
            yield statement.value


def _given(call: ast.Call, name: str, parameter: str, last: bool, names: Names) -> Iterator[Any]:
    """The written values that a call gives as an answer."""
    func = call.func
    called = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    ends = bool(name) and called == name
    if not (ends or last):
        return
    told = [keyword.value for keyword in call.keywords if keyword.arg == parameter]
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Dict):
            pairs = zip(keyword.value.keys, keyword.value.values, strict=True)
            told += [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == parameter]
    for expression in (*told, *(call.args[:1] if ends else ())):
        parts = expression.elts if isinstance(expression, ast.List | ast.Tuple | ast.Set) else [expression]
        for part in parts:
            try:
                yield from leaves(_literal(part, names))
            except _NotLiteral:
                continue


def _literal(node: ast.expr, names: Names) -> Any:
    """What a literal expression is. Raises _NotLiteral. A name stands for what is written where it is set, which may
    hold no names itself: nothing grows beyond the code."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in names and not isinstance(names[node.id], _CONTAINERS):
            return _literal(names[node.id], {})
        case ast.JoinedStr():
            return "".join(str(_literal(part, names)) for part in node.values)
        case ast.FormattedValue(format_spec=None):
            return _literal(node.value, names)
        case ast.UnaryOp(op=ast.USub()):
            return _sum(0, _literal(node.operand, names), -1)
        case ast.BinOp(op=ast.Add()):
            return _sum(_literal(node.left, names), _literal(node.right, names))
        case ast.Call(func=ast.Name(id=cast), args=[given], keywords=[]) if cast in _CASTS and cast not in names:
            return _cast(_CASTS[cast], _literal(given, names))
        case ast.List() | ast.Tuple() | ast.Set():
            return [_literal(part, names) for part in node.elts]
        case ast.Dict():
            return [_literal(value, names) for value in node.values]
    raise _NotLiteral


def _cast(to: Callable[[Any], Any], value: Any) -> Any:
    try:
        return to(value)
    except (TypeError, ValueError, OverflowError):
        raise _NotLiteral from None


def _sum(one: Any, other: Any, sign: int = 1) -> Any:
    if isinstance(one, str) and isinstance(other, str):
        return one + other
    if isinstance(one, int | float) and isinstance(other, int | float):
        with contextlib.suppress(OverflowError):
            return one + sign * other
    raise _NotLiteral


def _said(tree: ast.Module, names: Names) -> Iterator[Any]:
    """The literals that a block prints, or ends in: what it shows of these, it did not find."""
    for node in ast.walk(tree):
        printed: Sequence[ast.AST] = ()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            printed = node.args
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call):
            printed = [node.value]
        for part in printed:
            try:
                yield from leaves(_literal(part, names))  # type: ignore[arg-type]
            except (_NotLiteral, ValueError):
                yield from _constants(part, names)


def _constants(node: ast.AST, names: Names) -> Iterator[Any]:
    """The constants within an expression, but for those that are given to calls of anything but str, int and float."""
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _CASTS):
        return
    if isinstance(node, ast.Constant):
        yield node.value
    elif isinstance(node, ast.Name) and isinstance(value := names.get(node.id), ast.Constant):
        yield value.value
    for child in ast.iter_child_nodes(node):
        yield from _constants(child, names)


def leaves(value: Any) -> list[Any]:
    """The values within lists and dictionaries, a few more than an answer may have at most."""

    def within(value: Any) -> Iterator[Any]:
        inner = value.values() if isinstance(value, Mapping) else value
        if isinstance(value, Mapping | list | tuple):
            for one in inner:
                yield from within(one)
        else:
            yield value

    return list(islice(within(value), _MOST + 1))
