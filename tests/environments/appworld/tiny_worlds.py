"""Run in AppWorld's own virtual environment: plays code in worlds, one in each forked child, and tells how it went.

    python tiny_worlds.py ROOT [metrics]     standard input: a JSON list of plays {"task", "blocks"[, "drop"]}

A play without its `drop`-th call that changes something has that call answered by {} instead. Answers with a JSON
object: "plays", a list of {"success", "passes", "requirements", "effective", "said"}; with `metrics`, the package's
own figures of these plays for each split.
"""

import functools
import json
import os
import sys

SPLITS = ("train", "dev", "test_normal", "test_challenge")


def play(task, blocks, drop=None):
    from appworld.environment import AppWorld

    world = AppWorld(task_id=task, experiment_name="played")
    request, effective = world.requester.request, []

    def watched(*names, **arguments):
        name = ".".join(names or (arguments["_app_name"], arguments["_api_name"]))
        if documented[name] != "GET":
            effective.append(name)
            if len(effective) - 1 == drop:
                return {}
        return request(*names, **arguments)

    documented = {
        f"{app}.{name}": doc["method"] for app, docs in world.task.api_docs.items() for name, doc in docs.items()
    }
    world.requester.request = watched
    said = [world.execute(block) for block in blocks]
    verdict = world.evaluate()
    return {
        "success": verdict.success,
        "passes": verdict.pass_count,
        "requirements": verdict.num_tests,
        "effective": effective,
        "said": said,
    }


def metrics():
    from appworld.evaluator import evaluate_dataset

    return {
        split: evaluate_dataset("played", split, print_report=False, save_reports=False)["aggregate"]
        for split in SPLITS
    }


def main():
    os.environ["APPWORLD_ROOT"] = sys.argv[1]
    from appworld.environment import AppWorld

    from environments.appworld.tiny.prove import run_in_fork

    plays = json.load(sys.stdin)
    with AppWorld(task_id=plays[0]["task"], experiment_name="warm") as world:
        world.evaluate()
    answer = {"plays": [run_in_fork(functools.partial(play, **one)) for one in plays]}
    if sys.argv[2:] == ["metrics"]:
        answer["metrics"] = run_in_fork(metrics)
    json.dump(answer, sys.__stdout__)


main()
