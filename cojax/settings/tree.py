"""Every setting of a run, once: its default, its range and its meaning.

A section is a class; sections nest as their dotted names do. The defaults are the paper's (CoEvolve, Table 9) where it
has one. An experiment overrides them. The configuration, flags, checks and docs/settings.md are derived from here.
`Loop`, `Learner`, `Limits` and `adamw` have the same defaults where somebody makes them by hand, which a test compares.
Wherever a setting names a loss, an advantage, a signal, a curriculum, a way to evolve, a selection of signals, an
explorer, an engine or an environment, `package.module:name` names one of your own.
"""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

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


def setting(default: Any, meaning: str, free: bool = False) -> Any:
    """A setting of a section: its annotation is its range. A `free` one may differ between two starts of a run."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "free": free})


@dataclasses.dataclass(frozen=True)
class LoraSettings:
    """Adapters that are trained while the model's matrices stay frozen in model.dtype."""

    rank: Number = setting(0, "0 is off")
    alpha: Above0 = setting(16.0, "adapters are scaled by alpha / rank")
    targets: tuple[Matrix, ...] = setting((), "the matrices that get adapters; () is all")


@dataclasses.dataclass(frozen=True)
class LearnerSettings:
    """Loss, advantage and weighting, and how a batch goes through the model."""

    loss: str = setting("grpo", "the loss")
    advantage: str = setting("group_relative", "the advantage")
    weighting: str = setting("group_token_mean", "the weight of each token; group_token_mean is Eq. 1")
    row_length: AtLeast2 = setting(4096, "tokens per packed row; the longest episode must fit into a row")
    micro_rows: Count = setting(8, "rows per micro-batch", free=True)
    updates_per_batch: Count = setting(
        1, "optimiser updates per step; at 1 the ratio to the old policy is 1, and no clip binds (docs/learner.md)"
    )
    each_update: Literal["whole", "part"] = setting(
        "whole", "with several updates per step: each uses the whole batch, or its own part of the groups"
    )
    skip_steps: tuple[Count, ...] = setting(
        (), "numbers of steps that make no update, to get past a step whose loss is not finite", free=True
    )
    remat: Literal["none", "dots", "layers", "auto"] = setting(
        "layers",
        "what the backward pass recomputes of each layer: nothing, all but its matrix products, everything, or "
        "the least with which an update fits into memory, determined at each start",
        free=True,
    )
    routes: Literal["own", "compared", "replayed"] = setting(
        "own",
        "for a model with experts, whose choice of experts an update uses: own: the learner's; compared: the "
        "learner's, with the metric routes_differing for differences to the sampler's; replayed: the sampler's "
        "(docs/learner.md)",
    )
    lora: LoraSettings = LoraSettings()


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, after clipping the gradient's norm."""

    learning_rate: AtLeast0 = setting(1e-06, "the highest rate", free=True)
    warmup_steps: Number = setting(0, "updates over which the rate rises linearly")
    decay_steps: Number = setting(
        0, "updates over which the rate falls linearly to a tenth; 0: constant, as in the paper"
    )
    weight_decay: AtLeast0 = setting(0.0, "of matrices and embeddings, not of norms and biases")
    clip_norm: Above0 = setting(1.0, "largest global norm of the gradient", free=True)
    moments_dtype: DType = setting("", 'storage dtype of both moments; "" is the parameters\'')


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """How the policy samples in training; never with top-k, top-p or a penalty."""

    temperature: Above0 = setting(0.9, "temperature of the distribution, in sampling and in the loss")
    max_tokens: Count = setting(4096, "most tokens of one action")


@dataclasses.dataclass(frozen=True)
class LimitSettings:
    """Limits of one episode, and how many episodes may be lost."""

    max_turns: Count = setting(30, "most turns of an episode")
    environment_deadline: Seconds | None = setting(
        None, "for one call of the environment; None: as it says itself, or else 60", free=True
    )
    engine_deadline: Seconds = setting(600.0, "for one completion", free=True)
    retries: Number = setting(1, "how often an episode lost to the infrastructure is played again", free=True)
    error_rate: Share = setting(0.3, "share of lost episodes above which a step fails", free=True)
    concurrency: Count = setting(128, "episodes played in parallel", free=True)


@dataclasses.dataclass(frozen=True)
class SynthesisSettings:
    """How much an evolution explores."""

    contexts: Annotated[int, Range(1, 10_000)] = setting(40, "expeditions per evolution, times candidates with a probe")
    budget: Count = setting(40, "most tasks that an evolution adds, after admission")
    per_context: Count = setting(2, "most tasks from one expedition")
    admit: str = setting("all", "which of the tasks found enter the pool: all, or those that a probe chooses")
    prefix_replay: bool = setting(
        False,
        "episodes of joined tasks (evolve=frontier) begin with the first actions of the solution, which are not "
        "learned; their number keeps success near one half",
    )
    select: str = setting("confident", "which signals to follow if there are more than contexts")


@dataclasses.dataclass(frozen=True)
class EnvironmentSettings:
    """The environment. Its own settings are in the same section as its name."""

    name: str = setting("", "the environment")
    cluster: str = setting(
        "",
        "a Ray cluster on whose nodes episodes are played, ray://HOST:PORT, or HOST:PORT or auto on a host of it "
        '(docs/cluster.md); "": on this host',
        free=True,
    )


@dataclasses.dataclass(frozen=True)
class ShapeSettings:
    """The sizes of a policy from scratch."""

    hidden_size: Number = setting(0, "as in config.json of the HF format")
    intermediate_size: Number = setting(0, "as in config.json of the HF format")
    num_hidden_layers: Number = setting(0, "as in config.json of the HF format")
    num_attention_heads: Number = setting(0, "as in config.json of the HF format")
    num_key_value_heads: Number = setting(0, "as in config.json of the HF format")


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """The policy's model: a model folder, or a small model trained from scratch."""

    path: str = setting("", 'a folder in HF format; "" is a policy of model.shape from scratch')
    tools: Literal["full", "brief", "none"] = setting("full", "how much of the tools' documentation the policy sees")
    tokenizer: Literal["words", "bytes"] = setting("words", "tokenizer of a policy from scratch")
    vocabulary: Count = setting(4096, "most entries of the tokenizer `bytes`")
    dtype: DType = setting("", 'dtype of computations; "" is the folder\'s own, float32 from scratch')
    param_dtype: DType = setting("float32", 'dtype of parameters; "" is the folder\'s own, float32 from scratch')
    shape: ShapeSettings = ShapeSettings()


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """Supervised training before the run: of a policy from scratch, or on the pretrained weights of model.path."""

    steps: Number = setting(0, "most batches; 0 begins with random parameters, or with the model folder as it is")
    split: str = setting(
        "", 'the split whose solutions are demonstrations; `initial` is D_0, "" the environment\'s own demonstrator'
    )


@dataclasses.dataclass(frozen=True)
class EngineSettings:
    """What samples the policy's tokens. --config.engine=NAME is short for --config.engine.name=NAME."""

    name: str = setting("local", "the engine")
    slots: Count | None = setting(
        None,
        "conversations in parallel; None: as many as free memory holds, at most 128 and no more than "
        "limits.concurrency needs; of servers 128",
        free=True,
    )
    lanes: Count = setting(
        1,
        "threads of the local engine, each with its share of the slots; on a mesh as many for each of its data × "
        "fsdp replicas, and 1 where these have several devices",
    )
    prefill_rows: Count = setting(
        16, "prompts whose tokens the local engine reads at a time; rows that are empty take as long as full ones"
    )
    max_length: AtLeast2 = setting(4096, "most tokens of a conversation")


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """Devices over which parameters and rows are sharded. All 1 is one device; one may be -1: all remaining devices."""

    data: Devices = setting(1, "number of devices over which rows are split")
    fsdp: Devices = setting(1, "number of devices over which rows and parameters are split")
    tensor: Devices = setting(1, "number of devices over which each matrix is split")
    expert: Devices = setting(1, "number of devices over which experts are split")


@dataclasses.dataclass(frozen=True)
class DistributedSettings:
    """Several processes that train one policy; --config.distributed=true is short for .enabled=True (docs/pods.md)."""

    enabled: bool = setting(False, "the run has several processes; implied by `coordinator`")
    coordinator: str = setting(
        "", 'HOST:PORT of process 0; "": as JAX finds it from Slurm, Open MPI, an indexed Job or a TPU pod'
    )
    processes: Count | None = setting(None, "number of processes; None: as JAX finds it")
    process: Number | None = setting(None, "number of this process, from 0 on; None: as JAX finds it")
    startup: Seconds = setting(300.0, "for all processes to find each other, and to see the workdir")
    silence: Seconds = setting(60.0, "without a sign of life, after which a process counts as lost")
    deadline: Seconds = setting(
        3600.0, "for one computation or checkpoint of all processes, compilation included; then all end"
    )


@dataclasses.dataclass(frozen=True)
class ExplorerSettings:
    """What explores and writes tasks. --config.explorer=NAME is short for --config.explorer.name=NAME."""

    name: str = setting("scripted", "the explorer")
    runs: Count = setting(4, "episodes per expedition")
    steps: Count = setting(8, "most actions of an episode")
    ending: str = setting(
        "finish",
        'the tool that ends an episode; "" if an action without a call ends it. Where the environment states its '
        "own ending, that one holds",
    )
    width: Count | None = setting(
        None,
        "expeditions in parallel, independent of limits.concurrency; they do not see each other's results. None: "
        "2 for llm and policy, otherwise 1; no more than the environment says it can have",
    )


@dataclasses.dataclass(frozen=True)
class ValidationSettings:
    """The checks that a draft must pass to become a task."""

    attempts: Number | None = setting(
        None, "attempts at each draft of a model, which see nothing but its query; None is 2, 0 is the paper"
    )
    attempter: Literal["explorer", "policy"] = setting("explorer", "who makes these attempts")
    judge: Literal["off", "note", "veto"] = setting(
        "off", "a model's opinion of each draft: none, noted as evidence, or a veto"
    )
    evaluation_similarity: Cosine = setting(
        0.7, "a query with a greater cosine to an evaluation task's is refused; 0 compares nothing"
    )
    evaluation_words: Number = setting(
        5, "no draft's query may contain an evaluation query of at least this many words; 0 allows all"
    )
    pool_similarity: Cosine = setting(
        0.95, "a query with a greater cosine to a pool task's on the same setup is refused; 0 compares nothing"
    )
    safe: bool = setting(True, "set drafts aside that a person should review first")
    longest_query: Annotated[int, "a number of characters", Range(1, 100_000)] = setting(
        4000, "most characters of a query"
    )


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """The final evaluation on `split`, and the development curve on `dev_split`.

    With `trials` above 1, a task that the final policy fails is tried again, at sampling.temperature. With `reflect`
    the policy writes a note before each further trial (Reflexion). The results of further trials use the verdict on
    each trial, and are reported apart from the final one.
    """

    split: str = setting("eval", "the split of the final evaluation")
    tasks: Count = setting(1000, "number of tasks of `split`")
    seed: int = setting(0, "for generated splits (the desk's): chooses their tasks")
    temperature: AtLeast0 = setting(0.0, "sampling temperature of evaluations")
    trials: Count = setting(1, "most trials of a task in the final evaluation")
    reflect: bool = setting(False, "the policy writes a note before each further trial")
    dev_split: str = setting("dev", "the split of the development curve")
    dev_tasks: Count = setting(200, "number of tasks of `dev_split`")
    every: Number = setting(20, "steps between two points of the development curve; 0 is never")
    challenge_split: str = setting("challenge", "a harder split")
    challenge_tasks: Number = setting(0, "number of tasks of `challenge_split`")
    by: str = setting("", "a key of a task's setup: success is also given for each of its values")


@dataclasses.dataclass(frozen=True)
class QualitySettings:
    """Metrics of the pool after each evolution: its diversity, and its similarity to the evaluation tasks."""

    k: Count = setting(5, "number of nearest neighbours in SR@k")
    embedding: Literal["local", "endpoint"] = setting(
        "local",
        "local: hashed n-grams, no model; endpoint: quality.model at quality.base_url, which also receives the "
        "queries of the evaluation tasks",
    )


@dataclasses.dataclass(frozen=True)
class WandbSettings:
    """Sends the metrics to Weights & Biases as well. WANDB_NAME and WANDB_MODE name the run and its mode."""

    project: str = setting("", 'the project; "" is off')


@dataclasses.dataclass(frozen=True)
class PreferenceSettings:
    """Learning from preferences: in rounds, and beside the groups of coevolve."""

    hard_negatives: AtLeast0 = setting(
        0.0, "with method=coevolve: weight of DPO of a success over a hard negative of its group; 0 is off (ours)"
    )
    tasks: Literal["static", "growing"] = setting(
        "static", "static: D_0 alone (paper); growing: it evolves by `evolve`, around the target's episodes (ours)"
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of a run: those without a section, then the sections."""

    # One training run: its steps, its task set and how it evolves.
    method: Literal["coevolve", "coevolving", "eto", "rft", "sft", "best_of_n"] = setting(
        "coevolve",
        "how the policy learns: coevolve by GRPO; coevolving, eto, rft and sft in rounds (section preference); "
        "best_of_n not at all",
    )
    steps: Number = setting(120, "training steps; a larger number extends a finished run", free=True)
    batch_size: Count = setting(32, "tasks a step")
    group_size: AtLeast2 = setting(8, "episodes of each task, K; an advantage is relative to the group")
    initial_tasks: Count = setting(100, "tasks in D_0, N")
    evolve: str = setting("feedback", "what guides the explorer")
    evolve_every: Count = setting(10, "steps between evolutions, F")
    signals: str = setting("forgetting,boundary,rare", "the signals in use, separated by commas")
    validate: bool = setting(True, "whether drafts are validated; False is the ablation")
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] = setting(0, "decides all random choices")
    staleness: Literal[0, 1] = setting(
        0, "1: the next step's episodes are played while this step's update runs, with weights one update behind"
    )
    quorum: PositiveShare = setting(1.0, "share of each group that an update waits for; other episodes are abandoned")
    dynamic_sampling: Number = setting(
        0,
        "the most groups that a step samples to get batch_size live ones (whose rewards differ); it learns only "
        "from live groups (DAPO); 0 is off",
    )
    episodes: Number = setting(
        0,
        "the most training episodes of a run, in whole groups, probes left out; once they are used up, steps "
        "learn nothing but evolve; 0 is no limit",
    )
    environment_steps: Number = setting(
        0,
        "the most environment steps (actions) of all training episodes, both agents' together, probes left out; "
        "the step that reaches it is played to its end; later ones learn nothing but evolve; 0 is no limit",
    )
    fresh_fraction: Share = setting(0.0, "share of a batch that is drawn from the newest tasks")
    curriculum: str = setting("uniform", "how the other tasks of a batch are drawn")

    # Where a run is stored, which of its files are kept, when it warns, and how it begins.
    workdir: str = setting("runs/base", "the run directory", free=True)
    checkpoint_every: Count = setting(10, "steps between checkpoints", free=True)
    checkpoints_kept: Count = setting(3, "newest checkpoints kept", free=True)
    episodes_kept: Number = setting(0, "newest steps whose episodes are kept; 0 keeps all", free=True)
    mismatch_alarm: AtLeast0 = setting(
        0.1, "warn above this mean |log-prob trainer − sampler| of a step; 0 is never", free=True
    )
    accept_changed_code: bool = setting(
        False, "resume a run although a file of your own that it uses, its loss for example, has changed", free=True
    )
    initial_explorer: str = setting("", 'the explorer that finds D_0, e.g. scripted; "" is explorer.name')
    perturbation: Number = setting(
        0,
        "above 0: flips the last bit of half of the initial parameters, drawn by this number, to measure what "
        "rounding alone changes; 0 flips none",
    )

    # The size of policy: a preset sets several settings together, but a flag overrides it.
    policy: str = setting("", 'a preset of cojax/settings/presets.py, or ""')

    # The sections.
    learner: LearnerSettings = LearnerSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    sampling: SamplingSettings = SamplingSettings()
    limits: LimitSettings = LimitSettings()
    synthesis: SynthesisSettings = SynthesisSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    model: ModelSettings = ModelSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    engine: EngineSettings = EngineSettings()
    mesh: MeshSettings = MeshSettings()
    distributed: DistributedSettings = DistributedSettings()
    explorer: ExplorerSettings = ExplorerSettings()
    validation: ValidationSettings = ValidationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    quality: QualitySettings = QualitySettings()
    wandb: WandbSettings = WandbSettings()
    preference: PreferenceSettings = PreferenceSettings()


# The settings of entries: what one entry alone reads. They stand in a section beside others, and are set as those are.


@dataclasses.dataclass(frozen=True)
class ScriptedSettings:
    """The explorers `scripted` and `careless`, which have no model."""

    stretch: tuple[int, ...] = setting(
        (-1, 0, 1, 2), "numbers of actions by which a draft's length may differ from its parent's"
    )
    longest: Count = setting(3, "most actions of a draft that nothing guides")
    cut: Share = setting(0.0, "probability that a user turn ends after a step of a draft")


@dataclasses.dataclass(frozen=True)
class CarelessSettings:
    """The explorer `careless`."""

    mistakes: Share = setting(0.3, "probability that a draft confuses two names")


@dataclasses.dataclass(frozen=True)
class ModelExplorerSettings:
    """The explorers `llm` and `policy`."""

    separator: str = setting("", 'text between user turns of a query; "": a query has one turn')
    shortest: Count = setting(3, "fewest actions of a draft")


@dataclasses.dataclass(frozen=True)
class LLMSettings:
    """The model of explorer=llm; explorer=policy uses the limits. The API key is read from OPENAI_API_KEY.

    Budgets are for one evolution; the search for D_0 counts as one. 40 contexts of 4 runs of 8 steps take about four
    million tokens.
    """

    base_url: str = setting("", "an OpenAI-compatible endpoint, http://HOST:PORT/v1", free=True)
    model: str = setting("", "the name of the model at the endpoint")
    timeout: Seconds = setting(120.0, "for one request", free=True)
    deadline: Seconds = setting(3600.0, "for one evolution", free=True)
    concurrency: Count = setting(8, "requests in parallel", free=True)
    max_tokens: Count = setting(2048, "most tokens of one reply")
    max_tokens_per_evolution: Count = setting(10000000, "most tokens of an evolution, prompts included", free=True)
    max_requests_per_evolution: Count = setting(10000, "most requests of an evolution", free=True)
    temperature: AtLeast0 = setting(0.7, "temperature of replies")
    price_in: AtLeast0 = setting(0.0, "price per million prompt tokens, for the cost in the metrics", free=True)
    price_out: AtLeast0 = setting(0.0, "price per million reply tokens", free=True)
    send_schema: bool = setting(True, "False for an endpoint that refuses response_format", free=True)
    send_seed: bool = setting(True, "False for an endpoint that refuses seed", free=True)


@dataclasses.dataclass(frozen=True)
class SGLangSettings:
    """Servers for engine.name=sglang: running ones, or ones launched on this host."""

    urls: str = setting("", 'running servers, http://HOST:PORT,…; "" launches sglang.servers on this host')
    router: str = setting(
        "", "sglang-router's address, which completion requests go to; without `urls` its servers are those used"
    )
    servers: Count = setting(1, "number of servers to launch")
    python: str = setting("", 'an interpreter with SGLang; "" is the one of `make sglang`, which serves on the CPU')
    device: str = setting("", 'cpu, or "" to leave the choice to SGLang and `flags`')
    flags: str = setting("", 'more flags of sglang.launch_server, e.g. "--tp 4 --base-gpu-id {index}"')
    port: Annotated[int, Range(0, 65_535)] = setting(0, "port of the first launched server; 0: any free ports")
    dtype: Literal["", "float32", "bfloat16", "float16"] = setting(
        "", 'dtype of the weights that servers load; "" is the policy\'s own'
    )
    folder: str = setting("", 'folder of weights/ and logs, with the same path for every server; "" is the workdir')
    follow: bool = setting(False, "servers at `urls` load new weights from `folder` by themselves (experiments.serve)")
    sync: Literal["", "folder", "orbax"] = setting(
        "",
        "folder: process 0 writes a model folder; orbax: all processes save together, each its part, and "
        'experiments.serve restores it, for which `follow` is needed; "": orbax with several processes and '
        "`follow`",
    )
    local: str = setting(
        "",
        'where experiments.serve keeps model folders that it made itself; "": /dev/shm where they fit into '
        "memory, else the temporary folder",
    )
    startup_deadline: Seconds = setting(600.0, "for a server to start")
    sync_deadline: Seconds = setting(600.0, "for a server to load new weights")
    probe_every: Seconds = setting(10.0, "between two checks of a server's health")
    restarts: Number = setting(5, "most restarts of each launched server")
    mixed: bool = setting(False, "keep completions during which weights changed, instead of sampling them again")
    release_memory: bool = setting(False, "servers release the memory of weights and cache while the learner works")


@dataclasses.dataclass(frozen=True)
class RoundsSettings:
    """How every method but coevolve learns: in rounds, each of which is a step, from pairs or from experts."""

    beta: Above0 = setting(0.1, "β of DPO (ETO, round 1)")
    dpo: Above0 | None = setting(None, "λ_DPO, the weight of DPO; None: 0.5 (reviews), for eto 1 (ETO)")
    sft: AtLeast0 | None = setting(
        None, "λ_SFT, the weight of imitating a pair's expert; None: 0.5 (reviews), for eto 0 (ETO)"
    )
    own: AtLeast0 = setting(1.0, "weight of pairs of an expert and the agent's own failure (ours)")
    other: AtLeast0 = setting(1.0, "weight of pairs of an expert and the other agent's failure (ours)")
    failures: AtLeast0 = setting(1.0, "weight of pairs of two failures (ours)")
    margin: Share = setting(
        0.0, "a failure is preferred over another one whose partial reward is lower by more than this (ours)"
    )
    extra_turns: Number = setting(5, "turns of a failure that count beyond the number that its expert has (ETO)")
    reference: Literal["round", "initial"] = setting(
        "round", "DPO's reference: the policy at the beginning of the round, or the initial one (ETO)"
    )
    agent: Literal["failure", "positive", "none"] = setting(
        "failure",
        "the second agent: failure learns from failures alone, positive learns as the target does, none (paper)",
    )
    share: PositiveShare = setting(0.5, "share of each group's episodes that the second agent plays (ours)")
    experts: Literal["solutions", "successes", "both"] = setting(
        "solutions",
        "experts: solutions of tasks, successes of the round, or both: these where a task has no solution (paper)",
    )
    epochs: Count = setting(3, "how often a round learns each of its examples (ETO)")
    batch_size: Count = setting(32, "pairs or trajectories of an update (ETO)")
    learning_rate: AtLeast0 = setting(1e-06, "of rounds, in place of optimizer.learning_rate (ETO)", free=True)
    hard: Share = setting(0.6, "partial reward from which on a failure is a hard negative (paper)")


@dataclasses.dataclass(frozen=True)
class TeachingSettings:
    """What a warm start shows the policy, and when it ends."""

    batch_size: Count = setting(32, "demonstrations per batch")
    lengthen: Number = setting(200, "batches over which demonstrations are added, from the shortest to the longest")
    check_every: Count = setting(150, "batches between two scores on the development split")
    target: AtLeast0 = setting(1.0, "success on the development split at which training stops")
    check_tasks: Count = setting(200, "development tasks per score")
    demonstrations: Count = setting(8000, "number of demonstrations; for a model folder few are enough, e.g. 272")
    noise_low: Share = setting(0.1, "share of wrong actions of the demonstrator at the most popular skill")
    noise_high: Share = setting(0.85, "share of wrong actions of the demonstrator at the least popular skill")
    learning_rate: AtLeast0 = setting(0.003, "first learning rate from scratch; it falls linearly to a twentieth")
    pretrained_learning_rate: AtLeast0 = setting(
        0.0003, "first learning rate on all weights of a model folder; it falls linearly to a twentieth"
    )
    epochs: bool = setting(
        False, "learn every demonstration once, in random order, before any is learned again; needs lengthen=0"
    )


@dataclasses.dataclass(frozen=True)
class TeachingLoraSettings:
    """Adapters that learn in a warm start on a model folder, and are then summed into its matrices."""

    rank: Number = setting(0, "0 is off: all weights learn")
    learning_rate: AtLeast0 = setting(0.002, "first learning rate of the adapters; it falls linearly to a twentieth")


@dataclasses.dataclass(frozen=True)
class EmbeddingSettings:
    """The embedding `endpoint`."""

    base_url: str = setting("", "an OpenAI-compatible endpoint; its key is OPENAI_API_KEY", free=True)
    model: str = setting("", "the name of the embedding model at the endpoint")


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
OPEN: Mapping[str, str] = {
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

# A setting of older releases → what it always is now, as JSON holds it, and what to do where that does not suffice.
GONE: Mapping[str, tuple[Any, str]] = {
    "warm_start.lora.alpha": (16.0, "scale warm_start.lora.learning_rate"),
    "warm_start.lora.targets": ([], "adapt all matrices"),
    "optimizer.decay_to": (0.1, "give cojax.learner.optimizer.adamw another share"),
    "llm.attempts": (4, "let a proxy repeat requests"),
    "explorer.window": (60_000, "give an explorer of your own another one"),
    "sglang.attempts": (6, "let a router repeat requests"),
    "wandb.name": ("", "set the variable WANDB_NAME"),
    "wandb.mode": ("online", "set the variable WANDB_MODE"),
}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One setting. `range` is an annotation as cojax.registry.annotations reads it."""

    default: Any
    range: Any
    meaning: str
    free: bool = False


def _sections(section: type, name: str = "") -> Iterator[tuple[str, type]]:
    """The section and those within it, by their dotted names."""
    yield name, section
    for field in dataclasses.fields(section):
        if dataclasses.is_dataclass(field.type):
            yield from _sections(typing.cast(type, field.type), f"{name}.{field.name}".lstrip("."))


def leaves_of(section: type) -> dict[str, Leaf]:
    """The settings of a section by name, without those of sections within it."""
    return {
        field.name: Leaf(field.default, field.type, **field.metadata)
        for field in dataclasses.fields(section)
        if not dataclasses.is_dataclass(field.type)
    }


# Dotted name → section; the settings without a section stand under "".
SECTIONS: dict[str, type] = dict(_sections(Settings))
# Every setting by its dotted name, those of entries after the others.
LEAVES: dict[str, Leaf] = {
    f"{name}.{leaf}".lstrip("."): about
    for name, section in (*SECTIONS.items(), *((name, section) for name, _, section in ENTRIES))
    for leaf, about in leaves_of(section).items()
}
# The sections and settings that may differ between two starts of one run; a larger `steps` extends a finished run.
# config.json notes every change under `history`. Those of a loss are to get past a step that fails.
FREE_SETTINGS = {
    *(name for name, leaf in LEAVES.items() if leaf.free), "wandb", "mesh", "sglang", "distributed",
    "learner.loss_settings.importance_cap", "learner.loss_settings.clip_low", "learner.loss_settings.clip_high",
}  # fmt: skip
