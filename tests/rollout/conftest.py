"""Servers that misbehave on command, and engines attached to them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from speakers import CONFIG, PATIENCE, Launched, Router, Speaker

from cojax.rollout.sglang import SGLangEngine


@pytest.fixture
def pair() -> Iterator[list[Speaker]]:
    speakers = [Speaker(), Speaker()]
    yield speakers
    for speaker in speakers:
        speaker.close()


@pytest.fixture
def router(pair: list[Speaker]) -> Iterator[Router]:
    router = Router(pair)
    yield router
    router.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SGLangEngine]]:
    engines: list[SGLangEngine] = []

    def build(speakers: list[Speaker], **settings: Any) -> SGLangEngine:
        settings = {"patience": PATIENCE, "deadline": 10.0, "folder": tmp_path, "max_length": 64, **settings}
        engines.append(SGLangEngine(CONFIG, urls=[speaker.url for speaker in speakers], **settings))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


@pytest.fixture
def launched(tmp_path: Path) -> Launched:
    return Launched(tmp_path)
