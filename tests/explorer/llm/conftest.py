"""What tests of chat models share."""

import pytest
from chat_calls import KEY

from cojax import openai_api as calls


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, and short waits between attempts."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.01)
