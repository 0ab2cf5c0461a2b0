"""JSON has neither NaN nor infinity: a page shows a gap."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """The value with None for every number that is not finite, and with text keys."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def strict_json(value: Any) -> str:
    """The value as compact ASCII JSON, with null for every number that is not finite."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
