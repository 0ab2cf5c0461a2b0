"""What the evolutions and tasks of a run were worth: the forks to make, and the table of their records.

python -m experiments.worth runs/desk            # prints the commands of the forks, by what the run recorded
python -m experiments.worth results/forks        # prints the table of the repeats.json files that were copied there

It takes the evolutions after which development success rose most and least until the next one, and the ten tasks of
which most episodes are stored. Each is forked five times at the newest checkpoint up to the step at which it joined.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from cojax.command import CommandLineParser
from cojax.report.figures import find_evolution_step
from cojax.report.lineage import find_task_id
from cojax.report.run import Run, find_join_step, read_run
from cojax.storage.files import read_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the commands for a run, and the table for a folder of records; returns exit status 0."""
    parser = CommandLineParser("python -m experiments.worth", __doc__)
    parser.add_argument("folder", type=Path, help="a run, or a folder of records")
    folder = parser.parse_args(arguments).folder
    if not any(folder.glob("*.json")):
        parser.error(f"{folder} holds neither a run nor records; name the folder of a run")
    print(*(list_commands(read_run(folder)) if (folder / "config.json").exists() else list_rows(folder)), sep="\n")
    return 0


def list_commands(run: Run) -> Iterator[str]:
    """A command for each fork. Raises ValueError if the run keeps no checkpoint that is early enough."""
    steps = [int(path.parent.name) for path in run.folder.glob("checkpoints/*/host.json")]
    visits = Counter(find_task_id(episode) for step in run.episodes.list_steps() for episode in run.episodes.read(step))
    changes = [(step, f"evolution:{step}") for step in find_extremes(run)]
    changes += [(find_join_step(run.tasks[task]), f"task:{task}") for task, _ in visits.most_common(10)]
    for join_step, change in changes:
        at, place = max(step for step in steps if step <= join_step), f"runs/forks/{change.replace(':', '-')}"
        command = f"cojax fork {run.folder} --at={at} --without={change} --workdir={place}"
        yield f"{command} --controls=runs/forks/controls --repeats=5"


def find_extremes(run: Run) -> list[int]:
    """The steps of the evolutions after which development success rose most and least until the next one."""
    scores = {row["step"]: row["dev"]["success"] for row in run.metrics if row.get("dev")}
    steps = [find_evolution_step(row) for row in run.metrics if "evolution" in row]
    rises = {one: scores[two] - scores[one] for one, two in itertools.pairwise(steps) if scores.keys() >= {one, two}}
    return list(dict.fromkeys(choose(rises, key=rises.__getitem__) for choose in (max, min) if rises))


def list_rows(folder: Path) -> Iterator[str]:
    """A table in Markdown, in points of held-out success."""
    yield "| without | from step | repeats | without minus with | 95 % over repeats |\n|---|---|---|---|---|"
    for record in map(read_json, sorted(folder.glob("*.json"))):
        mean, low, high = (f"{100 * record[key]:+.1f}" for key in ("mean", "low", "high"))
        yield f"| {record['without']} | {record['step']} | {len(record['repeats'])} | {mean} | {low} to {high} |"


if __name__ == "__main__":
    sys.exit(main())
