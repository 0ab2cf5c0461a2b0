"""Proves, by the package's own evaluation, that every reference solution succeeds and that doing nothing does not."""

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
    """The complaints, a line each; none for a sound root. It adds the solutions' calls to the ground truth."""
    complaints = []
    # The first world of a process is slow, but the worlds of its children are not.
    with AppWorld(task_id=tasks[0], experiment_name="proof") as world:
        world.evaluate()
    for task in tasks:
        truth = root / "data" / "tasks" / task / "ground_truth"
        if all(test["label"] == "no_op_pass" for test in json.loads((truth / "test_data.json").read_text())):
            complaints.append(f"{task}: doing nothing succeeds")
        result = run_in_fork(functools.partial(_solve, task, json.loads((truth / "blocks.json").read_text())))
        if result["failures"]:
            complaints.append(f"{task}: the solution fails: {result['failures']}")
        _record(truth, result["calls"])
    shutil.rmtree(root / "experiments", ignore_errors=True)
    return complaints


def _solve(task: str, blocks: Sequence[str]) -> dict[str, Any]:
    """Plays the blocks in a new world; returns their calls and their failures."""
    world = AppWorld(task_id=task, experiment_name="proof")
    outputs = [world.execute(block) for block in blocks]
    failures = [text for text in outputs if text.startswith("Execution failed")]
    verdict = world.evaluate()
    failures += [failure["requirement"] for failure in verdict.failures]
    log = Path(world.output_logs_directory) / "api_calls.jsonl"
    return {"calls": [json.loads(line) for line in log.read_text().splitlines()], "failures": failures}


def _record(truth: Path, calls: Sequence[dict[str, Any]]) -> None:
    (truth / "api_calls.json").write_text(json.dumps(calls))
    metadata = json.loads((truth / "metadata.json").read_text())
    metadata["num_api_calls"] = len(calls)
    (truth / "metadata.json").write_text(json.dumps(metadata, indent=1))


def run_in_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Does the work in a forked child, as a world changes its process; returns the result."""
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
