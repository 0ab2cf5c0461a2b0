"""Commands and configurations; the only place that reads a ConfigDict."""

from typing import TYPE_CHECKING, Any

from cojax import imports

imports.ours_first()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return imports.attribute("experiments", name)
