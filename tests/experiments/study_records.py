"""Records of the study made by hand, for its tests."""

from experiments.study.launch import VARIABLES
from experiments.study.tables import Table, jobs


def record(arm, seed, final, zero_shot=0.25, digest="d", origins=("rare", "boundary")):
    """A run of two steps on four held-out tasks, as it is stored."""
    added = [] if arm == "static" else list(origins)
    count = round(4 * final)
    job = jobs([arm], [seed])[0]
    return {
        "arm": arm, "seed": seed, "split": "eval", "settings": dict(job.settings), "config": job.config, "steps": 2,
        "facts": {"versions": {"jax": "1"}, "commit": "c", "hardware": {"processor": "P"}}, "threads": dict(VARIABLES),
        "zero_shot": zero_shot, "final": final,
        "held_out": {"digest": digest, "tasks": 4, "zero_shot": "1000", "final": "1" * count + "0" * (4 - count)},
        "budget": dict.fromkeys(("episodes", "turns", "tokens_sampled", "tokens_trained", "explorer_actions",
                                 "drafts"), 100 + len(added)) | {"tasks_added": len(added)},
        "seconds": {"warm_start": 20.0, "generation": 6.0, "update": 3.0, "feedback": 1.0, "total": 10.0},
        "curves": {"step": [1, 2], "success": [0.2, 0.4], "turns": [3.0, 4.0], "live_groups": [0.5, 0.7],
                   "tasks": [2, 2 + len(added)]},
        "evolution_seconds": 1.0,
        "dev": [[1, 0.2], [2, final]],
        "signals": {"forgetting": [0, 1], "boundary": [5, 3], "rare": [2, 2]},
        "evolutions": [{"step": 2, "origin": origin, "expeditions": 2, "fruitful": 1, "drafts": 2, "tasks": 1}
                       for origin in added],
        "refused": {"duplicate of task": len(added)} if added else {},
        "tasks": {"step": [0, 0, *[2] * len(added)], "origin": ["unguided"] * 2 + added,
                  "turns": [2, 3, *[4] * len(added)],
                  "tool": ["read", "send", *["move"] * len(added)], "x": [0.1, -0.2, *[0.3] * len(added)],
                  "y": [0.0, 0.1, *[0.2] * len(added)], "similarity": [0.4, 0.5, *[0.6] * len(added)]},
        "quality": {"tasks": 4, "sr_at_k": 0.5, "ed_rel": 0.04, "turns": 3.25, "max_similarity": {"mean": 0.55}},
    }  # fmt: skip


PAIR = Table("A table", ("static", "feedback"), (("feedback", "static"),))


def known(*records):
    return {(one["arm"], one["seed"]): one for one in records}


def stepless(seed):
    """A run without a step, whose final evaluation tries a failed task again."""
    made = record("static", seed, 0.5)
    curves = {name: [] for name in made["curves"]}
    trials = [{"success": 0.25, "episodes": 4}, {"success": 0.5, "episodes": 3}]
    none = {"curves": curves, "dev": [], "signals": {kind: [] for kind in made["signals"]}, "trials": trials}
    return {**made, **none, "arm": "zero-shot-retry", "steps": 0}
