"""placeholder"""

from collections.abc import Mapping, Sequence
from typing import Any
from cojax.types import Call, Triplet


def documentation():
    return ()


def phrase(steps):
    return None


def popularity():
    return {}


def neighbours(tool):
    return ()


def code(calls):
    return ""
