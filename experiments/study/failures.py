"""What the failures of a run's agents were like, and what was learned from them: for arms with preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Examples of preference learning in the records of a step, with their titles.
_EXAMPLES: Mapping[str, str] = {
    "own": "expert, own failure",
    "other": "expert, the other's failure",
    "failures": "two failures",
    "experts": "experts imitated",
    "successes": "own successes imitated",
}
# Shares of an agent's failures: with a partial reward that makes them hard negatives, with different actions, with
# different end states.
_SHARES = ("hard", "distinct", "ends")
FAILURES_HEAD = ("arm", "agent", "failures", "hard negatives", "different actions", "different ends", "distance")
EXAMPLES_HEAD = ("arm", *_EXAMPLES.values())


def failures_of(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What metrics.jsonl says of a run's agents; {} for a run that learned from no preferences.

    `examples` are counts over all steps. For each agent `failures` is their share of its episodes, and `hard`,
    `distinct` and `ends` are shares of its failures (cojax/preference/measures.py). `distance` is that of the second
    agent to the target (nats a token) at the last step that knows it.
    """
    examples: Counter[str] = Counter()
    totals: dict[str, Counter[str]] = {}
    distance: dict[str, float] = {}
    for row in metrics:
        for agent, found in row.get("preference", {}).items():
            if agent == "examples":
                examples.update(found)
                continue
            total, failed = totals.setdefault(agent, Counter()), found["failures"]
            total.update(episodes=found["episodes"], failures=failed, hard=found["hard"])
            for name in ("distinct", "ends"):
                total[name] += found.get(name, 0.0) * failed
            if found.get("distance") is not None:
                distance[agent] = found["distance"]
    agents = {
        agent: {
            "failures": _share(total["failures"], total["episodes"]),
            **{name: _share(total[name], total["failures"]) for name in _SHARES},
            **({"distance": distance[agent]} if agent in distance else {}),
        }
        for agent, total in totals.items()
    }
    return {"examples": dict(examples), "agents": agents} if agents or examples else {}


def mean_failures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over those of an arm's records that tell of failures, with their number; {} if none does."""
    known = [record["failures"] for record in records if record.get("failures")]
    if not known:
        return {}
    names = [name for name in _EXAMPLES if any(name in one["examples"] for one in known)]
    agents = [agent for agent in ("target", "second") if all(agent in one["agents"] for one in known)]
    return {
        "records": len(known),
        "examples": {name: sum(one["examples"].get(name, 0) for one in known) / len(known) for name in names},
        "agents": {agent: _means([one["agents"][agent] for one in known]) for agent in agents},
    }


def failure_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm and agent: failures among its episodes, shares of its failures, its distance to the target."""
    return [
        (
            arm["title"],
            agent,
            *("–" if one.get(name) is None else f"{100 * one[name]:.0f} %" for name in ("failures", *_SHARES)),
            "–" if one.get("distance") is None else f"{one['distance']:.2f}",
        )
        for arm in arms
        for agent, one in arm.get("failures", {}).get("agents", {}).items()
    ]


def example_rows(arms: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """For each arm: how many examples of each kind were learned from."""
    return [
        (arm["title"], *(f"{found['examples'][name]:,.0f}" if name in found["examples"] else "–" for name in _EXAMPLES))
        for arm in arms
        if (found := arm.get("failures"))
    ]


def _share(count: float, of: float) -> float | None:
    return round(count / of, 6) if of else None


def _means(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Means of what all of them know."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [value for row in rows if (value := row.get(name)) is not None]
        found[name] = sum(values) / len(values) if len(values) == len(rows) else None
    return found
