"""Which rows sequences go to, and that a unit stays in one micro-batch."""

import numpy as np
import pytest

from cojax.learner.batch import RowShape, Segment, assign_rows


def _segments(*units):
    """Units of sequences of these lengths."""
    return [
        Segment(f"sequence {number}", [7] * size, np.ones(size), {}, number)
        for number, sizes in enumerate(units)
        for size in sizes
    ]


def test_single_sequences_go_first_fit_decreasing():
    # Lengths 2, 5, 4, 2, 3 into rows of 8: [5, 3], [4, 2, 2].
    assert assign_rows(_segments([2], [5], [4], [2], [3]), RowShape(8, 1)) == [[1, 4], [2, 0, 3]]
    assert assign_rows(_segments([2], [5], [4], [2], [3]), RowShape(8, 4)) == [[1, 4], [2, 0, 3]]


def test_two_of_a_unit_share_a_micro_batch():
    """Rows of 8, two a micro-batch: (6, 5) fills the first, (5, 4) must open the second, (3, 3) fits the first."""
    rows = assign_rows(_segments([6, 5], [5, 4], [2, 3]), RowShape(8, 2))
    assert rows == [[0, 4], [1, 5], [2], [3]]


def test_a_unit_may_share_one_row():
    assert assign_rows(_segments([5, 3], [4, 4]), RowShape(8, 1)) == [[0, 1], [2, 3]]


def test_a_unit_that_no_micro_batch_holds_names_the_fix():
    with pytest.raises(
        ValueError, match=r"sequence 0 and those it is compared with have 11 tokens, .* raise micro_rows to 2"
    ):
        assign_rows(_segments([6, 5]), RowShape(8, 1))


@pytest.mark.parametrize("micro_rows", [1, 2, 3, 4])
def test_the_capacity_holds_any_pairs(micro_rows):
    draw = np.random.default_rng(0)
    for _ in range(30):
        most = 4 if micro_rows == 1 else 8  # two of 4 share a row of 8, two of 8 need one each
        units = [draw.integers(1, most + 1, 2).tolist() for _ in range(7)]
        rows = assign_rows(_segments(*units), RowShape(8, micro_rows))
        assert len(rows) <= RowShape(8, micro_rows).rows_for(7, 2)
        for number in range(7):
            of_unit = {row // micro_rows for row, held in enumerate(rows) for index in held if index // 2 == number}
            assert len(of_unit) == 1
    assert RowShape(8, micro_rows).rows_for(7, 2) % micro_rows == 0


def test_the_capacity_holds_units_that_fill_more_rows_than_a_micro_batch_might():
    """Four of 3 tokens fill a micro-batch of two rows of 8: each unit takes one of its own."""
    rows = assign_rows(_segments([3, 3, 3, 3], [3, 3, 3, 3], [3, 3, 3, 3]), RowShape(8, 2))
    assert [len(row) for row in rows] == [2, 2, 2, 2, 2, 2]
    assert len(rows) == RowShape(8, 2).rows_for(3, 4)
