"""The environments of cojax: each file here is one, by its name, and offers `make(*, …) -> Environment`.

`cojax.worlds` finds and loads them, also where this folder is `cojax.environments`, as in a wheel.
"""

from cojax.worlds import available, examine, load, maker, reserved, settings_from_text

__all__ = ["available", "examine", "load", "maker", "reserved", "settings_from_text"]
