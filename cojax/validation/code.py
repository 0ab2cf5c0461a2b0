"""The code of actions that are text: its syntax tree, and its names and literals."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from cojax.explorer.answers import parse_code
from cojax.types import Action, Observation, Triplet


def syntax_tree(action: Action) -> ast.Module:
    """The syntax tree of an action's code; empty where its text is no code."""
    try:
        return parse_code(Triplet(action, Observation(), 0))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def names_and_literals(action: Action) -> Iterator[str]:
    """The names and literals of an action's code; its whole text where that is no code."""
    tree = syntax_tree(action)
    if not tree.body:
        yield action.text
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str() | int() | float() as value):
                yield str(value)
