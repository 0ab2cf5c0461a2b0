"""What values in Python code rest on: abstract interpretation of a session of code blocks. No code is run.

A name that the code does not define and that Python does not know is an object of the environment; what calls of it
return is *worked out*, and so is whatever an expression makes of that, or a condition on it chooses between. Everything
else is *known* as far as constants go, through names, containers, f-strings and sums, and *neither* beyond.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.explorer.values import (
    LARGEST,
    NEITHER,
    NONE,
    WORKED,
    Answer,
    Frames,
    Value,
    compared,
    constant,
    either,
    element,
    entry,
    held,
    joined,
    made,
    scalar,
    signed,
    small,
    spelled,
    total,
)  # fmt: skip

# Nodes visited in a session, and how deep they nest, calls of the code's own functions counted several times.
_MOST_VISITS, _DEEPEST, _CALL_DEPTH = 40_000, 120, 6
_BUILTINS = frozenset(dir(builtins))
# Code that makes code: where its names lead cannot be seen.
_HIDING = frozenset({"exec", "eval", "compile", "globals", "locals", "vars", "setattr", "__import__"})
_MUTATORS = frozenset({
    "append", "extend", "insert", "add", "update", "setdefault", "appendleft", "remove", "pop", "clear", "sort",
    "reverse", "discard",
})  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Unclear(Exception):
    """The code cannot be followed; the reason in a few words."""


class Flow:
    """A session: names last from one block to the next. Single-use.

    `ending` is the name by which the call that ends an episode is made, "" where any call with an argument `parameter`
    does; `parameter` "" takes no answer. `ended` tells whether such a call was seen.
    """

    def __init__(self, ending: str, parameter: str) -> None:
        self.ending, self.parameter = ending, parameter
        self.frames: Frames = [{}]
        self.ended = False
        self.answers: list[Answer] = []
        self.printed: list[str] = []
        self.asks = self.shows = False
        self.visits = self.depth = self.under = 0
        self.returns: list[list[tuple[Value, bool]]] = []
        # Names that a function declares to be global, and to be of the function around it.
        self.outer: list[set[str]] = [set()]
        self.around: list[set[str]] = [set()]
        self.active: list[ast.AST] = []  # functions that are being gone through
        self.left: dict[str, Value] = {}  # the names of the last one

    def through(self, tree: ast.Module) -> tuple[list[Answer], list[str], bool]:
        """The answers that a block gives, the constants that it prints, and whether it may show anything else.

        Raises Unclear.
        """
        self.answers, self.printed, self.asks, self.shows = [], [], False, False
        self.body(tree.body)
        return self.answers, self.printed, self.asks or self.shows

    # Statements.

    def body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _visit(self, cost: int = 1) -> None:
        self.visits += cost
        if self.visits > _MOST_VISITS:
            raise Unclear("it is too long, or loops within too many loops")
        if self.depth > _DEEPEST:
            raise Unclear("it nests too deep")

    def _statement(self, node: ast.stmt) -> None:
        self._visit()
        self.depth += 2
        match node:
            case ast.Assign():
                value = self.read(node.value)
                for target in node.targets:
                    self._store(target, value)
            case ast.AnnAssign() if node.value is not None:
                self._store(node.target, self.read(node.value))
            case ast.AugAssign():
                before = self.read(node.target)
                self._store(node.target, self._sum(before, self.read(node.value), node.op))
            case ast.Expr():
                # A session shows what its last expression is worth.
                self.shows = self.read(node.value).rests or self.shows
            case ast.If():
                self._branch(node)
            case ast.For() | ast.AsyncFor():
                self._loop(self.read(node.iter), node, node.target)
            case ast.While():
                self._loop(self.read(node.test), node, None)
            case ast.Try() | ast.TryStar():
                self._attempt(node)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.read(item.context_expr)
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, made(value))
                self.body(node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._name(node.name, NEITHER if node.decorator_list else self._function(node))
            case ast.Return():
                value = self.read(node.value) if node.value else NONE
                if self.returns:
                    self.returns[-1].append((value, self.under > 0))
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    self._name((alias.asname or alias.name).partition(".")[0], NEITHER)
            case ast.Global():
                self.outer[-1].update(node.names)
            case ast.Nonlocal():
                self.around[-1].update(node.names)
            case ast.ClassDef():
                self._name(node.name, NEITHER)
            case ast.Match():
                self._match(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.read(child)
        self.depth -= 2

    def _branch(self, node: ast.If) -> None:
        test = self.read(node.test)
        if scalar(test):
            self.body(node.body if test.value else node.orelse)
            return
        self._ways([node.body, node.orelse], test.rests)

    def _ways(self, bodies: Sequence[Sequence[ast.stmt]], chosen: bool) -> None:
        """Any one of these; what they leave is what a condition chose between."""
        start = self._kept()
        ends = []
        self.under += chosen
        for body in bodies:
            self._restore(start)
            self.body(body)
            ends.append(self._kept())
        self.under -= chosen
        self._restore(ends[0])
        for end in ends[1:]:
            self._join(end, lambda one, other: either(one, other, chosen))

    def _loop(self, over: Value, node: ast.For | ast.AsyncFor | ast.While, target: ast.expr | None) -> None:
        """Twice through: what then still changes is not known. One over worked-out things may also not be entered."""
        start = self._kept()
        self.under += over.rests
        for _ in range(2):
            before = self._kept()
            if target is not None:
                self._store(target, element(over))
            self.body(node.body)
        self.under -= over.rests
        self._join(before, lambda twice, once: twice if twice == once else made(twice))
        if over.rests:
            self._join(start, lambda end, begin: either(end, begin, chosen=True))
        self.body(node.orelse)

    def _attempt(self, node: ast.Try | ast.TryStar) -> None:
        """What an exception leaves counts only where the body leaves nothing that is worked out."""
        start = self._kept()
        self.body(node.body)
        self.body(node.orelse)
        for handler in node.handlers:
            end = self._kept()
            self._restore(start)
            if handler.name:
                self._name(handler.name, WORKED if self.asks else NEITHER)
            self.body(handler.body)
            caught = self._kept()
            self._restore(end)
            self._join(caught, lambda one, other: one if one.rests else either(one, other, chosen=False))
        self.body(node.finalbody)

    def _match(self, node: ast.Match) -> None:
        subject = self.read(node.subject)
        for case in node.cases:
            for pattern in ast.walk(case.pattern):
                self._visit()
                if isinstance(pattern, (ast.MatchAs, ast.MatchStar)) and pattern.name:
                    self._name(pattern.name, made(subject))
            if case.guard is not None:
                self.read(case.guard)
        self._ways([case.body for case in node.cases], subject.rests)

    # Names.

    def _kept(self) -> Frames:
        self._visit(1 + sum(map(len, self.frames)) // 4)
        return [dict(frame) for frame in self.frames]

    def _restore(self, kept: Frames) -> None:
        for frame, then in zip(self.frames, kept, strict=True):
            frame.clear()
            frame.update(then)

    def _join(self, others: Frames, how: Callable[[Value, Value], Value]) -> None:
        for frame, other in zip(self.frames, others, strict=True):
            for name, value in other.items():
                frame[name] = how(frame[name], value) if name in frame else value

    def _name(self, name: str, value: Value) -> None:
        frame = self.frames[0 if name in self.outer[-1] else -1]
        if name in self.around[-1]:
            frame = next((around for around in reversed(self.frames[:-1]) if name in around), frame)
        frame[name] = value

    def _store(self, target: ast.expr, value: Value) -> None:
        self._visit()
        match target:
            case ast.Name():
                self._name(target.id, value)
            case ast.Tuple() | ast.List():
                inner = value.value if value.known and isinstance(value.value, list) else []
                fits = len(inner) == len(target.elts) and not any(isinstance(t, ast.Starred) for t in target.elts)
                for place, one in enumerate(target.elts):
                    self._store(one, inner[place] if fits else element(value))
            case ast.Starred():
                self._store(target.value, made(value))
            case ast.Subscript() | ast.Attribute():
                index = self.read(target.slice) if isinstance(target, ast.Subscript) else NONE
                self._changed(target.value, value, index)

    def _changed(self, node: ast.expr, *by: Value) -> None:
        """Something was put into what this expression names."""
        while isinstance(node, (ast.Subscript, ast.Attribute)):
            self._visit()
            node = node.value
        if not isinstance(node, ast.Name):
            return
        for frame in reversed(self.frames):
            if node.id in frame:
                frame[node.id] = made(frame[node.id], *by)
                return

    # Expressions.

    def read(self, node: ast.expr) -> Value:
        self._visit()
        self.depth += 1
        try:
            return self._read(node)
        finally:
            self.depth -= 1

    def _read(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant():
                return constant(node.value)
            case ast.Name():
                return self._named(node.id)
            case ast.Attribute():
                owner = self.read(node.value)
                return Value(path=(*owner.path, node.attr)) if owner.path else made(owner)
            case ast.Subscript():
                return entry(self.read(node.value), self.read(node.slice))
            case ast.Call():
                return self._call(node)
            case ast.JoinedStr():
                return self._text(node)
            case ast.BinOp():
                return self._sum(self.read(node.left), self.read(node.right), node.op)
            case ast.UnaryOp():
                return signed(self.read(node.operand), node.op)
            case ast.BoolOp():
                return self._boolean([self.read(value) for value in node.values], isinstance(node.op, ast.Or))
            case ast.Compare():
                return compared([self.read(n) for n in (node.left, *node.comparators)], node.ops)
            case ast.IfExp():
                test, one, other = self.read(node.test), self.read(node.body), self.read(node.orelse)
                if scalar(test):
                    return one if test.value else other
                return either(one, other, test.rests)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._listed(node.elts)
            case ast.Dict():
                return self._mapped(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._comprehended(node.generators, node.elt)
            case ast.DictComp():
                return self._comprehended(node.generators, node.key, node.value)
            case ast.Lambda():
                return self._function(node)
            case ast.NamedExpr():
                value = self.read(node.value)
                self._store(node.target, value)
                return value
            case ast.Yield() | ast.YieldFrom():
                value = made(self.read(node.value)) if node.value else NONE
                if self.returns:
                    self.returns[-1].append((value, True))
                return NEITHER
        return made(*(self.read(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)))

    def _named(self, name: str) -> Value:
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return NEITHER if name in _BUILTINS else Value(path=(name,))

    def _sum(self, one: Value, other: Value, op: ast.operator) -> Value:
        return total(one, other) if isinstance(op, ast.Add) else made(one, other)

    def _boolean(self, values: Sequence[Value], any_of: bool) -> Value:
        if not any_of and not values[-1].rests and not scalar(values[0]):
            return values[-1]  # what a condition lets through, as it was written
        if not all(map(scalar, values)):
            return made(*values)
        found = values[0]
        for value in values[1:]:
            found = found if bool(found.value) == any_of else value
        return found

    def _text(self, node: ast.JoinedStr) -> Value:
        parts: list[Value] = []
        plain = True
        for piece in node.values:
            inner = piece.value if isinstance(piece, ast.FormattedValue) else piece
            parts.append(self.read(inner))
            if isinstance(piece, ast.FormattedValue) and piece.format_spec is not None:
                parts.append(self.read(piece.format_spec))
                plain = False
            plain = plain and (not isinstance(piece, ast.FormattedValue) or piece.conversion == -1)
        return joined(parts, "") if plain else made(*parts)

    def _listed(self, nodes: Sequence[ast.expr]) -> Value:
        found: list[Value] = []
        for node in nodes:
            value = self.read(node.value if isinstance(node, ast.Starred) else node)
            if not isinstance(node, ast.Starred):
                found.append(value)
            elif value.known and isinstance(value.value, list) and len(value.value) <= LARGEST:
                self._visit(len(value.value))
                found += value.value
            else:
                found.append(made(value))
        return held(found)

    def _mapped(self, node: ast.Dict) -> Value:
        found: dict[Any, Value] = {}
        for key, given in zip(node.keys, node.values, strict=True):
            value, name = self.read(given), NEITHER if key is None else self.read(key)
            if key is None and value.known and isinstance(value.value, dict):
                self._visit(len(value.value))
                found |= value.value
            else:
                # An entry by a name that is not known is kept by itself.
                found[name.value if scalar(name) else ("?", len(found))] = made(value, name) if name.rests else value
        return held(found)

    def _comprehended(self, generators: Sequence[ast.comprehension], *kept: ast.expr) -> Value:
        self.frames.append({})
        self.outer.append(set())
        self.around.append(set())
        try:
            parts: list[Value] = []
            for generator in generators:
                over = self.read(generator.iter)
                self._store(generator.target, element(over))
                parts += [over, *map(self.read, generator.ifs)]
            return made(*parts, *map(self.read, kept))
        finally:
            self.frames.pop()
            self.outer.pop()
            self.around.pop()

    # Calls.

    def _call(self, node: ast.Call) -> Value:
        positional: list[Value] = []
        for given in node.args:
            value = self.read(given)
            spread = isinstance(given, ast.Starred) and value.known and isinstance(value.value, list)
            positional += value.value if spread else [value]
        named: dict[str, Value] = {}
        rest: list[Value] = []
        for keyword in node.keywords:
            value = self.read(keyword.value)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif value.known and isinstance(value.value, dict):
                named |= {name: inner for name, inner in value.value.items() if isinstance(name, str)}
                rest += [inner for name, inner in value.value.items() if not isinstance(name, str)]
            else:
                rest.append(made(value))
        self._visit(len(positional) + len(named))
        every = [*positional, *named.values(), *rest]
        if isinstance(node.func, ast.Name) and self._named(node.func.id) == NEITHER and node.func.id in _BUILTINS:
            return self._builtin(node.func.id, positional, named, every)
        called = self.read(node.func)
        if called.path:
            self._asked(called.path, positional, named, rest, node)
            return WORKED
        if isinstance(called.function, _FUNCTIONS):
            result = self._inside(called, positional, named, rest)
            self._filled(called.function.args, node.args)
            return result
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func, positional, every)
        return made(called, *every)

    def _asked(
        self,
        path: Sequence[str],
        positional: Sequence[Value],
        named: Mapping[str, Value],
        rest: Sequence[Value],
        node: ast.Call,
    ) -> None:
        """Notes a call of the environment, and the answer where it is the one that ends an episode."""
        self.asks = True
        named_by = {path[-1], *(value.value for value in positional if isinstance(value.value, str))}
        if not (self.ending in named_by if self.ending else self.parameter in named):
            return
        self.ended = True
        if not self.parameter:
            return
        given = [named[self.parameter]] if self.parameter in named else [*rest]
        # By its place, but for where the name of what is called is an argument itself.
        if not given and path[-1] == self.ending:
            given = list(positional[:1])
        self.answers += [Answer(value, spelled(node)) for value in given]

    def _builtin(self, name: str, given: Sequence[Value], named: Mapping[str, Value], every: Sequence[Value]) -> Value:
        if name in _HIDING:
            raise Unclear(f"it calls {name}")
        if name == "print":
            self.shows = self.shows or made(*every).worked
            self.printed += [str(leaf.value) for value in every for leaf in value.leaves if small(leaf)]
            self._visit(sum(map(len, self.printed[-len(every) :])) // 10 if every else 0)
        if name == "getattr" and len(given) > 1 and given[0].path:
            return Value(path=(*given[0].path, str(given[1].value)))
        if name == "dict" and not given:
            return held(dict(named))
        if name == "str" and len(given) == 1 and small(given[0]):
            return Value(known=True, value=str(given[0].value))
        if name in ("list", "tuple") and len(given) == 1 and given[0].known and isinstance(given[0].value, list):
            return given[0]
        return made(*every)

    def _method(self, node: ast.Attribute, positional: Sequence[Value], every: Sequence[Value]) -> Value:
        owner = self.read(node.value)
        if node.attr in _MUTATORS or (owner == NEITHER and any(value.rests for value in every)):
            self._changed(node.value, *every)
        if node.attr == "join" and len(positional) == 1 and isinstance(owner.value, str):
            parts = positional[0].value
            if isinstance(parts, list) and len(parts) * len(owner.value) <= LARGEST:
                return joined(parts, owner.value)
        return made(owner, *every)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Value:
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        last = names[len(names) - len(node.args.defaults) :]
        defaults = {name: self.read(default) for name, default in zip(last, node.args.defaults, strict=True)}
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                defaults[argument.arg] = self.read(default)
        return Value(function=node, frames=list(self.frames), defaults=defaults)

    def _inside(
        self, called: Value, given: Sequence[Value], named: Mapping[str, Value], rest: Sequence[Value]
    ) -> Value:
        """What a function of the code's own returns for these arguments."""
        node, arguments = called.function, called.function.args
        if self.active.count(node) > 1:
            return self._recurred(node, [*given, *named.values(), *rest])
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        every = [*names, *(argument.arg for argument in arguments.kwonlyargs)]
        missing = made(*rest)
        frame = {name: called.defaults.get(name, missing) for name in every}
        frame |= dict(zip(names, given, strict=False)) | {name: named[name] for name in every if name in named}
        if arguments.vararg:
            frame[arguments.vararg.arg] = held(list(given[len(names) :]))
        if arguments.kwarg:
            frame[arguments.kwarg.arg] = held({n: v for n, v in named.items() if n not in every})
        before = self.frames, self.under, self.depth
        self.frames, self.under, self.depth = [*(called.frames or []), frame], 0, self.depth + _CALL_DEPTH
        self.outer.append(set())
        self.around.append(set())
        self.active.append(node)
        self.returns.append([])
        self._visit()
        if isinstance(node, ast.Lambda):
            self.returns[-1].append((self.read(node.body), False))
        else:
            self.body(node.body)
        found = self.returns.pop()
        self.outer.pop()
        self.around.pop()
        self.active.pop()
        self.left = frame
        self.frames, self.under, self.depth = before
        if not found:
            return NONE
        result, chosen = found[0][0], any(under for _, under in found)
        for value, _ in found[1:]:
            result = either(result, value, chosen)
        return result

    def _recurred(self, node: ast.AST, given: Sequence[Value]) -> Value:
        """What a function that calls itself returns in the end. Raises Unclear for one that may end the episode."""
        for inner in ast.walk(node):
            self._visit()
            match inner:
                case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=name) if name == self.ending:
                    raise Unclear("a function that calls itself ends the episode")
        return made(*given)

    def _filled(self, arguments: ast.arguments, given: Sequence[ast.expr]) -> None:
        """Containers that a function was given and has put worked-out things into."""
        left = self.left
        for argument, node in zip((*arguments.posonlyargs, *arguments.args), given, strict=False):
            if isinstance(node, ast.Name) and argument.arg in left and left[argument.arg].rests:
                known = self._named(node.id)
                if not (scalar(known) or known.rests or known.path):
                    self._changed(node, WORKED)
