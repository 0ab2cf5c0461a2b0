"""The defaults from which every experiment starts; cojax/settings/tree.py marks which are ours, not the paper's."""

from cojax.settings.base import get_config

__all__ = ["get_config"]
