"""The sections of a configuration that the paper leaves open: engine, the policy, explorer, validation, evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from cojax.distributed.start import Start
from cojax.explorer.llm.chat_settings import ChatSettings
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.metrics import Wandb
from cojax.policy.sharding import make_mesh
from cojax.quality import EMBEDDINGS
from cojax.registry.annotations import Range
from cojax.rollout.local import LocalEngine
from cojax.settings import policy_sections, sglang_section
from cojax.settings.leaf import (
    AtLeast0,
    AtLeast2,
    Cosine,
    Count,
    Devices,
    Leaf,
    Number,
    Seconds,
    Section,
    Share,
    defaults,
    one_of,
)  # fmt: skip
from cojax.settings.reading import ATTEMPTERS, JUDGES
from cojax.validation import Exclusions, Validation
from cojax.validation.query import MOST_CHARACTERS


def environment() -> Section:
    """The environment. Its own settings are in the same section as its name."""
    return {
        "name": Leaf("", str, "the environment"),
        "cluster": Leaf(
            "", str,
            "a Ray cluster on whose nodes episodes are played, ray://HOST:PORT, or HOST:PORT or auto on a host of it "
            '(docs/cluster.md); "": on this host',
        ),
    }  # fmt: skip


def engine() -> Section:
    """What samples the policy's tokens. --config.engine=NAME is short for --config.engine.name=NAME."""
    own = defaults(LocalEngine)
    return {
        "name": Leaf("local", str, "the engine"),
        "slots": Leaf(
            None, Count | None,
            "conversations in parallel; None: as many as free memory holds, at most 128 and no more than "
            "limits.concurrency needs; of servers 128",
        ),
        "lanes": Leaf(
            own["lanes"], Count,
            "threads of the local engine, each with its share of the slots; on a mesh as many for each of its "
            "data × fsdp replicas, and 1 where these have several devices",
        ),
        "prefill_rows": Leaf(
            own["prefill_rows"], Count,
            "prompts whose tokens the local engine reads at a time; rows that are empty take as long as full ones",
        ),
        "max_length": Leaf(4096, AtLeast2, "most tokens of a conversation"),
    }  # fmt: skip


def mesh() -> Section:
    """Devices over which parameters and rows are sharded. All 1 is one device; one may be -1: all remaining devices."""
    own = defaults(make_mesh)
    return {
        "data": Leaf(own["data"], Devices, "number of devices over which rows are split"),
        "fsdp": Leaf(own["fsdp"], Devices, "number of devices over which rows and parameters are split"),
        "tensor": Leaf(own["tensor"], Devices, "number of devices over which each matrix is split"),
        "expert": Leaf(own["expert"], Devices, "number of devices over which experts are split"),
    }


def distributed() -> Section:
    """Several processes that train one policy; --config.distributed=true is short for .enabled=True (docs/pods.md)."""
    own = defaults(Start)
    return {
        "enabled": Leaf(False, bool, "the run has several processes; implied by `coordinator`"),
        "coordinator": Leaf(
            own["coordinator"], str,
            'HOST:PORT of process 0; "": as JAX finds it from Slurm, Open MPI, an indexed Job or a TPU pod',
        ),
        "processes": Leaf(own["processes"], Count | None, "number of processes; None: as JAX finds it"),
        "process": Leaf(own["process"], Number | None, "number of this process, from 0 on; None: as JAX finds it"),
        "startup": Leaf(own["startup"], Seconds, "for all processes to find each other, and to see the workdir"),
        "silence": Leaf(own["silence"], Seconds, "without a sign of life, after which a process counts as lost"),
        "deadline": Leaf(
            3600.0, Seconds, "for one computation or checkpoint of all processes, compilation included; then all end"
        ),
    }  # fmt: skip


def explorer() -> Section:
    """What explores and writes tasks. --config.explorer=NAME is short for --config.explorer.name=NAME."""
    own, llm = defaults(ScriptedExplorer), defaults(LLMExplorer)
    return {
        "name": Leaf("scripted", str, "the explorer"),
        "runs": Leaf(own["runs"], Count, "episodes per expedition"),
        "steps": Leaf(own["steps"], Count, "most actions of an episode"),
        "ending": Leaf(
            own["ending"], str,
            'the tool that ends an episode; "" if an action without a call ends it. Where the environment states its '
            "own ending, that one holds",
        ),
        "stretch": Leaf(
            own["stretch"], tuple[int, ...],
            "scripted and careless: numbers of actions by which a draft's length may differ from its parent's",
        ),
        "longest": Leaf(own["longest"], Count, "scripted and careless: most actions of a draft that nothing guides"),
        "cut": Leaf(
            own["cut"], Share, "scripted and careless: probability that a user turn ends after a step of a draft"
        ),
        "mistakes": Leaf(0.3, Share, "careless: probability that a draft confuses two names"),
        "separator": Leaf(
            llm["separator"], str, 'llm and policy: text between user turns of a query; "": a query has one turn'
        ),
        "shortest": Leaf(llm["shortest"], Count, "llm and policy: fewest actions of a draft"),
        "window": Leaf(
            llm["window"], Annotated[int, "a number of characters", Range(2_000)],
            "llm and policy: most untrusted characters of a prompt",
        ),
        "width": Leaf(
            None, Count | None,
            "expeditions in parallel, independent of limits.concurrency; they do not see each other's results. None: 2 "
            "for llm and policy, otherwise 1; no more than the environment says it can have",
        ),
    }  # fmt: skip


def llm() -> Section:
    """The model of explorer=llm; explorer=policy uses the limits. The API key is read from OPENAI_API_KEY.

    Budgets are for one evolution; the search for D_0 counts as one. 40 contexts of 4 runs of 8 steps take about four
    million tokens.
    """
    own = defaults(ChatSettings)
    return {
        "base_url": Leaf("", str, "an OpenAI-compatible endpoint, http://HOST:PORT/v1"),
        "model": Leaf("", str, "the name of the model at the endpoint"),
        "timeout": Leaf(own["timeout"], Seconds, "for one request"),
        "deadline": Leaf(own["deadline"], Seconds, "for one evolution"),
        "attempts": Leaf(own["attempts"], Count, "most requests for one reply"),
        "concurrency": Leaf(own["concurrency"], Count, "requests in parallel"),
        "max_tokens": Leaf(own["max_tokens"], Count, "most tokens of one reply"),
        "max_tokens_per_evolution": Leaf(10_000_000, Count, "most tokens of an evolution, prompts included"),
        "max_requests_per_evolution": Leaf(10_000, Count, "most requests of an evolution"),
        "temperature": Leaf(own["temperature"], AtLeast0, "temperature of replies"),
        "price_in": Leaf(own["price_in"], AtLeast0, "price per million prompt tokens, for the cost in the metrics"),
        "price_out": Leaf(own["price_out"], AtLeast0, "price per million reply tokens"),
        "send_schema": Leaf(own["send_schema"], bool, "False for an endpoint that refuses response_format"),
        "send_seed": Leaf(own["send_seed"], bool, "False for an endpoint that refuses seed"),
    }


def validation() -> Section:
    """The checks that a draft must pass to become a task."""
    own, of = defaults(Validation), defaults(Exclusions.of)
    return {
        "attempts": Leaf(
            None, Number | None,
            "attempts at each draft of a model, which see nothing but its query; None is 2, 0 is the paper",
        ),
        "attempter": Leaf("explorer", one_of(ATTEMPTERS), "who makes these attempts"),
        "judge": Leaf("off", one_of(JUDGES), "a model's opinion of each draft: none, noted as evidence, or a veto"),
        "evaluation_similarity": Leaf(
            0.7, Cosine, "a query with a greater cosine to an evaluation task's is refused; 0 compares nothing"
        ),
        "evaluation_words": Leaf(
            of["words"], Number,
            "no draft's query may contain an evaluation query of at least this many words; 0 allows all",
        ),
        "pool_similarity": Leaf(
            0.95, Cosine,
            "a query with a greater cosine to a pool task's on the same setup is refused; 0 compares nothing",
        ),
        "safe": Leaf(True, bool, "set drafts aside that a person should review first"),
        # Each query is compared with all others.
        "longest_query": Leaf(
            own["longest_query"], Annotated[int, "a number of characters", Range(1, MOST_CHARACTERS)],
            "most characters of a query",
        ),
    }  # fmt: skip


def evaluation() -> Section:
    """The final evaluation on `split`, and the development curve on `dev_split`.

    With `trials` above 1, a task that the final policy fails is tried again, at sampling.temperature. With `reflect`
    the policy writes a note before each further trial (Reflexion). The results of further trials use the verdict on
    each trial, and are reported apart from the final one.
    """
    return {
        "split": Leaf("eval", str, "the split of the final evaluation"),
        "tasks": Leaf(1000, Count, "number of tasks of `split`"),
        "seed": Leaf(0, int, "for generated splits (the desk's): chooses their tasks"),
        "temperature": Leaf(0.0, AtLeast0, "sampling temperature of evaluations"),
        "trials": Leaf(1, Count, "most trials of a task in the final evaluation"),
        "reflect": Leaf(False, bool, "the policy writes a note before each further trial"),
        "dev_split": Leaf("dev", str, "the split of the development curve"),
        "dev_tasks": Leaf(200, Count, "number of tasks of `dev_split`"),
        "every": Leaf(20, Number, "steps between two points of the development curve; 0 is never"),
        "challenge_split": Leaf("challenge", str, "a harder split"),
        "challenge_tasks": Leaf(0, Number, "number of tasks of `challenge_split`"),
        "by": Leaf("", str, "a key of a task's setup: success is also given for each of its values"),
    }


def quality() -> Section:
    """Metrics of the pool after each evolution: its diversity, and its similarity to the evaluation tasks."""
    return {
        "k": Leaf(5, Count, "number of nearest neighbours in SR@k"),
        "embedding": Leaf(
            "local", one_of(EMBEDDINGS),
            "local: hashed n-grams, no model; endpoint: quality.model at quality.base_url, which also receives the "
            "queries of the evaluation tasks",
        ),
        "base_url": Leaf("", str, "an OpenAI-compatible endpoint; its key is OPENAI_API_KEY"),
        "model": Leaf("", str, "the name of the embedding model at the endpoint"),
    }  # fmt: skip


def wandb() -> Section:
    """Sends the metrics to Weights & Biases as well."""
    own = defaults(Wandb)
    return {
        "project": Leaf("", str, 'the project; "" is off'),
        "name": Leaf(own["name"], str, "name of the run"),
        "mode": Leaf(own["mode"], Literal["online", "offline", "disabled", "shared"], "mode of wandb"),
    }


SECTIONS: tuple[tuple[str, Callable[[], Section]], ...] = (
    ("environment", environment),
    *policy_sections.SECTIONS,
    ("engine", engine),
    ("sglang", sglang_section.sglang),
    ("mesh", mesh),
    ("distributed", distributed),
    ("explorer", explorer),
    ("llm", llm),
    ("validation", validation),
    ("evaluation", evaluation),
    ("quality", quality),
    ("wandb", wandb),
)
