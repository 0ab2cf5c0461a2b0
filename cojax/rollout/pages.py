"""The pages of a cache: which are free, who reads them, and which chunks of prompts they hold.

A chunk that some page holds is shared instead of computed. Its keys and values depend only on the tokens up to its end
and on how they are cut, and a chunk's name is a digest of both. A page keeps its chunks after its last conversation has
left it, until another one takes it.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

import numpy as np

_ALIGNMENT = 64  # positions; of rows of other lengths, an accelerator loads single numbers in place of vectors
# Positions. Up to so many are read whole in any case, which takes a tenth of the time where they are one page.
_LONGEST_PAGE = 512


@dataclasses.dataclass(frozen=True)
class CacheShape:
    """A cache of `page_count` pages of `page_length` positions, and `row_pages`, those of the longest conversation.

    Conversations of at most 512 positions are one page each, whose number is that of their slot.
    """

    page_count: int
    page_length: int
    row_pages: int

    @classmethod
    def of(cls, slot_count: int, max_length: int, token_count: int | None = None) -> "CacheShape":
        """The shape for `slot_count` conversations of at most `max_length` tokens, which take `token_count` together.

        None stands for all that they can take. Raises ValueError for a cache that does not hold one conversation.
        """
        length = -(-max_length // _ALIGNMENT) * _ALIGNMENT
        page_length = length if length <= _LONGEST_PAGE else _ALIGNMENT
        page_count = slot_count * length // page_length
        if token_count is not None:
            page_count = min(page_count, token_count // page_length)
        if page_count < (least := length // page_length if length > _LONGEST_PAGE else slot_count):
            raise ValueError(
                f"cache_tokens gives each of the engine's caches {token_count} tokens for {slot_count} conversations "
                f"of {max_length}; expected at least {least * page_length}: one conversation must fit, and all if they "
                f"have at most {_LONGEST_PAGE} tokens"
            )
        return cls(page_count, page_length, length // page_length)

    @property
    def length(self) -> int:
        """Positions of the longest conversation."""
        return self.row_pages * self.page_length

    @property
    def is_cut(self) -> bool:
        """Whether a conversation may have several pages."""
        return self.row_pages > 1


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The leading chunks of a prompt that pages hold.

    `full_pages` hold nothing else. `last_page` also holds later positions; it is −1 if the prefix ends with a page.
    `routes` are those of each chunk.
    """

    full_pages: tuple[int, ...] = ()
    last_page: int = -1
    routes: tuple[Any, ...] = ()


class Pages:
    """`count` pages of `length` positions each.

    `holders` maps a chunk to the pages that it lies in, and these to its routes, None for a model without routes.
    `pending` are the chunks that some request is about to compute.
    """

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length
        self._free = dict.fromkeys(range(count))  # the one freed first comes first
        self._reader_counts = [0] * count
        self.pending: set[bytes] = set()
        self.holders: dict[bytes, dict[tuple[int, ...], Any]] = {}
        self._chunks_by_page: dict[int, dict[tuple[bytes, tuple[int, ...]], None]] = collections.defaultdict(dict)

    @property
    def free_count(self) -> int:
        return len(self._free)

    def is_free(self, page: int) -> bool:
        return page in self._free

    def count_for(self, position_count: int) -> int:
        """The number of pages that hold so many positions."""
        return -(-position_count // self.length)

    def take(self, count: int) -> list[int]:
        """Takes free pages, of which there must be as many, and drops what they hold."""
        pages = list(self._free)[:count]
        for page in pages:
            self.share(page)
            self.drop(page)
        return pages

    def share(self, page: int) -> None:
        """Adds a reader."""
        self._free.pop(page, None)
        self._reader_counts[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Removes a reader of each. A conversation's last page is free first: its beginning stays longest."""
        for page in reversed(pages):
            self._reader_counts[page] -= 1
            if not self._reader_counts[page]:
                self._free[page] = None

    def add(self, chunk_name: bytes, pages: tuple[int, ...], routes: Any) -> None:
        """The next chunk of a prompt now lies in these pages."""
        self.pending.discard(chunk_name)
        if pages not in self.holders.setdefault(chunk_name, {}):
            self.holders[chunk_name][pages] = routes
            for page in pages:
                self._chunks_by_page[page][chunk_name, pages] = None

    def drop(self, page: int, kept_names: Container[bytes] = ()) -> None:
        """The page will be overwritten, except for the chunks of these names."""
        for chunk_name, pages in list(self._chunks_by_page[page]):
            if chunk_name not in kept_names:
                for other_page in pages:
                    del self._chunks_by_page[other_page][chunk_name, pages]
                del self.holders[chunk_name][pages]
                if not self.holders[chunk_name]:
                    del self.holders[chunk_name]

    def forget_chunks(self) -> None:
        """No page holds a chunk any more."""
        self.pending.clear()
        self.holders.clear()
        self._chunks_by_page.clear()

    def find_prefix(self, chunk_names: Sequence[bytes], chunk_ends: Sequence[int]) -> Prefix:
        """Where the chunks of these names lie, all of which some page holds; they end at these positions.

        Of several pages that hold the last chunk, a free one is preferred.
        """
        pages_by_index: dict[int, int] = {}
        routes, start = [], 0
        for chunk_name, end in zip(chunk_names, chunk_ends, strict=True):
            holders = self.holders[chunk_name]
            pages = next((pages for pages in holders if self.is_free(pages[-1])), next(iter(holders)))
            routes.append(holders[pages])
            # The last chunk of a page decides: whoever computed it holds those before it in the same page.
            pages_by_index.update(enumerate(pages, start // self.length))
            start = end
        full_count = start // self.length
        full_pages = tuple(pages_by_index[index] for index in range(full_count))
        return Prefix(full_pages, pages_by_index.get(full_count, -1) if start % self.length else -1, tuple(routes))


def name_chunks(tokens: Sequence[int], chunk_sizes: Sequence[int]) -> tuple[bytes, ...]:
    """The names of the whole chunks among those of `chunk_sizes` into which `tokens` are cut, from the first one on."""
    digests: list[bytes] = []
    digest, end = b"", 0
    for chunk_size in chunk_sizes:
        chunk, end = tokens[end : end + chunk_size], end + chunk_size
        if end <= len(tokens):
            digest = hashlib.sha256(digest + np.asarray(chunk, np.int32).tobytes()).digest()
            digests.append(digest)
    return tuple(digests)


def count_leading(chunk_names: Sequence[bytes], held_names: Mapping[bytes, Any] | Collection[bytes]) -> int:
    """The number of leading chunks of a prompt whose names are all in `held_names`."""
    return next((count for count, name in enumerate(chunk_names) if name not in held_names), len(chunk_names))
