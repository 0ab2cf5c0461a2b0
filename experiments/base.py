"""The paper's settings (CoEvolve, Table 9), from which every experiment starts."""

from cojax.settings.base import get_config

__all__ = ["get_config"]
