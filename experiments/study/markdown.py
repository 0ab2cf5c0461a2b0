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
    half = "" if found["low"] is None else f" ± {100 * (found['high'] - found['mean']):.1f}"
    return percent(found["mean"]) + half


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash where it is not known."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def points(value: float | None) -> str:
    """A difference of shares in points, with its sign."""
    return "–" if value is None else f"{100 * value:+.1f}"


def _told(value: float | None, form: str) -> str:
    """The value in this form, such as ".1f"; a dash where it is not known."""
    return "–" if value is None else format(value, form)


def _by_arm(head: Sequence[str], arms: Iterable[Mapping[str, Any]], rows: Sequence[Sequence[str]]) -> str:
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
        *_budgets(summary),
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


def _budgets(summary: Mapping[str, Any]) -> list[str]:
    arms = {arm["arm"]: arm for arm in summary["arms"]}
    reference = arms.get(summary["reference"])

    def compared(arm: Mapping[str, Any], name: str) -> str:
        value = arm["budget"].get(name, 0)
        against = reference["budget"].get(name, 0) if reference and reference is not arm else 0
        return f"{value:,.0f}" + (f" ({100 * (value / against - 1):+.0f} %)" if against else "")

    rows = [(title, *(compared(arm, name) for arm in arms.values())) for name, title in _BUDGETS.items()]
    rows.append(("seconds on one core", *(f"{arm['seconds']:,.0f}" for arm in arms.values())))
    rows.append(("of them evolutions", *(f"{100 * arm['feedback_share']:.1f} %" for arm in arms.values())))
    if any(arm.get("failures") for arm in arms.values()):
        gains = {name: 100 * arm["gain"]["mean"] for name, arm in arms.items()}
        for title, unit, cost in (
            ("points gained per 1,000 episodes", 1000, {name: arm["budget"]["episodes"] for name, arm in arms.items()}),
            ("points gained per minute on one core", 60, {name: arm["seconds"] for name, arm in arms.items()}),
        ):  # a dash where an arm cost nothing
            rates = [unit * gain / cost[name] if cost[name] else None for name, gain in gains.items()]
            rows.append((title, *(_told(rate, ".2f") for rate in rates)))
    compared_with = f"; in brackets compared with {reference['title']}." if reference else "."
    return ["## What each arm was given", "Means over seeds" + compared_with, _by_arm(("",), arms.values(), rows)]


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
            *(_told(value, ".2f" if name == "turns" else ".3f") for name, value in arm["quality"].items()),
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
    arms = summary["arms"]
    rows = [
        (
            arm["title"],
            origin,
            f"{one['groups']:,.0f}",
            f"{one['live']:,.0f}",
            f"{100 * one['live'] / one['groups']:.0f} %" if one["groups"] else "–",
            f"{one['actions']:,.0f}",
            f"{one['actions'] / one['live']:.1f}" if one["live"] else "–",
            _told(one.get("solved"), ".1f"),
            _told(one.get("norm"), ".3f"),
        )
        for arm in arms
        for origin, one in arm.get("origins", {}).items()
    ]
    if not rows:
        return []
    head = (
        "arm", "origin", "groups", "live", "share", "explorer's actions", "a live group", "tools first solved",
        "norm of its steps",
    )  # fmt: skip
    sections = [
        "## What tasks were worth, by origin\n\nMeans over seeds. A group is live if its episodes differ in reward: "
        "only then has it a policy gradient. Groups are those of training, and actions those of its expeditions. A "
        "tool is first solved by the origin whose task was the first one solved that calls it. The norm is that of "
        "whole updates, weighted by the origin's live groups in each. – is not known.",
        markdown_table(head, rows),
    ]
    predicted = [
        (arm["title"], name, _told(one["rho"], "+.2f"), f"{one['runs']}", f"{one['tasks']:,.0f}")
        for arm in arms
        for name, one in arm.get("predicted", {}).items()
    ]
    if predicted:
        sections += [
            "Success at a task's first visit, as it was predicted of its draft and as it came (Spearman, mean of "
            "runs):",
            markdown_table(("arm", "predicted by", "rank correlation", "runs", "tasks"), predicted),
        ]
    return sections


def _failures(summary: Mapping[str, Any]) -> list[str]:
    """What the agents' failures were like, where arms learn from preferences: shares of an agent's episodes and of its
    failures, its distance to the target, and how many examples of each kind were learned from."""
    known = [(arm["title"], arm["failures"]) for arm in summary["arms"] if arm.get("failures")]
    rows = [
        (
            title,
            agent,
            *("–" if one.get(name) is None else f"{100 * one[name]:.0f} %" for name in ("failures", *FAILURE_SHARES)),
            _told(one.get("distance"), ".2f"),
        )
        for title, found in known
        for agent, one in found["agents"].items()
    ]
    if not rows:
        return []
    most, seeds = max(found["records"] for _, found in known), len(summary["seeds"])
    among = "" if most == seeds else f" that have it in their records, {most} of {seeds}"
    examples = [(title, *(_told(found["examples"].get(name), ",.0f") for name in EXAMPLES)) for title, found in known]
    return [
        f"## What failures were like\n\nMeans over seeds{among}. A hard negative is a failure with a partial reward of "
        "`preference.hard` or more; distance is the mean of log π_second − log π_target on the second agent's tokens, "
        "at the end, in nats.",
        markdown_table(
            ("arm", "agent", "failures", "hard negatives", "different actions", "different ends", "distance"), rows
        ),
        "Pairs and examples that were learned from:",
        markdown_table(("arm", *EXAMPLES.values()), examples),
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
