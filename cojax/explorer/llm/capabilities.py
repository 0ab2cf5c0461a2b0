"""What an endpoint knows of the optional parts of a request, as far as its refusals and completions tell."""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping, Set
from typing import Any

from cojax.explorer.llm.transport import CallRefused

# Optional parts of a request, and the words by which an endpoint says that it does not know them.
_OPTIONAL = {"seed": ("seed",), "response_format": ("response_format", "json_schema", "schema", "grammar", "guided")}
# Refusals in a row that do not say what they are about, after which an optional part is believed to be unknown.
_REPEATED = 2
# After so many completions without such a part one request has it again, after several times as many the next one.
_AGAIN, _RARER = 16, 4


class Capabilities:
    """The optional parts that an endpoint turned out not to know; any thread may ask and tell."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._left: dict[str, int] = {}  # unknown part → completions before it is sent again
        self._patience: dict[str, int] = {}
        self._doubts: collections.Counter[str] = collections.Counter()

    def unknown(self) -> set[str]:
        """The parts that a request goes without; one is tried again when its time has come."""
        with self._guard:
            due = {part for part, left in self._left.items() if left <= 0}
            # Others wait for what comes of it.
            self._left.update(dict.fromkeys(due, _AGAIN))
            return self._left.keys() - due

    def blamed(self, refusal: CallRefused, sent: Mapping[str, Any]) -> tuple[str, bool]:
        """The part of a request that a refusal is about, and true where it names it; else the schema where there is
        one, and false; empty where nothing is left to blame."""
        said = refusal.reason.casefold()
        if refusal.status not in (400, 422) or refusal.kind == "too_long":
            return "", False
        if "max_completion_tokens" in said and "max_tokens" in sent:
            return "max_tokens", True
        for name, words in _OPTIONAL.items():
            if name in sent and any(word in said for word in words):
                return name, True
        return ("response_format" if "response_format" in sent else ""), False

    def learn(self, dropped: Mapping[str, bool], sent: Mapping[str, Any]) -> None:
        """After a completion of what was `sent`; `dropped` are the parts left out for a refusal, and whether it named
        them. The endpoint does not know a part whose refusal named it, or that was refused several times in a row, when
        the same request went through without; it knows those that were sent."""
        with self._guard:
            for part, named in dropped.items():
                self._doubts[part] += _REPEATED if named else 1
                if self._doubts[part] >= _REPEATED:
                    self._patience[part] = self._patience.get(part, _AGAIN // _RARER) * _RARER
                    self._left[part] = self._patience[part]
            for part in _OPTIONAL:
                if part in sent:
                    self._doubts[part] = 0
                    self._left.pop(part, None)
                elif part in self._left and part not in dropped:
                    self._left[part] -= 1


def without(body: Mapping[str, Any], parts: Set[str]) -> dict[str, Any]:
    """The request without these parts; the bound on the reply has another name where it is not known by this one."""
    sent = {name: value for name, value in body.items() if name not in parts}
    return {**sent, "max_completion_tokens": body["max_tokens"]} if "max_tokens" in parts else sent
