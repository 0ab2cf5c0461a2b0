"""Draws the paper's pictures from records. Functions take the records of every arm by seed, and draw shares in %."""

import io
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cojax.signals import SIGNALS
from cojax.storage.files import replace_file
from .record import Record, cross_table
from .statistics import estimate
from .tables import TITLES

# Okabe and Ito's palette, which colour-blind people can distinguish.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C8C8C", "#000000")
_PALETTE_INDEX_BY_ARM = {"static": 6, "random": 1, "control": 0, "feedback": 3, "uniform": 2}
COLOUR_OF_KIND = {"forgetting": _PALETTE[4], "boundary": _PALETTE[0], "rare": _PALETTE[1]}
START_COLOUR = "#BBBBBB"
Curves = Sequence[Sequence[tuple[float, float]]]  # a curve of (x, y) for each seed
Arms = Mapping[str, Sequence[Record]]  # arm → its records, by seed


def make_figure(panel_count: int = 1, width: float = 6.4, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side. It has no window, so that it needs no display."""
    picture = Figure(figsize=(width, height), dpi=110, layout="constrained")
    panels = [picture.add_subplot(1, panel_count, panel_index + 1) for panel_index in range(panel_count)]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return picture, panels


def choose_colours(arms: Collection[str]) -> dict[str, str]:
    """Arm → its own colour, or the first that no other arm has; with too many arms, some share a colour."""
    own_colours = {arm: _PALETTE[_PALETTE_INDEX_BY_ARM[arm]] for arm in arms if arm in _PALETTE_INDEX_BY_ARM}
    free_colours = itertools.cycle(colour for colour in _PALETTE if colour not in own_colours.values())
    return {arm: own_colours.get(arm) or next(free_colours) for arm in arms}


def draw_band(axes: Axes, curves: Curves, colour: str, label: str, window: int = 1) -> None:
    """Draws the mean over seeds with its 95 % interval, at every x that all curves have.

    Each value is first averaged over the last `window` x. If the curves share no x, nothing is drawn.
    """
    curve_maps = [dict(curve) for curve in curves]
    xs = sorted(set.intersection(*(set(curve) for curve in curve_maps))) if curve_maps else []
    smooth_curves = [[float(np.mean([curve[x] for x in xs[max(0, i + 1 - window) : i + 1]])) for i in range(len(xs))]
              for curve in curve_maps]  # fmt: skip
    if not xs:
        return
    points = [estimate([curve[x_index] for curve in smooth_curves]) for x_index in range(len(xs))]
    axes.plot(xs, [row["mean"] for row in points if row["mean"] is not None], color=colour, label=label, linewidth=1.6)
    intervals = [(x, row["low"], row["high"]) for x, row in zip(xs, points, strict=True) if row["low"] is not None]
    if intervals:
        interval_xs, lows, highs = zip(*intervals, strict=True)
        axes.fill_between(interval_xs, lows, highs, color=colour, alpha=0.18, linewidth=0)


def _bands(axes: Axes, arms: Arms, make_curve: Callable[[Record], Any], window: int = 1) -> None:
    """Draws a band for each arm, in its colour; `make_curve` makes a record's curve."""
    colour_by_arm = choose_colours(arms)
    for arm, records in arms.items():
        draw_band(axes, [make_curve(record) for record in records], colour_by_arm[arm], TITLES[arm], window)


def _add_legend(axes: Axes, **options: Any) -> None:
    axes.legend(fontsize=8, frameon=False, **options)


def draw_shares(axes: Axes, parts: Mapping[str, Sequence[float]], names: Sequence[str], colours: Sequence[str]) -> None:
    """Draws stacked horizontal bars, one for each name; `parts` maps a part to its value for each name."""
    starts = np.zeros(len(names))
    for (part_name, values), colour in zip(parts.items(), colours, strict=True):
        axes.barh(range(len(names)), values, left=starts, color=colour, label=part_name)
        starts += np.asarray(values, float)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    _add_legend(axes, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


_SMOOTHING = 5  # steps that a noisy curve is averaged over
_MAX_LABEL_CHARS = 50  # characters of a label's line


def draw_differences(differences: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Paired differences of held-out success with their 95 % intervals, and a dot for each seed.

    `differences` are those of a summary. Returns None if no run was evaluated.
    """
    known_differences = [pair for pair in differences if pair["mean"] is not None]
    if not known_differences:
        return None
    picture, (axes,) = make_figure(width=8.2, height=1.2 + 0.4 * len(known_differences))
    for row, pair in enumerate(known_differences):
        seed_values = [100 * value for value in pair["by_seed"].values()]
        axes.scatter(seed_values, [row + 0.22] * len(seed_values), s=14, color="#888888", linewidth=0)
        if pair["low"] is not None:
            axes.plot([100 * pair["low"], 100 * pair["high"]], [row, row], color=_PALETTE[0], linewidth=2)
        axes.scatter([100 * pair["mean"]], [row], s=36, color=_PALETTE[0], zorder=3)
    axes.axvline(0, color="black", linewidth=0.8)
    labels = [fill(f"{TITLES[pair['one']]} − {TITLES[pair['other']]}", _MAX_LABEL_CHARS) for pair in known_differences]
    axes.set_yticks(range(len(known_differences)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="difference in held-out success, points")
    return picture


def draw_success(arms: Arms) -> Figure | None:
    """Held-out success of each arm, from the start's to the final one with its 95 % interval, and a dot for each seed.

    The start is that of the first arm. Returns None if no run was evaluated.
    """
    starts = estimate([record["zero_shot"] for record in next(iter(arms.values()))])
    finals = {arm: estimate([record["final"] for record in records]) for arm, records in arms.items()}
    if None in (starts["mean"], *(final["mean"] for final in finals.values())):
        return None
    picture, (axes,) = make_figure(width=8.2, height=1.2 + 0.4 * len(arms))
    colour_by_arm = choose_colours(arms)
    axes.axvline(100 * starts["mean"], color=START_COLOUR, linewidth=6, zorder=0, label="start")
    for row, (arm, final) in enumerate(finals.items()):
        colour = colour_by_arm[arm]
        axes.plot([100 * starts["mean"], 100 * final["mean"]], [row, row], color=colour, linewidth=1, alpha=0.5)
        if final["low"] is not None:
            axes.plot([100 * final["low"], 100 * final["high"]], [row, row], color=colour, linewidth=3)
        axes.scatter([100 * final["mean"]], [row], s=36, color=colour, zorder=3)
        seed_values = [100 * record["final"] for record in arms[arm]]
        axes.scatter(seed_values, [row + 0.22] * len(seed_values), s=10, color="#888888", linewidth=0)
    axes.set_yticks(range(len(arms)), [fill(TITLES[arm], _MAX_LABEL_CHARS) for arm in arms], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="held-out success, %")
    _add_legend(axes)
    return picture


def draw_live_groups(arms: Arms) -> Figure:
    """Live groups over steps: groups whose rewards all agree have no policy gradient."""
    picture, (axes,) = make_figure()
    _bands(axes, arms, lambda record: _curve(record, [100 * v for v in record["curves"]["live_groups"]]), _SMOOTHING)
    axes.set(xlabel="step", ylabel="live groups, %", ylim=(0, None))
    _add_legend(axes)
    return picture


def draw_signals(arms: Arms) -> Figure | None:
    """Signals detected over steps, by kind, for the arms that signals guide."""
    guided_arms = _find_guided_arms(arms)
    if not guided_arms:
        return None
    picture, panels = make_figure(len(guided_arms), 1.6 + 4.2 * len(guided_arms))
    for axes, arm in zip(panels, guided_arms, strict=True):
        for kind in SIGNALS:
            curves = [_curve(record, record["signals"][kind]) for record in arms[arm]]
            draw_band(axes, curves, COLOUR_OF_KIND[kind], kind, _SMOOTHING)
        axes.set_title(TITLES[arm], fontsize=9)
        axes.set(xlabel="step", ylabel="signals a step", ylim=(0, None))
    _add_legend(panels[0])
    return picture


def _curve(record: Record, values: Sequence[float]) -> list[tuple[int, float]]:
    return list(zip(record["curves"]["step"], values, strict=True))


def draw_task_distribution(arms: Arms) -> Figure:
    """Every task of the first seed in the plane of the development tasks; tasks added later are darker."""
    picture, panels = make_figure(len(arms), 1.4 + 2.7 * len(arms), 3.4)
    first_record = next(iter(arms.values()))[0]
    points_by_arm = {arm: [np.asarray(records[0]["tasks"][column]) for column in ("x", "y", "step")]
              for arm, records in arms.items()}  # fmt: skip
    last = max(record["steps"] for records in arms.values() for record in records)
    axis_limits = []  # one scale for all panels
    for points in (np.concatenate([points[axis] for points in points_by_arm.values()]) for axis in (0, 1)):
        margin = 0.05 * float(points.max() - points.min()) or 1.0
        axis_limits.append((float(points.min()) - margin, float(points.max()) + margin))
    for axes, (arm, (x, y, steps)) in zip(panels, points_by_arm.items(), strict=True):
        axes.scatter(x[steps == 0], y[steps == 0], s=7, color=START_COLOUR, linewidth=0)
        later = steps > 0
        dots = axes.scatter(x[later], y[later], s=7, c=steps[later], cmap="viridis_r", vmin=0, vmax=last, linewidth=0)
        axes.set_title(f"{TITLES[arm]}\n{len(x)} tasks", fontsize=8)
        axes.set(xticks=[], yticks=[], xlim=axis_limits[0], ylim=axis_limits[1])
    picture.colorbar(dots, ax=panels, label="step that added the task; D_0 grey", shrink=0.8)
    picture.supxlabel(
        f"first two principal components of the development tasks' queries; seed {first_record['seed']}", fontsize=8
    )
    return picture


def draw_conversion(arms: Arms) -> Figure | None:
    """Signal-to-task conversion (expeditions that led to a task) and pass rate (drafts that became a task)."""
    if not any(record["evolutions"] for records in arms.values() for record in records):
        return None
    picture, (yield_axes, pass_axes) = make_figure(2, 8.6)
    _bands(yield_axes, arms, lambda record: _compute_rates(record, "fruitful", "expeditions"))
    _bands(pass_axes, arms, lambda record: _compute_rates(record, "tasks", "drafts"))
    yield_axes.set(xlabel="step", ylabel="expeditions that brought a task, %", ylim=(0, 105))
    pass_axes.set(xlabel="step", ylabel="drafts that became a task, %", ylim=(0, 105))
    _add_legend(yield_axes)
    return picture


def draw_signal_shares(arms: Arms) -> Figure | None:
    """Shares of the kinds of signal among detected signals, and among the tasks made from them."""
    guided_arms = _find_guided_arms(arms)
    if not guided_arms:
        return None
    labels, shares_by_kind = [], {str(kind): list[float]() for kind in SIGNALS}
    for arm in guided_arms:
        signal_counts = Counter({kind: sum(sum(record["signals"][kind]) for record in arms[arm]) for kind in SIGNALS})
        task_counts = Counter(origin for record in arms[arm] for origin in record["tasks"]["origin"])
        for title, counts in (("signals", signal_counts), ("tasks", task_counts)):
            labels.append(f"{TITLES[arm]}: {title}" if len(guided_arms) > 1 else title)
            total = sum(counts[kind] for kind in SIGNALS) or 1
            for kind in SIGNALS:
                shares_by_kind[kind].append(100 * counts[kind] / total)
    picture, (axes,) = make_figure(height=1.2 + 0.5 * len(labels))
    draw_shares(axes, shares_by_kind, labels, [COLOUR_OF_KIND[kind] for kind in shares_by_kind])
    axes.set(xlabel="share, %")
    return picture


def draw_interaction_lengths(arms: Arms) -> Figure:
    """Actions of the reference solution, of the tasks at the start and of added tasks."""
    longest = max(max(record["tasks"]["turns"], default=1) for records in arms.values() for record in records)
    return _draw_histogram(arms, "turns", list(np.arange(0.5, longest + 1)), "actions of the reference solution")


def draw_cross_table(arms: Arms) -> Figure:
    """Shares of held-out tasks whose solution was kept, recovered or lost, and of those never solved."""
    tables_by_arm = {arm: [cross_table(record["held_out"]) for record in records] for arm, records in arms.items()}
    task_count_by_arm = {
        arm: sum(sum(table.values()) for table in arm_tables) or 1 for arm, arm_tables in tables_by_arm.items()
    }
    shares_by_part = {
        outcome: [100 * sum(table[outcome] for table in tables_by_arm[arm]) / task_count_by_arm[arm] for arm in arms]
        for outcome in ("kept", "recovered", "lost", "never")
    }
    picture, (axes,) = make_figure(height=1.4 + 0.4 * len(arms))
    draw_shares(axes, shares_by_part, [TITLES[arm] for arm in arms], ["#009E73", "#56B4E9", "#D55E00", "#DDDDDD"])
    axes.set(xlabel="held-out tasks, %")
    return picture


def draw_time(arms: Arms) -> Figure:
    """Shares of a run's time, without the warm start."""
    seconds_by_run = [record["seconds"] for records in arms.values() for record in records]
    part_names = [part for part in seconds_by_run[0] if part not in ("total", "warm_start")]
    parts = {
        part: [100 * float(np.mean([r["seconds"][part] / r["seconds"]["total"] for r in arms[arm]])) for arm in arms]
        for part in part_names
    }
    picture, (axes,) = make_figure(height=1.8 + 0.4 * len(arms))
    draw_shares(axes, parts, [TITLES[arm] for arm in arms], [_PALETTE[i % len(_PALETTE)] for i in range(len(parts))])
    axes.set(xlabel="time, %")
    return picture


FIGURES: Mapping[str, Callable[[Arms], Figure | None]] = {
    "success": draw_success,
    "signals": draw_signals,
    "task-distribution": draw_task_distribution,
    "conversion": draw_conversion,
    "signal-shares": draw_signal_shares,
    # Similarity of an added task's wording to the nearest evaluation task, with D_0 for comparison.
    "similarity": lambda arms: _draw_histogram(
        arms, "similarity", list(np.linspace(0, 1, 26)), "greatest cosine to an evaluation task"
    ),
    "interaction-lengths": draw_interaction_lengths,
    "cross-table": draw_cross_table,
    "time": draw_time,
    "live-groups": draw_live_groups,
}


def draw_all(arms: Arms, folder: Path, differences: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Writes every picture for which there is data and returns their names; `differences` are those of the summary.

    Raises StorageError if writing fails.
    """
    pictures = {"differences": draw_differences(differences), **{name: draw(arms) for name, draw in FIGURES.items()}}
    picture_by_name = {name: picture for name, picture in pictures.items() if picture is not None}
    for figure_name, picture in picture_by_name.items():
        png_buffer = io.BytesIO()
        picture.savefig(png_buffer, format="png", metadata={"Software": None})
        replace_file(folder / f"{figure_name}.png", png_buffer.getvalue())
    return list(picture_by_name)


def _find_guided_arms(arms: Arms) -> list[str]:
    """The arms with tasks made from signals."""
    kinds = set(SIGNALS)
    return [arm for arm, records in arms.items() if any(kinds & set(record["tasks"]["origin"]) for record in records)]


def _compute_rates(record: Record, part_key: str, whole_key: str) -> list[tuple[float, float]]:
    counts_by_step: dict[int, list[int]] = {}
    for evolution in record["evolutions"]:
        counts = counts_by_step.setdefault(evolution["step"], [0, 0])
        counts[0] += evolution[part_key]
        counts[1] += evolution[whole_key]
    return [(step, 100 * count / total) for step, (count, total) in sorted(counts_by_step.items()) if total]


def _draw_histogram(arms: Arms, column: str, bins: Sequence[float], label: str) -> Figure:
    picture, (axes,) = make_figure()

    def draw_tasks(records: Iterable[Record], are_new: bool, colour: str, label: str) -> None:
        pools = [record["tasks"] for record in records]
        values = [
            v
            for task_table in pools
            for v, s in zip(task_table[column], task_table["step"], strict=True)
            if bool(s) is are_new
        ]
        if values or not are_new:
            weights = np.full(len(values), 100 / max(1, len(values)))
            style: Literal["step", "stepfilled"] = "step" if are_new else "stepfilled"
            axes.hist(values, bins, weights=weights, histtype=style, color=colour, label=label, linewidth=1.5)

    draw_tasks(itertools.chain(*arms.values()), False, START_COLOUR, "D_0")
    colour_by_arm = choose_colours(arms)
    for arm, records in arms.items():
        draw_tasks(records, True, colour_by_arm[arm], f"added by {TITLES[arm]}")
    axes.set(xlabel=label, ylabel="tasks, %")
    _add_legend(axes)
    return picture
