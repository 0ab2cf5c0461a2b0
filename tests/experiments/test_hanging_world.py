"""A tool that never returns while the tokenizer is made ends the run with an error that names the call."""

from __future__ import annotations

import time
from typing import Literal

import pytest

from cojax.environment import EnvironmentFailure, Traits
from cojax.run import policies
from cojax.settings.base import get_config
from environments.tools import ToolEnvironment


def sleep(world, seconds: Literal[300]) -> None:
    time.sleep(seconds)


def test_a_tool_that_hangs_is_told_while_the_tokenizer_is_made() -> None:
    world = ToolEnvironment("sleeper", [sleep], dict, [{"x": 1}], traits=Traits(deadline=0.3))
    with pytest.raises(EnvironmentFailure, match=r"affordances has not returned in 0\.3 s; a tool that may hang"):
        policies.train_tokenizer(get_config(), world)
