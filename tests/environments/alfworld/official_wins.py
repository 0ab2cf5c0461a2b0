"""Plays games by the benchmark's own AlfredTWEnv, as its evaluation does; runs in the wheels' virtual environment.

Standard input: [[folder with a game, [[command, …], …]], …]. Standard output: for each list of commands whether the
game is won.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys

CONFIG = {
    "dataset": {"eval_ood_data_path": "", "num_eval_games": -1},
    "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6], "domain_randomization": False,
            "expert_type": "handcoded"},
    "general": {"training_method": "dqn"},
    "rl": {"training": {"max_nb_steps_per_episode": 50}},
}  # fmt: skip


def wins(folder: str, plays: list[list[str]]) -> list[bool]:
    made = importlib.import_module("alfworld.agents.environment").get_environment("AlfredTWEnv")
    CONFIG["dataset"]["eval_ood_data_path"] = folder
    environment = made(CONFIG, train_eval="eval_out_of_distribution").init_env(batch_size=1)
    found = []
    for commands in plays:
        environment.reset()
        won = False
        for command in commands:
            _, _, _, told = environment.step([command])
            won = bool(told["won"][0])
        found.append(won)
    environment.close()
    return found


if __name__ == "__main__":
    given = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        found = [won for folder, plays in given for won in wins(folder, plays)]
    print(json.dumps(found))
