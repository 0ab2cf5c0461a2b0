"""The exception by which a check refuses a draft."""

from __future__ import annotations


class DraftRefused(Exception):
    """A check refuses the draft; `quarantine` names the rule for which a person should look at it."""

    def __init__(self, reason: str, quarantine: str = ""):
        super().__init__(reason)
        self.quarantine = quarantine
