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


def prove(root: Path, task_ids: Sequence[str]) -> list[str]:
    """Returns complaints, a line each; none for a sound root. It adds the solutions' calls to the ground truth."""
    complaints = []
    # The first world of a process is slow, but the worlds of its children are not.
    with AppWorld(task_id=task_ids[0], experiment_name="proof") as world:
        world.evaluate()
    for task_id in task_ids:
        truth_folder = root / "data" / "tasks" / task_id / "ground_truth"
        if all(test["label"] == "no_op_pass" for test in json.loads((truth_folder / "test_data.json").read_text())):
            complaints.append(f"{task_id}: doing nothing succeeds")
        replay = run_in_fork(functools.partial(_solve, task_id, json.loads((truth_folder / "blocks.json").read_text())))
        if replay["failures"]:
            complaints.append(f"{task_id}: the solution fails: {replay['failures']}")
        _record_calls(truth_folder, replay["calls"])
    shutil.rmtree(root / "experiments", ignore_errors=True)
    return complaints


def _solve(task_id: str, blocks: Sequence[str]) -> dict[str, Any]:
    """Plays the blocks in a new world; returns their calls and their failures."""
    world = AppWorld(task_id=task_id, experiment_name="proof")
    outputs = [world.execute(block) for block in blocks]
    failure_texts = [output for output in outputs if output.startswith("Execution failed")]
    verdict = world.evaluate()
    failure_texts += [failure["requirement"] for failure in verdict.failures]
    log_path = Path(world.output_logs_directory) / "api_calls.jsonl"
    return {"calls": [json.loads(line) for line in log_path.read_text().splitlines()], "failures": failure_texts}


def _record_calls(truth_folder: Path, calls: Sequence[dict[str, Any]]) -> None:
    (truth_folder / "api_calls.json").write_text(json.dumps(calls))
    metadata = json.loads((truth_folder / "metadata.json").read_text())
    metadata["num_api_calls"] = len(calls)
    (truth_folder / "metadata.json").write_text(json.dumps(metadata, indent=1))


def run_in_fork(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Computes in a forked child, because a world changes its process; returns the result."""
    read_fd, write_fd = os.pipe()
    child_pid = os.fork()
    if not child_pid:
        try:
            with os.fdopen(write_fd, "w") as pipe:
                json.dump(compute(), pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        output = pipe.read()
    os.waitpid(child_pid, 0)
    return json.loads(output) if output else {"failures": ["no world could be opened; see above"], "calls": []}
