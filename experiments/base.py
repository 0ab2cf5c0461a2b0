"""The paper's settings (CoEvolve, Table 9): what every experiment starts from.

Not run by itself: an experiment names an environment and a policy, and overrides what differs. A leaf has the name of
the keyword it feeds; experiments/ranges.py says what it may be. Wherever one names a loss, an advantage, a signal, a
curriculum, a way to evolve, an explorer, an engine or an environment, `package.module:name` may stand, for one of your
own. Sections called settings hold overrides of the keyword arguments of what is named beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

# Setting → entry → what the paper sets of it; another entry starts from its own signature.
PAPER: Mapping[str, Mapping[str, Mapping[str, Any]]] = {"learner.loss": {"grpo": {"kl_coefficient": 1e-3}}}


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.workdir = "runs/base"
    config.seed = 0
    config.steps = 120
    config.evolve = "feedback"  # none | random | uniform | trajectory | displaced | feedback
    config.evolve_every = 10  # F
    config.signals = "forgetting,boundary,rare"
    # By the name of the signal, e.g. --config.signal_settings.forgetting.window=5; of package.module:name it is `name`.
    config.signal_settings = ConfigDict()
    config.validate = True
    config.batch_size = 32  # tasks a step
    config.group_size = 8  # K
    # 1: the next step's episodes are played while this step's update runs, with weights one update behind. 0: never.
    config.staleness = 0
    config.quorum = 1.0  # share of each group that an update waits for; the other episodes are cut
    # Groups that a step may sample until batch_size of them are live, their rewards differing; it learns from the live
    # ones alone (DAPO). 0 is off.
    config.dynamic_sampling = 0
    # Episodes that all steps together play at most, in whole groups: steps for which none are left learn nothing. 0 is
    # any number.
    config.episodes = 0
    config.fresh_fraction = 0.0  # share of a batch drawn from the newest tasks
    config.curriculum = "uniform"  # how the others are drawn: uniform | learnability | unmastered
    config.curriculum_settings = ConfigDict()
    config.initial_tasks = 100  # N
    config.checkpoint_every = 10
    config.checkpoints_kept = 3
    config.mismatch_alarm = 0.1  # a step's mean |log-prob trainer − sampler| above this is warned of; 0 never
    config.episodes_kept = 0  # newest steps whose episodes are kept; 0 keeps all
    config.accept_changed_code = False  # go on with a run whose loss, say, stands in a file that has changed since

    config.environment = ConfigDict({"name": ""})

    # A preset of experiments/presets.py, or "": it sets what follows, but never what a flag sets.
    config.policy = ""
    config.model = ConfigDict(
        {
            "path": "",  # a folder in HF format; "" is a policy of `shape` from scratch
            "tools": "full",  # documentation the policy is shown: full | brief | none
            "tokenizer": "words",  # of a policy from scratch: words | bytes
            "vocabulary": 4096,  # entries of the tokenizer `bytes`
            "dtype": "",  # computed in: float32 | bfloat16; "" is the folder's own, float32 from scratch
            "param_dtype": "float32",  # learned and saved in; "" is the folder's own, float32 from scratch
            "shape": ConfigDict(
                {
                    "hidden_size": 0,
                    "intermediate_size": 0,
                    "num_hidden_layers": 0,
                    "num_attention_heads": 0,
                    "num_key_value_heads": 0,
                }
            ),
        }
    )
    # Supervised steps of a policy from scratch on the environment's demonstrator, or on the solutions of `split`.
    config.warm_start = ConfigDict(
        {
            "steps": 0,
            "split": "",
            "batch_size": 32,
            "lengthen": 200,
            "check_every": 150,
            "target": 1.0,
            "check_tasks": 200,
            "demonstrations": 8000,
            "noise_low": 0.10,
            "noise_high": 0.85,
            "learning_rate": 3e-3,
        }
    )

    # `name`: local | sglang; --config.engine=NAME is short for --config.engine.name=NAME.
    config.engine = ConfigDict({"name": "local", "slots": 128, "lanes": 1, "max_length": 4096})
    # Servers for engine.name=sglang. Deadlines and `probe_every` in seconds.
    config.sglang = ConfigDict(
        {
            "urls": "",  # running servers, http://HOST:PORT,…; "" launches `servers` on this host
            "router": "",  # sglang-router's address in front of `urls`: completions are asked of it
            "servers": 1,
            "python": "",  # an interpreter with SGLang; "" is the one of `make sglang`, which serves on the CPU
            "device": "",  # cpu, or "" to leave it to SGLang and `flags`
            "flags": "",  # more of sglang.launch_server's, e.g. "--tp 4 --base-gpu-id {index}"
            "port": 0,  # of the first server launched; 0 takes free ones
            "dtype": "",  # weights are sent and served as this, e.g. bfloat16; "" is the policy's own
            "folder": "",  # for weights/ and logs; every server must see it under this path; "" is the workdir
            "startup_deadline": 600.0,
            "sync_deadline": 600.0,
            "probe_every": 10.0,
            "restarts": 5,  # of each launched server
            "attempts": 6,  # requests for one completion
            "mixed": False,  # keep completions during which weights changed, instead of sampling them anew
            "release_memory": False,  # while the learner works, servers give back the memory of weights and cache
            "follow": False,  # the servers of `urls` take new weights from `folder` by themselves (experiments.serve)
        }
    )
    config.sampling = ConfigDict({"temperature": 0.9, "max_tokens": 4096})
    config.limits = ConfigDict(
        {
            "max_turns": 30,
            "environment_deadline": 60.0,
            "engine_deadline": 600.0,
            "retries": 1,
            "error_rate": 0.3,
            "concurrency": 128,
        }
    )

    config.learner = ConfigDict(
        {
            "loss": "grpo",
            "loss_settings": ConfigDict(),
            "advantage": "group_relative",
            "advantage_settings": ConfigDict(),
            "weighting": "group_token_mean",  # Eq. 1
            "weighting_settings": ConfigDict(),
            "row_length": 4096,
            "micro_rows": 8,
            # At 1 the ratio to the policy before the update is 1, and no clip binds (docs/learner.md). With more, each
            # update sees the whole batch, or its own part of the groups: whole | part.
            "updates_per_batch": 1,
            "each_update": "whole",
            "skip_steps": (),  # numbers of steps that make no update, to get past one that is not a number
            # What of a layer the backward pass computes again: none | dots (all but its products) | layers (all), or
            # auto: the least under which an update fits, found anew at each start.
            "remat": "layers",
            # Of a model with experts, whose choice of them an update goes by: own | compared (own, and the metric
            # routes_differing says how far the sampler's was another) | replayed (the sampler's; docs/learner.md).
            "routes": "own",
            # Adapters of this rank learn instead of the matrices, which stay frozen in model.dtype; 0 is off. `targets`
            # of query, key, value, output, gate, up, down; () is all.
            "lora": ConfigDict({"rank": 0, "alpha": 16.0, "targets": ()}),
        }
    )
    # The rate falls linearly to `decay_to` of itself over `decay_steps` updates; 0 is the paper: it stays. Both moments
    # are stored as `moments_dtype`: float32 | bfloat16; "" is as the parameters.
    config.optimizer = ConfigDict(
        {
            "learning_rate": 1e-6,
            "warmup_steps": 0,
            "decay_steps": 0,
            "decay_to": 0.1,
            "weight_decay": 0.0,
            "clip_norm": 1.0,
            "moments_dtype": "",
        }
    )
    # Devices that parameters and rows are spread over; all 1 is one device, and one may be -1: all that remain.
    config.mesh = ConfigDict({"data": 1, "fsdp": 1, "tensor": 1, "expert": 1})

    # `name`: scripted | careless | llm | policy; --config.explorer=NAME is short for --config.explorer.name=NAME.
    # `ending` is the tool that ends an episode, "" where an action without a call does. Of scripted and careless alone:
    # `stretch`, and `cut`, the chance that a user turn ends after a step of a draft; careless is scripted, but that a
    # draft takes one name for another with chance `mistakes`. Of the others: what stands between the user's turns of a
    # query ("": it has one), the fewest actions of a draft, and the characters a prompt holds at most. `width`
    # expeditions go at once, whatever limits.concurrency says, and know nothing of what the others find meanwhile.
    config.explorer = ConfigDict(
        {
            "name": "scripted",
            "runs": 4,
            "steps": 8,
            "ending": "finish",
            "stretch": (-1, 0, 1, 2),
            "cut": 0.0,
            "mistakes": 0.3,
            "separator": "",
            "shortest": 3,
            "window": 60_000,
            "width": placeholder(int),  # None: 1, or 2 of an explorer with a mind
        }
    )
    config.initial_explorer = ""  # the one that finds D_0, e.g. scripted; "" is explorer.name
    # The model of explorer=llm, at any OpenAI-compatible endpoint; its key is the environment variable OPENAI_API_KEY.
    # explorer=policy takes the limits from here. Budgets are for one evolution, D_0 among them: 40 contexts of 4 runs
    # of 8 steps take about four million tokens.
    config.llm = ConfigDict(
        {
            "base_url": "",  # http://HOST:PORT/v1
            "model": "",
            "timeout": 120.0,  # seconds a request
            "deadline": 3600.0,  # seconds an evolution
            "attempts": 4,  # requests for one reply
            "concurrency": 8,
            "max_tokens": 2048,  # of one reply
            "max_tokens_per_evolution": 10_000_000,
            "max_requests_per_evolution": 10_000,
            "temperature": 0.7,
            "price_in": 0.0,  # per million tokens, for the cost among the metrics
            "price_out": 0.0,
            "send_schema": True,  # False for an endpoint that refuses response_format
            "send_seed": True,  # False for an endpoint that refuses seed
        }
    )
    # `attempts` at each draft of a mind on its query alone, by `attempter`: explorer | policy; 0 is the paper. `judge`:
    # off | note | veto. A draft whose query has a greater cosine with an evaluation task, or with a task of the pool on
    # the same setup, is refused; 0 compares nothing. So is one that holds, word for word, an evaluation task's query of
    # at least `evaluation_words` words; 0 is whatever it holds. `safe` sets aside what a person should look at first. A
    # query has at most `longest_query` characters.
    config.validation = ConfigDict(
        {
            "attempts": placeholder(int),  # None: 2 at drafts of a mind
            "attempter": "explorer",
            "judge": "off",
            "evaluation_similarity": 0.7,
            "evaluation_words": 5,
            "pool_similarity": 0.95,
            "safe": True,
            "longest_query": 4_000,
        }
    )
    # `select`: confident | even | all, of the signals that there are more of than contexts.
    config.synthesis = ConfigDict({"contexts": 40, "budget": 40, "per_context": 2, "select": "confident"})

    # The final figure on `split`; the curve on `dev_split`, every `every` steps (0: never). With `trials` above 1 a
    # task that the final policy fails is tried again, at sampling.temperature, after a note of its own where it is to
    # `reflect` (Reflexion): what that comes to takes a verdict on each trial, and is told beside the final figure.
    config.evaluation = ConfigDict(
        {
            "split": "eval",
            "tasks": 1000,
            "seed": 0,  # of a split that is generated, the desk's: which tasks
            "temperature": 0.0,
            "trials": 1,
            "reflect": False,
            "dev_split": "dev",
            "dev_tasks": 200,
            "every": 20,
            "challenge_split": "challenge",
            "challenge_tasks": 0,
            "by": "",  # a key of a task's setup: success is also told by what it holds
        }
    )
    # How diverse the pool is and how near to the evaluation tasks, told after each evolution. SR@k looks at `k` nearest
    # neighbours. `embedding`: local (hashed n-grams, no model) | endpoint (`model` at the OpenAI-compatible `base_url`,
    # which is sent the queries of the evaluation tasks too; its key is OPENAI_API_KEY).
    config.quality = ConfigDict({"k": 5, "embedding": "local", "base_url": "", "model": ""})
    config.wandb = ConfigDict({"project": "", "name": "", "mode": "online"})
    return config
