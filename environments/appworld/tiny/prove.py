"""Every reference solution succeeds, by the package's own evaluation; doing nothing does not."""

import functools
import json
import os
import shutil
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from appworld.environment import AppWorld


def prove(root: Path, tasks: Sequence[str]) -> list[str]:
    """What is wrong, a line each; nothing for a sound root. Adds the calls that the solutions make to ground truth."""
    complaints = []
    # The first world of a process is slow, those of its children are not.
    with AppWorld(task_id=tasks[0], experiment_name="proof") as world:
        world.evaluate()
    for task in tasks:
        truth = root / "data" / "tasks" / task / "ground_truth"
        if all(test["label"] == "no_op_pass" for test in json.loads((truth / "test_data.json").read_text())):
            complaints.append(f"{task}: doing nothing succeeds")
        seen = forked(functools.partial(_solve, task, json.loads((truth / "blocks.json").read_text())))
        if seen["failures"]:
            complaints.append(f"{task}: the solution fails: {seen['failures']}")
        _record(truth, seen["calls"])
    shutil.rmtree(root / "experiments", ignore_errors=True)
    return complaints


def _solve(task: str, blocks: Sequence[str]) -> dict[str, Any]:
    """Plays the blocks in a world of their own; the calls made, and what was found wrong."""
    world = AppWorld(task_id=task, experiment_name="proof")
    said = [world.execute(block) for block in blocks]
    failures = [text for text in said if text.startswith("Execution failed")]
    verdict = world.evaluate()
    failures += [failure["requirement"] for failure in verdict.failures]
    logged = Path(world.output_logs_directory) / "api_calls.jsonl"
    return {"calls": [json.loads(line) for line in logged.read_text().splitlines()], "failures": failures}


def _record(truth: Path, calls: Sequence[dict[str, Any]]) -> None:
    (truth / "api_calls.json").write_text(json.dumps(calls))
    metadata = json.loads((truth / "metadata.json").read_text())
    metadata["num_api_calls"] = len(calls)
    (truth / "metadata.json").write_text(json.dumps(metadata, indent=1))


def forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of the work, done in a forked child: a world changes its process, so there is one world a process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return json.loads(result) if result else {"failures": ["no world could be opened; see above"], "calls": []}
