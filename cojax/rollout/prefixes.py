"""Which slots hold the beginnings of prompts, so that a beginning that requests share is computed once.

A prompt is fed in chunks, cut by a rule that depends on the prompt alone. Keys and values of a whole chunk follow from
the tokens up to its end and from how they were cut. A chunk's name is a digest of both, so equal names mean equal bits,
which may be copied from one slot to another. A slot keeps its chunks after its session is released, until another
session overwrites them.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np


def chunk_names(tokens: Sequence[int], sizes: Sequence[int]) -> tuple[bytes, ...]:
    """The names of the whole chunks among those that `tokens` are fed in, from the first token on, in order."""
    names: list[bytes] = []
    name, end = b"", 0
    for size in sizes:
        piece, end = tokens[end : end + size], end + size
        if end <= len(tokens):
            name = hashlib.sha256(name + np.asarray(piece, np.int32).tobytes()).digest()
            names.append(name)
    return tuple(names)


class Prefixes:
    """Which slots hold which chunks (`holders`), and which chunks some request is about to compute (`pending`).

    `holders` maps a chunk to its slots and these to its routes, None for a model without. A slot that holds a chunk
    holds all before it in the prompt.
    """

    def __init__(self) -> None:
        self.pending: set[bytes] = set()
        self.holders: dict[bytes, dict[int, Any]] = {}
        self._chunks: dict[int, list[bytes]] = collections.defaultdict(list)

    def count_held(self, names: Sequence[bytes]) -> int:
        """The number of leading chunks of the prompt that a single slot holds."""
        return next((count for count in range(len(names), 0, -1) if names[count - 1] in self.holders), 0)

    def count_pending(self, names: Sequence[bytes]) -> int:
        """The number of leading chunks that a single slot will hold once all pending ones are computed.

        0 if none of the prompt's chunks is pending.
        """
        return next((count for count in range(len(names), 0, -1) if names[count - 1] in self.pending), 0)

    def add(self, slot: int, name: bytes, routes: Any) -> None:
        """The slot now holds the next chunk of its prompt."""
        self.pending.discard(name)
        if slot not in self.holders.setdefault(name, {}):
            self.holders[name][slot] = routes
            self._chunks[slot].append(name)

    def drop(self, slot: int, kept: int = 0) -> None:
        """The slot will be overwritten, but for its first `kept` chunks."""
        for name in self._chunks[slot][kept:]:
            del self.holders[name][slot]
            if not self.holders[name]:
                del self.holders[name]
        del self._chunks[slot][kept:]
