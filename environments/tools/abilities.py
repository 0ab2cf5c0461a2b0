"""What a world may have besides its state and its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from cojax.types import Action


@runtime_checkable
class EndsItself(Protocol):
    """A world that may end the episode by itself."""

    def over(self) -> bool:
        """Whether the episode has ended."""


@runtime_checkable
class Closes(Protocol):
    """A world that holds something to be freed."""

    def close(self) -> None:
        """Frees it. The world is not used any more."""


@runtime_checkable
class Retires(Protocol):
    """A world whose server may serve another episode when it is closed."""

    def retire(self) -> None:
        """Has the server serve no other episode."""


@runtime_checkable
class Introduces(Protocol):
    """A world that shows something at first."""

    def introduction(self) -> str:
        """What it shows, beside the query."""


@runtime_checkable
class Listens(Protocol):
    """A world that is told all that the actor writes."""

    def listen(self, action: Action) -> None:
        """Hears an action before its calls are made one by one, up to one that ends the episode."""

    def listened(self) -> None:
        """All calls of the action were made, or refused."""


@runtime_checkable
class Offers(Protocol):
    """A world that offers some of the environment's tools."""

    def on_offer(self) -> Iterable[Mapping[str, Any]]:
        """Their documents, as the environment's are."""
