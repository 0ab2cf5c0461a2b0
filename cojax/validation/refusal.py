"""Why a draft is refused, raised by the examination that refuses it."""

from __future__ import annotations


class DraftRefused(Exception):
    """An examination failed; `quarantine` names the rule by which a person should look at it."""

    def __init__(self, reason: str, quarantine: str = ""):
        super().__init__(reason)
        self.quarantine = quarantine
