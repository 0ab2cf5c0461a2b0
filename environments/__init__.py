"""The environments of cojax. A file or folder here that offers `make(*, …) -> Environment` is one, under its own name.

`cojax.worlds` finds and loads them, also in a wheel, where this folder is `cojax.environments`.
"""

from cojax.worlds import available, check_settings, list_reserved, load, maker, parse_settings

__all__ = ["available", "check_settings", "list_reserved", "load", "maker", "parse_settings"]
