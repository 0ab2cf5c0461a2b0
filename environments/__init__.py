"""The environments of cojax. A file or folder here that offers `make(*, …) -> Environment` is one, under its own name.

`cojax.worlds` finds and loads them, also in a wheel, where this folder is `cojax.environments`.
"""

from cojax.worlds import available, examine, load, maker, reserved_splits, settings_from_text

__all__ = ["available", "examine", "load", "maker", "reserved_splits", "settings_from_text"]
