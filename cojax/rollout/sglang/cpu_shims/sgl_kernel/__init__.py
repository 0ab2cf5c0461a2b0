"""Stands in for SGLang's kernels on a CPU: names that can be imported, and that raise when they are called."""

from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def raise_missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU version here; choose other server flags, or a GPU")

    return raise_missing
