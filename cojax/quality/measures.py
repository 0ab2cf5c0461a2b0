"""Measures of a task set from the embeddings of its queries: pure functions (CoEvolve, task-set metrics).

Embeddings are float[N, D]. Rows are scaled to unit length first. A row of zeros (a text without any feature) has cosine
0 with every other. No array larger than [BLOCK, N] is made. A measure is None where it needs more rows than there are.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

BLOCK = 512  # rows of similarities made at a time
BINS = 20  # of a histogram of cosines from 0 to 1


def neighbour_similarity(embeddings: Floats, k: int) -> float | None:
    """SR@k: mean cosine of each row to its k nearest other rows; lower is more diverse.

    SR@k = 1/N · Σ_i 1/k · Σ_{j ∈ kNN(i)} cos(e_i, e_j), j ≠ i. With fewer than k others, all of them count. It rises
    with N even for samples of one source, as neighbours come closer: compare only sets of about the same size.
    """
    return within(embeddings, k)[0]


def energy_distance(target: Floats, generated: Floats) -> float | None:
    """ED_rel: energy distance of the generated to the target queries, relative to the target's spread; lower is closer.

    ED_rel = (2 E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖) / E‖y − y'‖, with x, x' generated and y, y' target (Székely and Rizzo,
    Energy statistics, J. Stat. Plan. Inference 143, 2013; relative as in CoEvolve). Distances are Euclidean, between
    rows of unit length. Pairs within a set are of two different rows (a U-statistic). If each row were also paired with
    itself, a set would come closer merely by growing. ED_rel can therefore fall somewhat below 0 where both sets are
    alike. It is None where a set has fewer than two rows, or where all targets are the same.
    """
    return relative_energy(across(generated, target)[1], within(generated, 1)[1], within(target, 1)[1])


def greatest_similarity(embeddings: Floats, targets: Floats) -> Floats:
    """Cosine of each row to the nearest target, float[N]; 0 where there is no target."""
    return across(embeddings, targets)[0]


def within(embeddings: Floats, k: int) -> tuple[float | None, float | None]:
    """SR@k, and the mean distance of two different rows. Raises ValueError for k below 1."""
    if k < 1:
        raise ValueError(f"k is {k}; expected at least 1 neighbour")
    rows, count = unit(embeddings), len(embeddings)
    if count < 2:
        return None, None
    near, far = 0.0, 0.0
    k = min(k, count - 1)
    for start, cosines, distances in _blocks(rows, rows):
        itself = np.arange(len(cosines)), np.arange(start, start + len(cosines))
        distances[itself] = 0.0
        far += float(distances.sum(dtype=np.float64))
        cosines[itself] = -np.inf
        near += float(np.partition(cosines, -k, axis=1)[:, -k:].sum(dtype=np.float64))
    return near / (k * count), far / (count * (count - 1))


def across(embeddings: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """For each row: the cosine to the nearest target (0 without any), and the mean distance to targets; float64[N]."""
    nearest, far = np.zeros(len(embeddings)), np.zeros(len(embeddings))
    if len(targets):
        for start, cosines, distances in _blocks(unit(embeddings), unit(targets)):
            nearest[start : start + len(cosines)] = cosines.max(axis=1)
            far[start : start + len(cosines)] = distances.mean(axis=1, dtype=np.float64)
    return nearest, far


def relative_energy(far: Floats, own: float | None, spread: float | None) -> float | None:
    """ED_rel from mean distances: `far` of each row to the targets, `own` of two rows, `spread` of two targets."""
    if own is None or not spread:
        return None
    return (2.0 * float(far.mean()) - own - spread) / spread


def histogram(cosines: Floats) -> list[int]:
    """The number of cosines in each of BINS equal bins from 0 to 1; negative ones count in the first."""
    # A cosine that only rounding puts below the lower end of a bin belongs into it.
    bins = np.floor(cosines * BINS + 1e-5).astype(int).clip(0, BINS - 1)
    return np.bincount(bins, minlength=BINS).tolist()


def unit(embeddings: Floats) -> Floats:
    """The rows at unit length; rows of zeros stay. Raises ValueError for other than finite numbers [N, D]."""
    if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
        raise ValueError(f"embeddings of shape {embeddings.shape}; expected finite numbers of shape [N, D]")
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(lengths > 0, lengths, 1)


def _blocks(rows: Floats, others: Floats) -> Iterator[tuple[int, Floats, Floats]]:
    """For each block of rows: the number of its first row, and its cosines and distances to the others, [block, M]."""
    squares, other_squares = (np.einsum("nd,nd->n", matrix, matrix) for matrix in (rows, others))
    for start in range(0, len(rows), BLOCK):
        cosines = rows[start : start + BLOCK] @ others.T
        squared = squares[start : start + BLOCK, None] + other_squares[None, :] - 2.0 * cosines
        yield start, cosines, np.sqrt(np.maximum(squared, 0.0))
