"""Parts of several pictures: a colour for each arm, curves with an interval over seeds, stacked bars."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .arms import ARMS
from .statistics import estimate

# Okabe and Ito's palette, which colour-blind people can distinguish.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C8C8C", "#000000")
_ARMS = {"static": 6, "random": 1, "control": 0, "feedback": 3, "uniform": 2}
KINDS = {"forgetting": _PALETTE[4], "boundary": _PALETTE[0], "rare": _PALETTE[1]}
START = "#BBBBBB"
Curves = Sequence[Sequence[tuple[float, float]]]  # one curve of (x, y) a seed


def figure(columns: int = 1, width: float = 6.4, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure with panels beside each other. It has no window, so that no display is needed."""
    made = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = [made.add_subplot(1, columns, column + 1) for column in range(columns)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return made, axes


def colours(arms: Collection[str]) -> dict[str, str]:
    """Arm → colour: the arm's own, or the first that no other arm has; with too many arms, some share one."""
    own = {arm: _PALETTE[_ARMS[arm]] for arm in arms if arm in _ARMS}
    free = itertools.cycle(shade for shade in _PALETTE if shade not in own.values())
    return {arm: own.get(arm) or next(free) for arm in arms}


def band(axes: Axes, curves: Curves, colour: str, label: str, window: int = 1, opacity: float = 0.18) -> None:
    """Draws the mean over seeds with its 95 % interval at every x that all curves have.

    Each value is first averaged over the last `window` x. An `opacity` of 0 leaves the interval out. Draws nothing
    where the curves share no x.
    """
    known = [dict(curve) for curve in curves]
    xs = sorted(set.intersection(*(set(curve) for curve in known))) if known else []
    smooth = [[float(np.mean([one[x] for x in xs[max(0, i + 1 - window) : i + 1]])) for i in range(len(xs))]
              for one in known]  # fmt: skip
    if not xs:
        return
    found = [estimate([curve[index] for curve in smooth]) for index in range(len(xs))]
    axes.plot(xs, [one.mean for one in found], color=colour, label=label, linewidth=1.6)
    ends = [(x, one.low, one.high) for x, one in zip(xs, found, strict=True) if one.low is not None]
    if ends and opacity:
        at, lows, highs = zip(*ends, strict=True)
        axes.fill_between(at, lows, highs, color=colour, alpha=opacity, linewidth=0)


def shares(axes: Axes, parts: Mapping[str, Sequence[float]], names: Sequence[str], colours: Sequence[str]) -> None:
    """Draws stacked horizontal bars, one for each name; `parts` maps a part to its value for each name."""
    left = np.zeros(len(names))
    for (part, values), shade in zip(parts.items(), colours, strict=True):
        axes.barh(range(len(names)), values, left=left, color=shade, label=part)
        left += np.asarray(values, float)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def titles(arms: Sequence[str]) -> list[str]:
    return [ARMS[arm].title for arm in arms]


def palette(count: int) -> list[str]:
    return [_PALETTE[index % len(_PALETTE)] for index in range(count)]
