"""Every setting of a run, once: its default, its range and its meaning.

A section is a class; sections nest as their dotted names do. A setting is an annotated line of its section: the
annotation is its range. Its meaning is a line `name: meaning` of the section's docstring. The configuration, flags,
checks and docs/settings.md are derived from here. The defaults are the paper's (CoEvolve, Table 9) where it has one;
"(ours)" marks what it leaves open or gives otherwise, and experiments/paper.py sets what it gives. An experiment
overrides them.

`Loop`, `Learner`, `Limits` and `adamw` have the same defaults for those who make them by hand; a test compares them.
Wherever a setting names a loss, an advantage, a signal, a curriculum, a way to evolve, a selection of signals, an
explorer, an engine or an environment, `package.module:name` names one of your own.
"""

import dataclasses
import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cojax.registry.annotations import Range

Count = Annotated[int, Range(1)]
Number = Annotated[int, Range(0)]
Share = Annotated[float, "a share", Range(0.0, 1.0)]
PositiveShare = Annotated[float, "a share", Range(0.0, 1.0, low_open=True)]
Above0 = Annotated[float, Range(0.0, low_open=True)]
AtLeast0 = Annotated[float, Range(0.0)]
AtLeast2 = Annotated[int, Range(2)]
Seconds = Annotated[float, "a number of seconds", Range(0.0, low_open=True)]
Cosine = Annotated[float, "a cosine", Range(0.0, 1.0)]
DType = Literal["", "float32", "bfloat16"]
Matrix = Literal["query", "key", "value", "output", "gate", "up", "down"]
Devices = Annotated[int, Range(1)] | Literal[-1]


class Settings:
    """All settings of a run: those without a section, then the sections.

    method: how the policy learns: coevolve by GRPO; coevolving, eto, rft and sft in rounds (section preference);
        best_of_n not at all
    steps: training steps; a larger number extends a finished run
    batch_size: tasks a step
    group_size: episodes of each task, K; an advantage is relative to the group
    initial_tasks: tasks in D_0, N
    evolve: what guides the explorer
    evolve_every: steps between evolutions, F
    signals: the signals in use, separated by commas
    validate: whether drafts are validated; False is the ablation
    seed: decides all random choices
    staleness: N: a step's episodes are played with weights N updates behind, while earlier steps train
    quorum: share of each group that an update waits for; other episodes are abandoned
    dynamic_sampling: the most groups that a step samples to get batch_size live ones (whose rewards differ); it learns
        only from live groups (DAPO); 0 is off
    episodes: the most training episodes of a run, in whole groups, probes left out; once they are used up, steps learn
        nothing but evolve; 0 is no limit
    environment_steps: the most environment steps (actions) of all training episodes, both agents' together, probes left
        out; the step that reaches it is played to its end; later ones learn nothing but evolve; 0 is no limit
    fresh_fraction: share of a batch that is drawn from the newest tasks
    curriculum: how the other tasks of a batch are drawn
    workdir: the run directory
    checkpoint_every: steps between checkpoints
    checkpoints_kept: newest checkpoints kept
    episodes_kept: newest steps whose episodes are kept; 0 keeps all
    mismatch_alarm: warn above this mean |log-prob trainer − sampler| of a step; 0 is never
    accept_changed_code: resume a run although a file of your own that it uses, its loss for example, has changed
    initial_explorer: the explorer that finds D_0, e.g. scripted; "" is explorer.name
    perturbation: above 0: flips the last bit of half of the initial parameters, drawn by this number, to measure what
        rounding alone changes; 0 flips none
    same_bits: on a CPU, compute what every x86-64 processor with AVX2 computes, to the bit (docs/bits.md)
    policy: a preset of cojax/settings/presets.toml, or ""
    """

    # One training run: its steps, its task set and how it evolves.
    method: Literal["coevolve", "coevolving", "eto", "rft", "sft", "best_of_n"] = "coevolve"
    steps: Number = 120
    batch_size: Count = 32
    group_size: AtLeast2 = 8
    initial_tasks: Count = 100
    evolve: str = "feedback"
    evolve_every: Count = 10
    signals: str = "forgetting,boundary,rare"
    validate: bool = True
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] = 0
    staleness: Number = 0
    quorum: PositiveShare = 1.0
    dynamic_sampling: Number = 0
    episodes: Number = 0
    environment_steps: Number = 0
    fresh_fraction: Share = 0.0
    curriculum: str = "uniform"

    # Where a run is stored, which of its files are kept, when it warns, and how it begins.
    workdir: str = "runs/base"
    checkpoint_every: Count = 10
    checkpoints_kept: Count = 3
    episodes_kept: Number = 0
    mismatch_alarm: AtLeast0 = 0.1
    accept_changed_code: bool = False
    initial_explorer: str = ""
    perturbation: Number = 0
    same_bits: bool = False

    # The size of policy: a preset sets several settings together, but a flag overrides it.
    policy: str = ""

    class learner:
        """Loss, advantage and weighting, and how a batch goes through the model.

        loss: the loss
        advantage: the advantage
        weighting: the weight of each token; group_token_mean is Eq. 1
        row_length: tokens per packed row; the longest episode must fit into a row
        micro_rows: rows per micro-batch
        updates_per_batch: optimiser updates per step; at 1 (ours) the ratio to the old policy is 1, and no clip
            binds (docs/learner.md)
        each_update: with several updates per step: each uses the whole batch, or its own part of the groups
        skip_steps: numbers of steps that make no update, to get past a step whose loss is not finite
        remat: what the backward pass recomputes of each layer: nothing; all but its matrix products and attention
            kernels; all but attention kernels; everything (inputs); or the least of the first three with which an
            update fits into memory, with fewer micro_rows if need be, determined at each start
        routes: for a model with experts, whose choice of experts an update uses: own: the learner's; compared: the
            learner's, with the metric routes_differing for differences to the sampler's; replayed: the sampler's
            (docs/learner.md)
        """

        loss: str = "grpo"
        advantage: str = "group_relative"
        weighting: str = "group_token_mean"
        row_length: AtLeast2 = 4096
        micro_rows: Count = 8
        updates_per_batch: Count = 1
        each_update: Literal["whole", "part"] = "whole"
        skip_steps: tuple[Count, ...] = ()
        remat: Literal["none", "dots", "layers", "inputs", "auto"] = "layers"
        routes: Literal["own", "compared", "replayed"] = "own"

        class lora:
            """Adapters that are trained while the model's matrices stay frozen in model.dtype.

            rank: 0 is off
            alpha: adapters are scaled by alpha / rank
            targets: the matrices that get adapters; () is all
            """

            rank: Number = 0
            alpha: Above0 = 16.0
            targets: tuple[Matrix, ...] = ()

    class optimizer:
        """AdamW, after clipping the gradient's norm. All but the rate are ours: we know no other of the paper's.

        learning_rate: the highest rate
        warmup_steps: updates over which the rate rises linearly
        decay_steps: updates over which the rate falls linearly to a tenth; 0: constant
        weight_decay: of matrices and embeddings, not of norms and biases
        clip_norm: largest global norm of the gradient
        moments_dtype: storage dtype of both moments; "" is the parameters'
        """

        learning_rate: AtLeast0 = 1e-06
        warmup_steps: Number = 0
        decay_steps: Number = 0
        weight_decay: AtLeast0 = 0.0
        clip_norm: Above0 = 1.0
        moments_dtype: DType = ""

    class sampling:
        """How the policy samples in training; never with top-k, top-p or a penalty.

        temperature: temperature of the distribution, in sampling and in the loss
        max_tokens: most tokens of one action
        """

        temperature: Above0 = 0.9
        max_tokens: Count = 4096

    class limits:
        """Limits of one episode, and how many episodes may be lost.

        max_turns: most turns of an episode
        environment_deadline: for one call of the environment; None: as it says itself, or else 60
        engine_deadline: for one completion
        retries: how often an episode lost to the infrastructure is played again
        error_rate: share of lost episodes above which a step fails
        concurrency: episodes played in parallel
        """

        max_turns: Count = 30
        environment_deadline: Seconds | None = None
        engine_deadline: Seconds = 600.0
        retries: Number = 1
        error_rate: Share = 0.3
        concurrency: Count = 128

    class synthesis:
        """How much an evolution explores.

        contexts: expeditions per evolution, times candidates with a probe (ours)
        budget: most tasks that an evolution adds, after admission (ours; we know of none in the paper)
        per_context: most tasks from one expedition (ours)
        admit: which of the tasks found enter the pool: all, or those that a probe chooses
        prefix_replay: episodes of joined tasks (evolve=frontier) begin with the first actions of the solution, which
            are not learned; their number keeps success near one half
        select: which signals to follow if there are more than contexts (ours; the paper follows all)
        """

        contexts: Annotated[int, Range(1, 10_000)] = 40
        budget: Count = 40
        per_context: Count = 2
        admit: str = "all"
        prefix_replay: bool = False
        select: str = "confident"

    class environment:
        """The environment. Its own settings are in the same section as its name.

        name: the environment
        cluster: a Ray cluster on whose nodes episodes are played, ray://HOST:PORT, or HOST:PORT or auto on a host of it
            (docs/deploy.md); "": on this host
        """

        name: str = ""
        cluster: str = ""

    class model:
        """The policy's model: a model folder, or a small model trained from scratch.

        path: a folder in HF format; "" is a policy of model.shape from scratch
        tools: how much of the tools' documentation the policy sees
        tokenizer: tokenizer of a policy from scratch
        vocabulary: most entries of the tokenizer `bytes`
        dtype: dtype of computations; "" is the folder's own, float32 from scratch; auto is bfloat16 where this machine
            computes it faster, else float32; a run keeps what it began with
        param_dtype: dtype of parameters; "" is the folder's own, float32 from scratch
        """

        path: str = ""
        tools: Literal["full", "brief", "none"] = "full"
        tokenizer: Literal["words", "bytes"] = "words"
        vocabulary: Count = 4096
        dtype: Literal["", "auto", "float32", "bfloat16"] = ""
        param_dtype: DType = "float32"

        class shape:
            """The sizes of a policy from scratch.

            hidden_size: as in config.json of the HF format
            intermediate_size: as in config.json of the HF format
            num_hidden_layers: as in config.json of the HF format
            num_attention_heads: as in config.json of the HF format
            num_key_value_heads: as in config.json of the HF format
            """

            hidden_size: Number = 0
            intermediate_size: Number = 0
            num_hidden_layers: Number = 0
            num_attention_heads: Number = 0
            num_key_value_heads: Number = 0

    class warm_start:
        """Supervised training before the run: of a policy from scratch, or on the pretrained weights of model.path.

        steps: most batches; 0 begins with random parameters, or with the model folder as it is
        split: the split whose solutions are demonstrations; `initial` is D_0, "" the environment's own demonstrator
        """

        steps: Number = 0
        split: str = ""

    class engine:
        """What samples the policy's tokens. --config.engine=NAME is short for --config.engine.name=NAME.

        name: the engine
        slots: conversations in parallel; None: as many as free memory holds, at most 128 and no more than
            limits.concurrency needs; of servers 128
        lanes: threads of the local engine, each with its share of the slots; on a mesh as many for each of its data ×
            fsdp × context replicas, and 1 where these have several devices
        prefill_rows: prompts whose tokens the local engine reads at a time; rows that are empty take as long as full
            ones
        max_length: most tokens of a conversation
        cache_tokens: tokens of all conversations that the local engine's cache holds, where max_length exceeds 512; a
            conversation that finds no page waits, or makes room on the host; None: slots × max_length
        """

        name: str = "local"
        slots: Count | None = None
        lanes: Count = 1
        prefill_rows: Count = 16
        max_length: AtLeast2 = 4096
        cache_tokens: Count | None = None

    class mesh:
        """Devices over which parameters and rows are sharded. All 1 is one device; one may be -1: all remaining
        devices.

        data: number of devices over which rows are split
        fsdp: number of devices over which rows and parameters are split
        context: number of devices over which the tokens of each row are split, and parameters as by fsdp
        tensor: number of devices over which each matrix is split
        expert: number of devices over which experts are split
        """

        data: Devices = 1
        fsdp: Devices = 1
        context: Devices = 1
        tensor: Devices = 1
        expert: Devices = 1

    @dataclasses.dataclass(frozen=True)
    class distributed:
        """Several processes that train one policy; --config.distributed=true is short for .enabled=True (docs/pods.md).

        enabled: the run has several processes; implied by `coordinator`
        coordinator: HOST:PORT of process 0; "": as JAX finds it from Slurm, Open MPI, an indexed Job or a TPU pod
        processes: number of processes; None: as JAX finds it
        process: number of this process, from 0 on; None: as JAX finds it
        startup: for all processes to find each other, and to see the workdir
        silence: without a sign of life, after which a process counts as lost
        deadline: for one computation or checkpoint of all processes, compilation included; then all end
        """

        enabled: bool = False
        coordinator: str = ""
        processes: Count | None = None
        process: Number | None = None
        startup: Seconds = 300.0
        silence: Seconds = 60.0
        deadline: Seconds = 3600.0

    class explorer:
        """What explores and writes tasks. --config.explorer=NAME is short for --config.explorer.name=NAME.

        name: the explorer; scripted is ours, the paper's is a language model
        runs: episodes per expedition (ours)
        steps: most actions of an episode (ours)
        ending: the tool that ends an episode; "" if an action without a call ends it. Where the environment states its
            own ending, that one holds
        width: expeditions in parallel, independent of limits.concurrency; they do not see each other's results. None: 2
            for llm and policy, otherwise 1; no more than the environment says it can have
        """

        name: str = "scripted"
        runs: Count = 4
        steps: Count = 8
        ending: str = "finish"
        width: Count | None = None

    class validation:
        """The checks that a draft must pass to become a task. Executing it is the paper's; the others are ours.

        attempts: attempts at each draft of a model, which see nothing but its query; None is 2, 0 is the paper
        attempter: who makes these attempts
        attackers: attackers of `cojax audit` that a draft must withstand, separated by commas; null and drop always are
        judge: a model's opinion of each draft: none, noted as evidence, or a veto
        evaluation_similarity: a query with a greater cosine to an evaluation task's is refused; 0 compares nothing
        evaluation_words: no draft's query may contain an evaluation query of at least this many words; 0 allows all
        pool_similarity: a query with a greater cosine to a pool task's on the same setup is refused; 0 compares nothing
        safe: set drafts aside that a person should review first
        longest_query: most characters of a query
        """

        attempts: Number | None = None
        attempter: Literal["explorer", "policy"] = "explorer"
        attackers: str = ""
        judge: Literal["off", "note", "veto"] = "off"
        evaluation_similarity: Cosine = 0.7
        evaluation_words: Number = 5
        pool_similarity: Cosine = 0.95
        safe: bool = True
        longest_query: Annotated[int, "a number of characters", Range(1, 100_000)] = 4000

    class evaluation:
        """The final evaluation on `split`, and the development curve on `dev_split`.

        With `trials` above 1, a task that the final policy fails is tried again, at sampling.temperature. With
        `reflect` the policy writes a note before each further trial (Reflexion). The results of further trials use the
        verdict on each trial, and are reported apart from the final one.

        split: the split of the final evaluation
        tasks: number of tasks of `split`
        seed: for generated splits (the desk's): chooses their tasks
        temperature: sampling temperature of evaluations
        trials: most trials of a task in the final evaluation
        reflect: the policy writes a note before each further trial
        dev_split: the split of the development curve
        dev_tasks: number of tasks of `dev_split`
        every: steps between two points of the development curve; 0 is never
        challenge_split: a harder split
        challenge_tasks: number of tasks of `challenge_split`
        by: a key of a task's setup: success is also given for each of its values
        """

        split: str = "eval"
        tasks: Count = 1000
        seed: int = 0
        temperature: AtLeast0 = 0.0
        trials: Count = 1
        reflect: bool = False
        dev_split: str = "dev"
        dev_tasks: Count = 200
        every: Number = 20
        challenge_split: str = "challenge"
        challenge_tasks: Number = 0
        by: str = ""

    class quality:
        """Metrics of the pool after each evolution: its diversity, and its similarity to the evaluation tasks.

        k: number of nearest neighbours in SR@k
        embedding: local: hashed n-grams, no model; endpoint: quality.model at quality.base_url, which also receives the
            queries of the evaluation tasks
        """

        k: Count = 5
        embedding: Literal["local", "endpoint"] = "local"

    class wandb:
        """Sends the metrics to Weights & Biases as well. WANDB_NAME and WANDB_MODE name the run and its mode.

        project: the project; "" is off
        """

        project: str = ""

    class preference:
        """Learning from preferences: in rounds, and beside the groups of coevolve.

        hard_negatives: with method=coevolve: weight of DPO of a success over a hard negative of its group; 0 is off
            (ours)
        tasks: static: D_0 alone (paper); growing: it evolves by `evolve`, around the target's episodes (ours)
        """

        hard_negatives: AtLeast0 = 0.0
        tasks: Literal["static", "growing"] = "static"


DistributedSettings = Settings.distributed

# Settings that only one entry reads. They share a section with others, and are set in the same way.


class ScriptedSettings:
    """The explorers `scripted` and `careless`, which have no model.

    stretch: numbers of actions by which a draft's length may differ from its parent's
    longest: most actions of a draft that nothing guides
    cut: probability that a user turn ends after a step of a draft
    """

    stretch: tuple[int, ...] = (-1, 0, 1, 2)
    longest: Count = 3
    cut: Share = 0.0


class CarelessSettings:
    """The explorer `careless`.

    mistakes: probability that a draft confuses two names
    """

    mistakes: Share = 0.3


class ModelExplorerSettings:
    """The explorers `llm` and `policy`.

    separator: text between user turns of a query; "": a query has one turn
    shortest: fewest actions of a draft
    """

    separator: str = ""
    shortest: Count = 3


@dataclasses.dataclass(frozen=True)
class LLMSettings:
    """The model of explorer=llm; explorer=policy uses the limits. The API key is read from OPENAI_API_KEY.

    Budgets are for one evolution; the search for D_0 counts as one. 40 contexts of 4 runs of 8 steps take about four
    million tokens.

    base_url: an OpenAI-compatible endpoint, http://HOST:PORT/v1
    model: the name of the model at the endpoint
    timeout: for one request
    deadline: for one evolution
    concurrency: requests in parallel
    max_tokens: most tokens of one reply
    max_tokens_per_evolution: most tokens of an evolution, prompts included
    max_requests_per_evolution: most requests of an evolution
    temperature: temperature of replies
    price_in: price per million prompt tokens, for the cost in the metrics
    price_out: price per million reply tokens
    send_schema: False for an endpoint that refuses response_format
    send_seed: False for an endpoint that refuses seed
    """

    base_url: str = ""
    model: str = ""
    timeout: Seconds = 120.0
    deadline: Seconds = 3600.0
    concurrency: Count = 8
    max_tokens: Count = 2048
    max_tokens_per_evolution: Count = 10000000
    max_requests_per_evolution: Count = 10000
    temperature: AtLeast0 = 0.7
    price_in: AtLeast0 = 0.0
    price_out: AtLeast0 = 0.0
    send_schema: bool = True
    send_seed: bool = True


@dataclasses.dataclass(frozen=True)
class SGLangSettings:
    """Servers for engine.name=sglang: running ones, or ones launched on this host.

    urls: running servers, http://HOST:PORT,…; "" launches sglang.servers on this host
    router: sglang-router's address, which completion requests go to; without `urls` its servers are those used
    servers: number of servers to launch
    python: an interpreter with SGLang; "" is the one of `make sglang`, which serves on the CPU
    device: cpu, or "" to leave the choice to SGLang and `flags`
    flags: more flags of sglang.launch_server, e.g. "--tp 4 --base-gpu-id {index}"
    port: port of the first launched server; 0: any free ports
    dtype: dtype of the weights that servers load; "" is the policy's own
    folder: folder of weights/ and logs, with the same path for every server; "" is the workdir
    follow: servers at `urls` load new weights from `folder` by themselves (experiments.serve)
    sync: folder: process 0 writes a model folder; orbax: all processes save together, each its part, and
        experiments.serve restores it, for which `follow` is needed; "": orbax with several processes and `follow`
    local: where experiments.serve keeps model folders that it made itself; "": /dev/shm where they fit into memory,
        else the temporary folder
    startup_deadline: for a server to start
    sync_deadline: for a server to load new weights
    probe_every: between two checks of a server's health
    restarts: most restarts of each launched server
    mixed: keep completions during which weights changed, instead of sampling them again
    release_memory: servers release the memory of weights and cache while the learner works
    """

    urls: str = ""
    router: str = ""
    servers: Count = 1
    python: str = ""
    device: str = ""
    flags: str = ""
    port: Annotated[int, Range(0, 65_535)] = 0
    dtype: Literal["", "float32", "bfloat16", "float16"] = ""
    folder: str = ""
    follow: bool = False
    sync: Literal["", "folder", "orbax"] = ""
    local: str = ""
    startup_deadline: Seconds = 600.0
    sync_deadline: Seconds = 600.0
    probe_every: Seconds = 10.0
    restarts: Number = 5
    mixed: bool = False
    release_memory: bool = False


@dataclasses.dataclass(frozen=True)
class RoundsSettings:
    """How every method but coevolve learns: in rounds, each of which is a step, from pairs or from experts.

    beta: β of DPO (ETO, round 1)
    dpo: λ_DPO, the weight of DPO; None: 0.5 (reviews), for eto 1 (ETO)
    sft: λ_SFT, the weight of imitating a pair's expert; None: 0.5 (reviews), for eto 0 (ETO)
    own: weight of pairs of an expert and the agent's own failure (ours)
    other: weight of pairs of an expert and the other agent's failure (ours)
    failures: weight of pairs of two failures (ours)
    margin: a failure is preferred over another one whose partial reward is lower by more than this (ours)
    extra_turns: turns of a failure that count beyond the number that its expert has (ETO)
    reference: DPO's reference: the policy at the beginning of the round, or the initial one (ETO)
    agent: the second agent: failure learns from failures alone, positive learns as the target does, none (paper)
    share: share of each group's episodes that the second agent plays (ours)
    experts: experts: solutions of tasks, successes of the round, or both: these where a task has no solution (paper)
    epochs: how often a round learns each of its examples (ETO)
    batch_size: pairs or trajectories of an update (ETO)
    learning_rate: of rounds, in place of optimizer.learning_rate (ETO)
    hard: partial reward from which on a failure is a hard negative (paper)
    """

    beta: Above0 = 0.1
    dpo: Above0 | None = None
    sft: AtLeast0 | None = None
    own: AtLeast0 = 1.0
    other: AtLeast0 = 1.0
    failures: AtLeast0 = 1.0
    margin: Share = 0.0
    extra_turns: Number = 5
    reference: Literal["round", "initial"] = "round"
    agent: Literal["failure", "positive", "none"] = "failure"
    share: PositiveShare = 0.5
    experts: Literal["solutions", "successes", "both"] = "solutions"
    epochs: Count = 3
    batch_size: Count = 32
    learning_rate: AtLeast0 = 1e-06
    hard: Share = 0.6


class TeachingSettings:
    """What a warm start shows the policy, and when it ends.

    batch_size: demonstrations per batch
    lengthen: batches over which demonstrations are added, from the shortest to the longest
    check_every: batches between two scores on the development split
    target: success on the development split at which training stops
    check_tasks: development tasks per score
    demonstrations: number of demonstrations; for a model folder few are enough, e.g. 272
    noise_low: share of wrong actions of the demonstrator at the most popular skill
    noise_high: share of wrong actions of the demonstrator at the least popular skill
    learning_rate: first learning rate from scratch; it falls linearly to a twentieth
    pretrained_learning_rate: first learning rate on all weights of a model folder; it falls linearly to a twentieth
    epochs: learn every demonstration once, in random order, before any is learned again; needs lengthen=0
    """

    batch_size: Count = 32
    lengthen: Number = 200
    check_every: Count = 150
    target: AtLeast0 = 1.0
    check_tasks: Count = 200
    demonstrations: Count = 8000
    noise_low: Share = 0.1
    noise_high: Share = 0.85
    learning_rate: AtLeast0 = 0.003
    pretrained_learning_rate: AtLeast0 = 0.0003
    epochs: bool = False


class TeachingLoraSettings:
    """Adapters that learn in a warm start on a model folder, and are then summed into its matrices.

    rank: 0 is off: all weights learn
    learning_rate: first learning rate of the adapters; it falls linearly to a twentieth
    """

    rank: Number = 0
    learning_rate: AtLeast0 = 0.002


class EmbeddingSettings:
    """The embedding `endpoint`.

    base_url: an OpenAI-compatible endpoint; its key is OPENAI_API_KEY
    model: the name of the embedding model at the endpoint
    """

    base_url: str = ""
    model: str = ""


# Section, the entries that read these settings, and the class that declares them.
ENTRIES: Sequence[tuple[str, str, type]] = (
    ("explorer", "explorers scripted, careless", ScriptedSettings),
    ("explorer", "explorer careless", CarelessSettings),
    ("explorer", "explorers llm, policy", ModelExplorerSettings),
    ("llm", "explorer llm", LLMSettings),
    ("sglang", "engine sglang", SGLangSettings),
    ("preference", "methods of rounds", RoundsSettings),
    ("warm_start", "a warm start", TeachingSettings),
    ("warm_start.lora", "a warm start", TeachingLoraSettings),
    ("quality", "embedding endpoint", EmbeddingSettings),
)
# Open section → the entry whose keywords it sets. The entry's signature declares their names and ranges.
OPEN_SECTIONS: Mapping[str, str] = {
    "environment": "environment.name, e.g. --config.environment.isolated=True",
    "learner.loss_settings": "learner.loss",
    "learner.advantage_settings": "learner.advantage",
    "learner.weighting_settings": "learner.weighting",
    "curriculum_settings": "curriculum",
    "evolve_settings": "evolve",
    "admission_settings": "synthesis.admit",
    "signal_settings": "each signal, under its name, e.g. --config.signal_settings.forgetting.window=5; the name of "
    "package.module:name is `name`",
}


class Leaf(NamedTuple):
    """One setting. `range` is an annotation as cojax.registry.annotations reads it."""

    default: Any
    range: Any
    meaning: str


def _list_sections(section_class: type, name: str = "") -> Iterator[tuple[str, type]]:
    """Yields the section and those within it, by their dotted names."""
    yield name, section_class
    for key, value in vars(section_class).items():
        if isinstance(value, type):
            yield from _list_sections(value, f"{name}.{key}".lstrip("."))


def read_purpose(section_class: type) -> str:
    """Returns a section's purpose: its docstring without the meanings of settings, in lines of docs/settings.md."""
    paragraphs = _split_docstring(section_class)[0].strip().split("\n\n")
    return "\n\n".join(textwrap.fill(paragraph, 116) for paragraph in paragraphs)


def read_leaves(section_class: type) -> dict[str, Leaf]:
    """The settings of a section by name, without those of sections within it."""
    _, *pieces = _split_docstring(section_class)
    meaning_by_name = {name: " ".join(meaning.split()) for name, meaning in zip(pieces[::2], pieces[1::2], strict=True)}
    return {
        name: Leaf(getattr(section_class, name), annotation, meaning_by_name.get(name, ""))
        for name, annotation in inspect.get_annotations(section_class).items()
    }


def _split_docstring(section_class: type) -> list[str]:
    """The docstring of a section, split at its lines `name: meaning`: purpose, name, meaning, name, meaning, …"""
    return re.split(r"^(\w+): ", inspect.getdoc(section_class) or "", flags=re.MULTILINE)


# Dotted name → section; the settings without a section stand under "".
SECTIONS: dict[str, type] = dict(_list_sections(Settings))
# Every setting by its dotted name, those of entries after the others.
LEAVES: dict[str, Leaf] = {
    f"{name}.{leaf}".lstrip("."): declaration
    for name, section in (*SECTIONS.items(), *((name, section) for name, _, section in ENTRIES))
    for leaf, declaration in read_leaves(section).items()
}
SETTING_NAMES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
FREE_SETTINGS = frozenset(SETTING_NAMES["free"])
