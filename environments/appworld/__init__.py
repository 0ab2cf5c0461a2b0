"""AppWorld: the official `appworld` package (its apps Apache-2.0, redistributed encrypted alone), in workers."""

from __future__ import annotations

from environments.appworld.data import RECIPE

__all__ = ["RECIPE"]
