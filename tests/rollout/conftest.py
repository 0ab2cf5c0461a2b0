"""Servers that misbehave on command, and engines attached to them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_sglang import CONFIG, FakeLaunch, FakeServer, Router, with_settings

from cojax.rollout.sglang.engine import SGLangEngine


@pytest.fixture
def pair() -> Iterator[list[FakeServer]]:
    servers = [FakeServer(), FakeServer()]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def router(pair: list[FakeServer]) -> Iterator[Router]:
    router = Router(pair)
    yield router
    router.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SGLangEngine]]:
    engines: list[SGLangEngine] = []

    def build(servers: list[FakeServer], **settings: Any) -> SGLangEngine:
        settings = {"timeout_s": 10.0, "folder": tmp_path, "max_length": 64, **with_settings(**settings)}
        engines.append(SGLangEngine(CONFIG, urls=[server.url for server in servers], **settings))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLaunch:
    """Servers of our own, asked more often than usual whether they have started."""
    monkeypatch.setattr("cojax.rollout.sglang.server._START_POLL_S", 0.05)
    return FakeLaunch(tmp_path)
