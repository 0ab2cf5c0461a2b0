"""Normal forms are the standard library's, in time linear in the text."""

import sys
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cojax.unicode_forms import _DECOMPOSING_LETTERS, normalise_form

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
MARKS = "\u0315\u0300\u0327\u0f73\u0344\u0f71\u3099\uff9e"
TEXT = st.lists(
    st.one_of(
        st.text(max_size=4),
        st.text(alphabet="aé\ufb01한\u1161\u11a8か" + MARKS, max_size=8),
        st.text(alphabet=MARKS, min_size=31, max_size=60),
    ),
    max_size=4,
).map("".join)


@settings(deadline=None)
@given(TEXT)
def test_the_forms_are_the_standard_librarys(text):
    for form in FORMS:
        assert normalise_form(form, text) == unicodedata.normalize(form, text)


def test_every_letter_that_hides_a_mark_is_known():
    hiding = {
        letter
        for letter in map(chr, range(sys.maxunicode + 1))
        if not unicodedata.combining(letter) and unicodedata.combining(unicodedata.normalize("NFKD", letter)[0])
    }
    assert hiding == _DECOMPOSING_LETTERS


@pytest.mark.parametrize(
    "text", ["a" + "\u0315" * 40_000 + "\u0300" * 40_000, "\u0f73" * 40_000, "\u0344\u0315" * 40_000]
)
def test_marks_in_a_row_are_ordered_in_linear_time(text):
    """By insertion these take minutes."""
    before = time.process_time()
    for form in FORMS:
        normalise_form(form, text)
    assert time.process_time() - before < 10
