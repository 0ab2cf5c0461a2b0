"""NAME.json → NAME.md: the page of a table, with success in per cent and differences in points."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cojax.registry import shortened
from .record import FAILURE_SHARES
from .summary import EXAMPLES, LONG


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: the head, and rows of as many cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(found: Mapping[str, Any]) -> str:
    """A mean share (keys mean, low, high) in per cent, with half the width of its interval where it has one."""
    if found["mean"] is None:
        return "–"
    mean = f"{100 * found['mean']:.1f}"
    return mean if found["low"] is None else f"{mean} ± {100 * (found['high'] - found['mean']):.1f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash where it is not known."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def points(value: float | None) -> str:
    """A difference of shares in points, with its sign."""
    return "–" if value is None else f"{100 * value:+.1f}"


def _by_arm(head: Sequence[str], arms: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[str]]) -> str:
    """A table whose last columns are the arms."""
    return markdown_table((*head, *(arm["title"] for arm in arms)), rows)


def _titles(summary: Mapping[str, Any]) -> dict[str, str]:
    return {arm["arm"]: arm["title"] for arm in summary["arms"]}


# Budgets in the order of the table, with their titles.
_BUDGETS: Mapping[str, str] = {
    "episodes": "episodes of training and probes",
    "turns": "their environment steps",
    "tokens_sampled": "tokens sampled",
    "tokens_trained": "tokens trained",
    "tasks_added": "tasks added",
    "explorer_actions": "explorer's actions",
    "drafts": "drafts examined",
    "evaluation_episodes": "episodes of the final evaluation",
}

_TOOL = "A task counts for the least popular tool of its solution. Tools count alike, whatever their number of tasks."
_WEAKEST = (
    f"{_TOOL} The tenth holds the tools of the lowest success before training, and of equal ones the least popular. "
    "It is the same for all arms of a seed."
)
_WORST = f"{_TOOL} The tenth is told for each run by itself, after training, from the same held-out tasks."
_LONG = f"Held-out tasks of {LONG} and more actions, finish counted."

_WORTH_HEAD = (
    "arm", "origin", "groups", "live", "share", "explorer's actions", "a live group", "tools first solved",
    "norm of its steps",
)  # fmt: skip
_PREDICTED_HEAD = ("arm", "predicted by", "rank correlation", "runs", "tasks")
_FAILURES_HEAD = ("arm", "agent", "failures", "hard negatives", "different actions", "different ends", "distance")
_EXAMPLES_HEAD = ("arm", *EXAMPLES.values())


def render_page(summary: Mapping[str, Any], figures: Sequence[str] = ()) -> str:
    """The text of the page; `figures` are names of pictures in the folder NAME/ beside it."""
    parts = [
        f"# {summary['title']}",
        _heading(summary),
        *_warnings(summary),
        _success(summary),
        _differences(summary, summary["differences"]),
        *_part(summary, "weakest_tenth", "The weakest tenth of the tools", _WEAKEST),
        *_part(summary, "worst_tenth", "The worst tenth of the tools", _WORST),
        *_part(summary, "long_tasks", "Long tasks", _LONG),
        "## What each arm was given\n\n" + _compared_with(summary),
        _budgets(summary),
        *_learning(summary),
        _cross(summary),
        *_breakdowns(summary),
        _quality(summary),
        *_by_tool(summary),
        *_worth(summary),
        *_failures(summary),
        *_refused(summary),
        _made_with(summary["made_with"]),
        *(f"![{name.replace('-', ' ')}]({summary['name']}/{name}.png)" for name in figures),
    ]
    return "\n\n".join(parts) + "\n"


def _heading(summary: Mapping[str, Any]) -> str:
    seeds = summary["seeds"]
    steps = " or ".join(map(str, summary["steps"]))
    settings = ", ".join(f"`{name}={value}`" for name, value in summary["common_settings"].items())
    tried = any(arm["settings"].get("evaluation.trials", 1) > 1 for arm in summary["arms"])
    again = " Further trials of a task are sampled as in training, once the first is known to have failed." * tried
    return (
        f"{len(seeds)} seeds ({', '.join(map(str, seeds))}), {steps} steps, success on {summary['tasks']} tasks of the "
        f"split `{summary['split']}`, greedy.{again} ± and brackets are 95 % intervals over seeds (Student); "
        f"differences are paired by seed. All runs: `experiments/desk.py` with {settings}.\n\n"
        f"Made by the code of commits {_listed(made_by(summary))}."
    )


def made_by(summary: Mapping[str, Any]) -> list[str]:
    """The commits that made the runs, shortened."""
    return [f"`{shortened(commit)}`" for commit in summary["made_with"]["commits"]]


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    if summary["incomplete_seeds"]:
        lines.append(f"**Not finished in every arm, and left out: seeds {_listed(summary['incomplete_seeds'])}.**")
    if several := summary["seeds_with_several_zero_shots"]:
        lines.append(
            f"**Arms of seeds {_listed(several)} began at different policies: their runs are not comparable.**"
        )
    if summary["split"] == "dev":
        lines.append("**A development run: these tasks chose the settings.**")
    return lines


def _success(summary: Mapping[str, Any]) -> str:
    rows = [("zero-shot", interval(summary["zero_shot"]), "", "")]
    for arm in summary["arms"]:
        gain = points(arm["gain"]["mean"])
        live = "" if arm["live_groups"] is None else f"{100 * arm['live_groups']:.0f} %"
        rows.append((arm["title"], interval(arm["final"]), gain, live))
    return markdown_table(("arm", "success, %", "gain, points", "live groups"), rows)


def _part(summary: Mapping[str, Any], name: str, heading: str, explained: str) -> list[str]:
    """Success over some of the held-out tasks, where the table has them."""
    if not (found := summary.get(name)):
        return []
    titles = _titles(summary)
    rows = [(titles[arm], interval(one)) for arm, one in found["arms"].items()]
    return [
        f"## {heading}\n\n{explained}",
        markdown_table(("arm", "success, %"), rows),
        _differences(summary, found["differences"]),
    ]


def _differences(summary: Mapping[str, Any], differences: Sequence[Mapping[str, Any]]) -> str:
    titles = _titles(summary)
    rows = [
        (
            f"{titles[row['one']]} − {titles[row['other']]}",
            points(row["mean"]),
            "" if row["low"] is None else f"[{points(row['low'])}, {points(row['high'])}]",
            f"{row['seeds_above_0']} of {row['count']}",
        )
        for row in differences
    ]
    return markdown_table(("paired difference", "points", "95 % interval", "seeds above 0"), rows)


def _compared_with(summary: Mapping[str, Any]) -> str:
    reference = _titles(summary).get(summary["reference"])
    return "Means over seeds." if reference is None else f"Means over seeds; in brackets compared with {reference}."


def _budgets(summary: Mapping[str, Any]) -> str:
    arms = {arm["arm"]: arm for arm in summary["arms"]}
    reference = arms.get(summary["reference"])
    rows = []
    for name, title in _BUDGETS.items():
        cells = []
        for arm in arms.values():
            value = arm["budget"].get(name, 0)
            against = reference["budget"].get(name, 0) if reference and reference is not arm else 0
            cells.append(f"{value:,.0f}" + (f" ({100 * (value / against - 1):+.0f} %)" if against else ""))
        rows.append((title, *cells))
    rows.append(("seconds on one core", *(f"{arm['seconds']:,.0f}" for arm in arms.values())))
    rows.append(("of them evolutions", *(f"{100 * arm['feedback_share']:.1f} %" for arm in arms.values())))
    if any(arm.get("failures") for arm in arms.values()):
        rows += _gains_by_cost(list(arms.values()))
    return _by_arm(("",), list(arms.values()), rows)


def _gains_by_cost(arms: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The mean gain of each arm over its mean cost, in episodes and in time; a dash where it cost nothing."""
    costs = {
        "points gained per 1,000 episodes": [(1000, arm["budget"]["episodes"]) for arm in arms],
        "points gained per minute on one core": [(60, arm["seconds"]) for arm in arms],
    }
    gains = [100 * arm["gain"]["mean"] for arm in arms]
    return [
        (title, *(f"{unit * gain / cost:.2f}" if cost else "–" for gain, (unit, cost) in zip(gains, of, strict=True)))
        for title, of in costs.items()
    ]


def _learning(summary: Mapping[str, Any]) -> list[str]:
    """Facts about the updates that the records of every arm have."""
    arms = summary["arms"]
    facts = (
        ("updates", "updates", "{:,.0f}"),
        ("clip_fraction", "learned tokens clipped", "{:.1%}"),
        ("grad_norm", "norm of the gradient", "{:.3f}"),
    )
    rows = [
        (title, *(cell.format(arm["learning"][name]) for arm in arms))
        for name, title, cell in facts
        if all(name in arm.get("learning", {}) for arm in arms)
    ]
    return [_by_arm(("",), arms, rows)] if rows else []


def _cross(summary: Mapping[str, Any]) -> str:
    names = ("kept", "recovered", "lost", "never")
    rows = [(arm["title"], *(f"{arm['cross_table'][name]:.0f}" for name in names)) for arm in summary["arms"]]
    return "## Held-out tasks, before → after\n\n" + markdown_table(("arm", *names), rows)


_KINDS = {
    "actions": "actions of the solution",
    "tool": "least popular tool of the solution",
    "popularity": "tools by popularity, the most popular tenth first",
}
# A table by tool is left out of the page where it has more rows; NAME.json has it.
_MOST_ROWS = 60


def _breakdowns(summary: Mapping[str, Any]) -> list[str]:
    arms = summary["arms"]
    sections = []
    for name, found in summary["breakdowns"].items():
        if len(found) > _MOST_ROWS:
            continue
        rows = [
            (row["kind"], str(row["tasks"]), *(f"{100 * value:.0f}" for value in
             (row["zero_shot"], *(row["arms"][arm["arm"]] for arm in arms))))
            for row in found
        ]  # fmt: skip
        sections.append(_by_arm((_KINDS[name], "tasks", "zero-shot"), arms, rows))
    return ["## Held-out success by kind of task, %", *sections] if sections else []


def _quality(summary: Mapping[str, Any]) -> str:
    head = ("arm", "SR@k", "ED_rel", "similarity to evaluation", "actions of a solution", "mastered before, %")
    rows = [
        (
            arm["title"],
            *(
                "–" if value is None else f"{value:.{2 if name == 'turns' else 3}f}"
                for name, value in arm["quality"].items()
            ),
            "" if arm["mastered"] is None else f"{100 * arm['mastered']:.0f}",
        )
        for arm in summary["arms"]
    ]
    return (
        "## The task sets at the end\n\nSR@k: mean cosine of a query to its k nearest, lower is more diverse; ED_rel: "
        "relative energy distance to the evaluated queries, lower is closer; mean of the greatest cosine to any; "
        "zero-shot success on held-out tasks with the same least popular tool, averaged over the seeds, mean over the "
        "added tasks whose tool is in a held-out task."
        "\n\n" + markdown_table(head, rows)
    )


def _by_tool(summary: Mapping[str, Any]) -> list[str]:
    arms = summary["arms"]
    rows = [(tool, *(f"{counts[arm['arm']]:.1f}" for arm in arms)) for tool, counts in summary["tasks_by_tool"].items()]
    return [_by_arm((_KINDS["tool"],), arms, rows)] if 0 < len(rows) <= _MOST_ROWS else []


def _worth(summary: Mapping[str, Any]) -> list[str]:
    rows = _worth_rows(summary["arms"])
    head = (
        "## What tasks were worth, by origin\n\nMeans over seeds. A group is live if its episodes differ in reward: "
        "only then has it a policy gradient. Groups are those of training, and actions those of its expeditions. A "
        "tool is first solved by the origin whose task was the first one solved that calls it. The norm is that of "
        "whole updates, weighted by the origin's live groups in each. – is not known."
    )
    if not rows:
        return []
    predicted = _predicted_rows(summary["arms"])
    told = "Success at a task's first visit, as it was predicted of its draft and as it came (Spearman, mean of runs):"
    return [
        head,
        markdown_table(_WORTH_HEAD, rows),
        *([told, markdown_table(_PREDICTED_HEAD, predicted)] if predicted else []),
    ]


def _failures(summary: Mapping[str, Any]) -> list[str]:
    """What the agents' failures were like, where arms learn from preferences."""
    arms = summary["arms"]
    if not (rows := _failure_rows(arms)):
        return []
    most = max(arm["failures"]["records"] for arm in arms if "failures" in arm)
    seeds = len(summary["seeds"])
    among = "" if most == seeds else f" that have it in their records, {most} of {seeds}"
    head = (
        f"## What failures were like\n\nMeans over seeds{among}. A hard negative is a failure with a partial reward of "
        "`preference.hard` or more; distance is the mean of log π_second − log π_target on the second agent's tokens, "
        "at the end, in nats."
    )
    return [head, markdown_table(_FAILURES_HEAD, rows), "Pairs and examples that were learned from:",
            markdown_table(_EXAMPLES_HEAD, _example_rows(arms))]  # fmt: skip


def _worth_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm and origin: groups, live groups and their share, actions of the explorer, those a live group, tools
    first solved, the norm."""
    return [
        (
            arm["title"],
            origin,
            f"{one['groups']:,.0f}",
            f"{one['live']:,.0f}",
            f"{100 * one['live'] / one['groups']:.0f} %" if one["groups"] else "–",
            f"{one['actions']:,.0f}",
            f"{one['actions'] / one['live']:.1f}" if one["live"] else "–",
            "–" if one.get("solved") is None else f"{one['solved']:.1f}",
            "–" if one.get("norm") is None else f"{one['norm']:.3f}",
        )
        for arm in arms
        for origin, one in arm.get("origins", {}).items()
    ]


def _predicted_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm and predictor: the mean rank correlation, the runs that give one, and how many tasks a run has."""
    return [
        (
            arm["title"],
            name,
            "–" if one["rho"] is None else f"{one['rho']:+.2f}",
            f"{one['runs']}",
            f"{one['tasks']:,.0f}",
        )
        for arm in arms
        for name, one in arm.get("predicted", {}).items()
    ]


def _failure_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm and agent: failures among its episodes, shares of its failures, its distance to the target."""
    return [
        (
            arm["title"],
            agent,
            *("–" if one.get(name) is None else f"{100 * one[name]:.0f} %" for name in ("failures", *FAILURE_SHARES)),
            "–" if one.get("distance") is None else f"{one['distance']:.2f}",
        )
        for arm in arms
        for agent, one in arm.get("failures", {}).get("agents", {}).items()
    ]


def _example_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm: how many examples of each kind were learned from."""
    return [
        (arm["title"], *(f"{found['examples'][name]:,.0f}" if name in found["examples"] else "–" for name in EXAMPLES))
        for arm in arms
        if (found := arm.get("failures"))
    ]


def _refused(summary: Mapping[str, Any]) -> list[str]:
    arms = summary["arms"]
    reasons = list(dict.fromkeys(reason for arm in arms for reason in arm["refused"]))
    rows = [(reason, *(f"{arm['refused'].get(reason, 0.0):.1f}" for arm in arms)) for reason in reasons]
    head = "## Drafts that did not become tasks\n\nBy the beginning of the line of evidence that refused them."
    return [head, _by_arm(("",), arms, rows)] if rows else []


def _made_with(made: Mapping[str, Any]) -> str:
    versions = "; ".join(", ".join(f"{name} {value}" for name, value in one.items()) for one in made["versions"])
    counts = sorted({one.get("NPROC", "1") for one in made["threads"]})
    threads = " or ".join("one thread" if count == "1" else f"{count} threads" for count in counts)
    return (
        f"Made with {versions}; on {', '.join(made['processors'])}, one core and {threads} a run; "
        f"{made['core_hours']:.1f} core-hours."
    )


def _listed(things: Sequence[object]) -> str:
    return ", ".join(map(str, things))
