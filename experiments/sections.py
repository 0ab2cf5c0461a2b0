"""The sections of a configuration that the paper leaves open: model, engine, explorer, validation, evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from cojax.explorer.llm.chat_settings import ChatSettings
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.metrics import Wandb
from cojax.policy.sharding import make_mesh
from cojax.quality import EMBEDDINGS
from cojax.registry.annotations import Range
from cojax.rollout.chat import TOOL_DOCUMENTS
from cojax.rollout.local import LocalEngine
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.process import LaunchSettings
from cojax.rollout.sglang.server import ServerLimits
from cojax.validation import Exclusions, Validation
from cojax.validation.query import MOST_CHARACTERS
from cojax.warm_start import Schedule
from experiments.leaf import (
    AtLeast0,
    AtLeast2,
    Cosine,
    Count,
    Devices,
    DType,
    Leaf,
    Number,
    Seconds,
    Section,
    Share,
    defaults,
    one_of,
)  # fmt: skip
from experiments.settings import ATTEMPTERS, JUDGES


def environment() -> Section:
    """The world. Its own settings stand beside its name."""
    return {"name": Leaf("", str, "the environment")}


def model() -> Section:
    """The policy's model: a folder, or a small one from scratch."""
    return {
        "path": Leaf("", str, 'a folder in HF format; "" is a policy of model.shape from scratch'),
        "tools": Leaf("full", one_of(TOOL_DOCUMENTS), "the documentation that the policy is shown"),
        "tokenizer": Leaf("words", one_of(("words", "bytes")), "of a policy from scratch"),
        "vocabulary": Leaf(4096, Count, "entries of the tokenizer `bytes`"),
        "dtype": Leaf("", DType, 'computed in; "" is the folder\'s own, float32 from scratch'),
        "param_dtype": Leaf("float32", DType, 'learned and saved in; "" is the folder\'s own, float32 from scratch'),
    }


def shape() -> Section:
    """The sizes of a policy from scratch."""
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    )  # fmt: skip
    return {name: Leaf(0, Number, "as in config.json of the HF format") for name in names}


def warm_start() -> Section:
    """Supervised steps of a policy from scratch, before the run."""
    own = defaults(Schedule)
    return {
        "steps": Leaf(0, Number, "batches at most; 0 begins with random parameters"),
        "split": Leaf(
            "", str,
            "the split whose solutions are learned; `initial` is D_0, \"\" the environment's own demonstrator",
        ),
        "batch_size": Leaf(own["batch_size"], Count, "demonstrations a batch"),
        "lengthen": Leaf(200, Number, "batches until the longest demonstrations are reached, from the shortest"),
        "check_every": Leaf(150, Count, "batches from one score on the development split to the next"),
        "target": Leaf(1.0, AtLeast0, "success on the development split at which it stops"),
        "check_tasks": Leaf(200, Count, "development tasks scored"),
        "demonstrations": Leaf(8000, Count, "that are learned from"),
        "noise_low": Leaf(0.10, Share, "of wrong actions of the demonstrator at the most popular skill"),
        "noise_high": Leaf(0.85, Share, "of wrong actions of the demonstrator at the least popular skill"),
        "learning_rate": Leaf(3e-3, AtLeast0, "falls linearly to a twentieth"),
    }  # fmt: skip


def engine() -> Section:
    """What samples the policy's tokens. --config.engine=NAME is short for --config.engine.name=NAME."""
    own = defaults(LocalEngine)
    return {
        "name": Leaf("local", str, "the engine"),
        "slots": Leaf(own["slots"], Count, "conversations at once"),
        "lanes": Leaf(own["lanes"], Count, "threads of the local engine, each with its share of the slots"),
        "max_length": Leaf(4096, AtLeast2, "tokens of a conversation"),
    }


def sglang() -> Section:
    """Servers for engine.name=sglang: attached to, or launched on this host."""
    own, waits, launch = defaults(SGLangEngine), defaults(ServerLimits), defaults(LaunchSettings)
    return {
        "urls": Leaf("", str, 'running servers, http://HOST:PORT,…; "" launches sglang.servers on this host'),
        "router": Leaf(own["router"], str, "sglang-router's address in front of `urls`: it is asked for completions"),
        "servers": Leaf(own["servers"], Count, "servers launched"),
        "python": Leaf("", str, 'an interpreter with SGLang; "" is the one of `make sglang`, which serves on the CPU'),
        "device": Leaf(launch["device"], str, 'cpu, or "" to leave it to SGLang and `flags`'),
        "flags": Leaf(launch["flags"], str, 'more of sglang.launch_server\'s, e.g. "--tp 4 --base-gpu-id {index}"'),
        "port": Leaf(launch["port"], Annotated[int, Range(0, 65_535)], "of the first server launched; 0: free ones"),
        "dtype": Leaf(
            own["dtype"], Literal["", "float32", "bfloat16", "float16"],
            'weights are sent and served as this; "" is the policy\'s own',
        ),
        "folder": Leaf("", str, 'for weights/ and logs; every server must see it at this path; "" is the workdir'),
        "startup_deadline": Leaf(waits["startup"], Seconds, "for a server to start"),
        "sync_deadline": Leaf(waits["sync"], Seconds, "for a server to take new weights"),
        "probe_every": Leaf(waits["probe_every"], Seconds, "from one look at a server's health to the next"),
        "restarts": Leaf(waits["restarts"], Number, "of each launched server"),
        "attempts": Leaf(own["attempts"], Count, "requests for one completion"),
        "mixed": Leaf(
            own["mixed"], bool, "keep completions during which weights changed, instead of sampling them anew"
        ),
        "release_memory": Leaf(
            own["release_memory"], bool, "while the learner works, servers give back the memory of weights and cache"
        ),
        "follow": Leaf(
            own["follow"], bool, "servers of `urls` take new weights from `folder` themselves (experiments.serve)"
        ),
    }  # fmt: skip


def mesh() -> Section:
    """Devices that parameters and rows are spread over. All 1 is one device; one may be -1: all that remain."""
    own = defaults(make_mesh)
    return {
        "data": Leaf(own["data"], Devices, "rows are split over these"),
        "fsdp": Leaf(own["fsdp"], Devices, "rows and parameters are split over these"),
        "tensor": Leaf(own["tensor"], Devices, "each matrix is split over these"),
        "expert": Leaf(own["expert"], Devices, "experts are split over these"),
    }


def explorer() -> Section:
    """What explores and words tasks. --config.explorer=NAME is short for --config.explorer.name=NAME."""
    own, llm = defaults(ScriptedExplorer), defaults(LLMExplorer)
    return {
        "name": Leaf("scripted", str, "the explorer"),
        "runs": Leaf(own["runs"], Count, "episodes an expedition"),
        "steps": Leaf(own["steps"], Count, "actions of an episode at most"),
        "ending": Leaf(own["ending"], str, 'the tool that ends an episode; "" where an action without a call ends it'),
        "stretch": Leaf(
            own["stretch"], tuple[int, ...],
            "scripted and careless: how many actions a draft may have more than its parent",
        ),
        "cut": Leaf(own["cut"], Share, "scripted and careless: chance that a user turn ends after a step of a draft"),
        "mistakes": Leaf(0.3, Share, "careless: chance that a draft takes one name for another"),
        "separator": Leaf(llm["separator"], str, 'llm and policy: text between user turns of a query; "": it has one'),
        "shortest": Leaf(llm["shortest"], Count, "llm and policy: actions of a draft at least"),
        "window": Leaf(
            llm["window"], Annotated[int, "a number of characters", Range(2_000)],
            "llm and policy: what a prompt holds at most",
        ),
        "width": Leaf(
            None, Count | None,
            "expeditions that go at once, whatever limits.concurrency is; they know nothing of what the others find. "
            "None: 2 of llm and policy, else 1",
        ),
    }  # fmt: skip


def llm() -> Section:
    """The model of explorer=llm; explorer=policy takes the limits from here. Its key is the variable OPENAI_API_KEY.

    Budgets are for one evolution, D_0 among them: 40 contexts of 4 runs of 8 steps take about four million tokens.
    """
    own = defaults(ChatSettings)
    return {
        "base_url": Leaf("", str, "an OpenAI-compatible endpoint, http://HOST:PORT/v1"),
        "model": Leaf("", str, "the model to ask the endpoint for"),
        "timeout": Leaf(own["timeout"], Seconds, "a request"),
        "deadline": Leaf(own["deadline"], Seconds, "an evolution"),
        "attempts": Leaf(own["attempts"], Count, "requests for one reply"),
        "concurrency": Leaf(own["concurrency"], Count, "requests at once"),
        "max_tokens": Leaf(own["max_tokens"], Count, "of one reply"),
        "max_tokens_per_evolution": Leaf(10_000_000, Count, "prompts included"),
        "max_requests_per_evolution": Leaf(10_000, Count, "requests an evolution"),
        "temperature": Leaf(own["temperature"], AtLeast0, "of its replies"),
        "price_in": Leaf(own["price_in"], AtLeast0, "per million tokens of prompts, for the cost among the metrics"),
        "price_out": Leaf(own["price_out"], AtLeast0, "per million tokens of replies"),
        "send_schema": Leaf(own["send_schema"], bool, "False for an endpoint that refuses response_format"),
        "send_seed": Leaf(own["send_seed"], bool, "False for an endpoint that refuses seed"),
    }


def validation() -> Section:
    """What a draft must pass to become a task."""
    own, of = defaults(Validation), defaults(Exclusions.of)
    return {
        "attempts": Leaf(
            None, Number | None,
            "at each draft on its query alone, of explorers that are models; None is 2, 0 is the paper",
        ),
        "attempter": Leaf("explorer", one_of(ATTEMPTERS), "who makes those attempts"),
        "judge": Leaf("off", one_of(JUDGES), "whether a model's opinion of a draft is asked for, and can refuse it"),
        "evaluation_similarity": Leaf(
            0.7, Cosine, "above which a query is too near to an evaluation task's; 0 compares nothing"
        ),
        "evaluation_words": Leaf(
            of["words"], Number,
            "an evaluation task's query of at least so many words may stand in no draft; 0 is a query of any length",
        ),
        "pool_similarity": Leaf(
            0.95, Cosine, "above which a query is too near to a task of the pool on the same setup; 0 compares nothing"
        ),
        "safe": Leaf(True, bool, "set aside what a person should look at first"),
        # Each query is compared with all others.
        "longest_query": Leaf(
            own["longest_query"], Annotated[int, "a number of characters", Range(1, MOST_CHARACTERS)], "of a query"
        ),
    }  # fmt: skip


def evaluation() -> Section:
    """The final figure on `split`, and the curve on `dev_split`.

    With `trials` above 1 a task that the final policy fails is tried again, at sampling.temperature, after a note of
    its own where it is to `reflect` (Reflexion). These figures use the verdict on each trial, and stand beside the
    final one.
    """
    return {
        "split": Leaf("eval", str, "the split of the final figure"),
        "tasks": Leaf(1000, Count, "tasks of `split`"),
        "seed": Leaf(0, int, "of a split that is generated, the desk's: decides which tasks"),
        "temperature": Leaf(0.0, AtLeast0, "of evaluations"),
        "trials": Leaf(1, Count, "of a task at the end"),
        "reflect": Leaf(False, bool, "write a note before each further trial"),
        "dev_split": Leaf("dev", str, "the split of the curve"),
        "dev_tasks": Leaf(200, Count, "tasks of `dev_split`"),
        "every": Leaf(20, Number, "steps from one point of the curve to the next; 0 is never"),
        "challenge_split": Leaf("challenge", str, "a harder split"),
        "challenge_tasks": Leaf(0, Number, "tasks of `challenge_split`"),
        "by": Leaf("", str, "a key of a task's setup: success is also given for each of its values"),
    }


def quality() -> Section:
    """How diverse the pool is and how near to the evaluation tasks, measured after each evolution."""
    return {
        "k": Leaf(5, Count, "nearest neighbours that SR@k looks at"),
        "embedding": Leaf(
            "local", one_of(EMBEDDINGS),
            "local: hashed n-grams, no model; endpoint: quality.model at quality.base_url, which is also sent "
            "the queries of the evaluation tasks",
        ),
        "base_url": Leaf("", str, "an OpenAI-compatible endpoint; its key is OPENAI_API_KEY"),
        "model": Leaf("", str, "the embedding model to ask it for"),
    }  # fmt: skip


def wandb() -> Section:
    """Metrics to Weights & Biases besides."""
    own = defaults(Wandb)
    return {
        "project": Leaf("", str, 'the project; "" is off'),
        "name": Leaf(own["name"], str, "of the run"),
        "mode": Leaf(own["mode"], Literal["online", "offline", "disabled", "shared"], "of wandb"),
    }


SECTIONS: tuple[tuple[str, Callable[[], Section]], ...] = (
    ("environment", environment),
    ("model", model),
    ("model.shape", shape),
    ("warm_start", warm_start),
    ("engine", engine),
    ("sglang", sglang),
    ("mesh", mesh),
    ("explorer", explorer),
    ("llm", llm),
    ("validation", validation),
    ("evaluation", evaluation),
    ("quality", quality),
    ("wandb", wandb),
)
