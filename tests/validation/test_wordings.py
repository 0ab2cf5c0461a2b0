"""The index of wordings finds what comparing all texts finds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from cojax.validation.wordings import NGRAMS, Wordings

FILES = [f"{kind}{number}" for kind in ("report", "budget", "notes", "plan") for number in range(40)]


def request(rng: random.Random) -> str:
    steps = [f"{rng.choice(('move', 'copy', 'share'))} {rng.choice(FILES)} to {rng.choice(FILES)}" for _ in range(3)]
    return f"please {', then '.join(steps)}."


def compared(texts: list[str], text: str, threshold: float) -> dict[int, float]:
    """Place → cosine of the texts above the threshold, by comparing with each."""
    vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=NGRAMS, alternate_sign=False, lowercase=False)
    cosines = (vectorizer.transform(texts) @ vectorizer.transform([text]).T).toarray().ravel()
    return {place: float(cosines[place]) for place in np.flatnonzero(cosines > threshold).tolist()}


@pytest.mark.parametrize("threshold", [0.2, 0.6, 0.8, 0.9, 0.97])
def test_it_finds_what_comparing_with_each_text_finds(threshold: float) -> None:
    rng = random.Random(1)
    wordings, texts = Wordings(), list[str]()
    found = 0
    for number in range(150):
        # Every fifth request is an earlier one with other words around it.
        text = request(rng) if number % 5 else f"thanks, {rng.choice(texts or ['hello'])}"
        expected = compared(texts, text, threshold) if texts else {}
        alike = wordings.above(text, threshold)
        assert {place: cosine for cosine, place in alike} == pytest.approx(expected, abs=1e-5)
        assert alike == sorted(alike, key=lambda one: (-one[0], one[1]))
        found += len(alike)
        wordings.add(text)
        texts.append(text)
    assert found > 0
    assert len(wordings) == 150


def test_texts_without_an_n_gram_are_like_none() -> None:
    wordings = Wordings()
    assert wordings.above("move", 0.5) == []
    for text in ("", " ", "move report1 to plan2"):
        wordings.add(text)
    assert wordings.above("", 0.0) == []
    assert [place for _, place in wordings.above("move report1 to plan2", 0.9)] == [2]


def test_only_texts_that_may_be_above_the_threshold_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, wordings = random.Random(2), Wordings()
    for _ in range(500):
        wordings.add(request(rng))
    compared, cosines = [], wordings._cosines

    def counted(numbers, weights, candidates):
        compared.append(len(candidates))
        return cosines(numbers, weights, candidates)

    monkeypatch.setattr(wordings, "_cosines", counted)
    for _ in range(20):
        wordings.above(request(rng), 0.9)
    assert sum(compared) < 0.2 * 20 * 500
