"""Answers that were merely written down, in a call or in code, and that no step before has shown.

A replay compares an answer with itself, so that a written one would always be right. An answer is *written* if it folds
to a constant: constants, f-strings, sums and `%` of those, str, int and float of them, containers, and names that were
set to nothing else. What does not fold counts as worked out: code that hides a literal from folding is for validation's
attempts to find, which see the query alone. No code is run.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import accumulate, chain, islice
from typing import Any

from cojax.types import Triplet

# Characters of one action's code and of a draft's, of an answer, of a block's constants; brackets in brackets; values.
_LONGEST, _LONGEST_DRAFT, _LONGEST_ANSWER, _MOST_SPELLED, _DEEPEST, _MOST = 20_000, 60_000, 4_000, 200_000, 80, 500
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?(?!\w|\.\d)")
_GROUPING = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # 1,234 may be one number or two
_WIDE = re.compile(r"%(?:\(\w*\))?[^a-zA-Z%]*?(?:\d{3}|\*)")  # a format that could fill the memory
_CASTS = {"str": str, "int": int, "float": float}


class _Unfolded:
    """In place of what is no constant; no text can be made of it."""

    def __repr__(self) -> str:
        raise LookupError


_UNFOLDED, _HUGE = _Unfolded(), "(too large) " * _LONGEST_ANSWER
Names = dict[str, Any]  # name → the constant it was set to, or _UNFOLDED


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


def _against(steps: Sequence[Triplet], ending: str, parameter: str | None, answer: str) -> Iterator[str]:
    name, parameter = ending.rpartition(".")[2], parameter or ("" if ending else "answer")
    actions = [_parsed(step) for step in steps]
    if sum(len(step.action.text) for step, trees in zip(steps, actions, strict=True) if trees) > _LONGEST_DRAFT:
        raise ValueError(f"it has more than {_LONGEST_DRAFT:,} characters")
    names: Names = {}
    told: list[tuple[_Text, _Text]] = []  # what each step showed, and what its own code spells
    for step, trees in zip(steps, actions, strict=True):
        for tree in trees:
            _follow(tree, names)
        spelled = "\n".join({said for tree in trees for node in ast.walk(tree) for said in _spelled(node, names)})
        told.append((_Text(step.observation.text if len(spelled) <= _MOST_SPELLED else ""), _Text(spelled)))
    for place, (step, trees) in enumerate(zip(steps, actions, strict=True)):
        last = place == len(steps) - 1 and step.observation.done
        calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and parameter]
        called = (_leaves(call.arguments) for call in step.action.calls if ending and call.name == ending)
        written = (_given(call, name, parameter, last, names) for call in calls)
        given = list(islice(chain.from_iterable(chain(called, written)), _MOST + 1))
        if len(given) > _MOST:
            yield f"its answer holds more than {_MOST} values"
        yield from chain.from_iterable(_unshown(leaf, told[:place]) for leaf in given)
    if answer:
        yield from _unshown(answer, told)


class _Text:
    """A text in which values are looked for: text by whole words, numbers by value, booleans in any case."""

    def __init__(self, text: str) -> None:
        self.text = text

    @functools.cached_property
    def numbers(self) -> set[Decimal]:
        return {Decimal(said) for text in (self.text, _GROUPING.sub("", self.text)) for said in _NUMBER.findall(text)}

    def holds(self, said: str) -> bool:
        if _NUMBER.fullmatch(plain := _GROUPING.sub("", said)):
            return Decimal(plain) in self.numbers
        case = re.IGNORECASE if said.lower() in ("true", "false") else re.NOFLAG
        return (bool(case) or said in self.text) and bool(
            re.search(rf"(?<!\w){re.escape(said)}(?!\w)", self.text, case)
        )


def _unshown(value: Any, told: Sequence[tuple[_Text, _Text]]) -> Iterator[str]:
    if value is _UNFOLDED or value is None or value == ():
        return
    said = str(value).strip()
    # What a block's own code spells, it does not show.
    if not 0 < len(said) <= _LONGEST_ANSWER or not any(t.holds(said) and not own.holds(said) for t, own in told):
        yield f"no step shows the answer {said[:100]!r}"


def _parsed(step: Triplet) -> list[ast.Module]:
    """An action's code: its fenced blocks outside of thoughts, or else its text if that is code. Raises ValueError."""
    spoken = step.action.text.rpartition("</think>")[2].partition("<think>")[0]
    blocks, trees = _BLOCK.findall(spoken), []
    for code in blocks or ([] if step.action.calls else [spoken]):
        nested = accumulate((char in "([{") - (char in ")]}") for char in code)
        if len(code) > _LONGEST or max(nested, default=0) > _DEEPEST:
            raise ValueError(f"it has {len(code):,} characters, or brackets in more than {_DEEPEST} brackets")
        try:
            trees.append(ast.parse(code))
        except (SyntaxError, ValueError):
            if blocks:  # what stands in no fence need not be Python
                raise
    return trees


def _follow(tree: ast.Module, names: Names) -> None:
    """Takes up the names that a block sets. A statement that may be skipped or repeated sets those that it leaves
    constant each time, and were before."""
    for statement in tree.body:
        bound = _bound(statement)
        sure = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        spoiled = set() if sure else {name for name, _ in bound if names.get(name) is _UNFOLDED}
        names.update({} if sure else dict.fromkeys((name for name, _ in bound), _UNFOLDED))
        for name, value in bound:
            known = _UNFOLDED if value is None or name in spoiled else _fold(value, names)
            spoiled |= {name} if known is _UNFOLDED else set()
            names[name] = known


def _bound(statement: ast.stmt) -> list[tuple[str, ast.expr | None]]:
    """The names that a statement binds, in order, each with the expression that it is set to, if that is so simple."""
    values: dict[ast.AST, ast.expr | None] = {}
    found: list[tuple[tuple[int, int], str, ast.expr | None]] = []
    for node in ast.walk(statement):  # from the outside in
        match node:
            case ast.Assign():
                values |= dict.fromkeys(node.targets, node.value)
            case ast.AnnAssign() | ast.NamedExpr():
                values[node.target] = node.value
            case ast.AugAssign(target=ast.Name(id=name)):
                values[node.target] = ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value)
            case ast.Tuple() | ast.List() if isinstance(pair := values.get(node), (ast.Tuple, ast.List)):
                values |= dict(zip(node.elts, pair.elts, strict=False))
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.append(((node.lineno, node.col_offset), name, values.get(node)))
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                found.append(((node.lineno, node.col_offset), name, None))
    return [(name, value) for _, name, value in sorted(found, key=lambda one: one[0])]


def _spelled(node: ast.AST, names: Names) -> Iterator[str]:
    """The constants that a part of a block comes to."""
    parts = [node] if isinstance(node, (ast.Constant, ast.Name)) else [node.value] if isinstance(node, ast.Expr) else []
    parts += [*node.args, *(keyword.value for keyword in node.keywords)] if isinstance(node, ast.Call) else []
    return (str(leaf) for part in parts for leaf in _leaves(_fold(part, names)) if leaf is not _UNFOLDED)


def _given(call: ast.Call, name: str, parameter: str, last: bool, names: Names) -> Iterator[Any]:
    """The values that a call gives as answer, if it is one that ends the episode."""
    func = call.func
    ending = name and name == (func.attr if isinstance(func, ast.Attribute) else isinstance(func, ast.Name) and func.id)
    for first in call.args[:1] if ending else []:
        yield from _leaves(_fold(first.value if isinstance(first, ast.Starred) else first, names))
    for keyword in call.keywords if ending or last else []:
        known = _fold(keyword.value, names)
        given = known if keyword.arg == parameter else known.get(parameter) if isinstance(known, dict) else None
        yield from _leaves(given if keyword.arg in (parameter, None) else None)


def _leaves(value: Any) -> Iterator[Any]:
    """What a value holds, or itself; () of an empty container."""
    if isinstance(value, (dict, list, tuple)) and value:
        yield from chain.from_iterable(map(_leaves, value.values() if isinstance(value, dict) else value))
    else:
        yield () if isinstance(value, (dict, list, tuple)) else value


def _fold(node: ast.expr, names: Names) -> Any:
    """The constant that an expression comes to, or _UNFOLDED, also in place of what a container holds."""
    try:
        value = _constant(node, names)
    except (TypeError, ValueError, ArithmeticError, LookupError):
        return _UNFOLDED
    if not isinstance(value, (str, bytes, int, dict, list, tuple)):
        return value
    leaves = list(islice(_leaves(value), _MOST + 1))
    large = sum(len(leaf) if isinstance(leaf, (str, bytes)) else 1 for leaf in leaves) > _LONGEST or len(leaves) > _MOST
    return _HUGE if large or (isinstance(value, int) and value.bit_length() > 1_000) else value


def _constant(node: ast.expr, names: Names) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.UnaryOp(op=ast.USub()):
            return -_fold(node.operand, names)
        case ast.BinOp(op=ast.Add()):
            return _fold(node.left, names) + _fold(node.right, names)
        case ast.BinOp(op=ast.Mod()):
            left, right = _fold(node.left, names), _fold(node.right, names)
            return _HUGE if isinstance(left, str) and _WIDE.search(left) else left % right
        case ast.JoinedStr():
            return "".join(_fold(part, names) for part in node.values)
        case ast.FormattedValue(conversion=-1):
            spec = _fold(node.format_spec, names) if node.format_spec else ""
            return _HUGE if _WIDE.search("%" + spec) else format(_fold(node.value, names), spec)
        case ast.List() | ast.Set() | ast.Tuple():
            return (tuple if isinstance(node, ast.Tuple) else list)(_fold(inner, names) for inner in node.elts)
        case ast.Dict():
            keys = [_fold(key, names) if key else None for key in node.keys]
            return dict(zip(keys, [_fold(inner, names) for inner in node.values], strict=True))
        case ast.Call(func=ast.Name(id=kind), args=[inner], keywords=[]) if kind in _CASTS and kind not in names:
            return _CASTS[kind](_fold(inner, names))
    return _UNFOLDED
