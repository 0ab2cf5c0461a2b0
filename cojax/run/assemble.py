"""Builds a run's objects from its configuration. The objects themselves never see a ConfigDict."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax import worlds
from cojax.environment import Charted, Environment, traits_of
from cojax.explorer import Explorer, Metered, document_tools
from cojax.explorer.llm.chat_model import Journal
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.explorer.scripted.explorer import Ending
from cojax.host.stopwatch import Stopwatch
from cojax.learner.learner import Learner, find_route_shape
from cojax.learner.optimizer import adamw
from cojax.learner.placement import ONE_PROCESS, Hosts
from cojax.learner.rehearsal import AUTO_REMAT, choose_fastest, count_engine_bytes
from cojax.learner.update import TrainState
from cojax.loop import Loop
from cojax.loop.groups import PlayedCount
from cojax.policy.adapters import Lora
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params
from cojax.pool import RecentScores
from cojax.preference.rounds import Rounds
from cojax.quality import EMBEDDINGS, EmbeddingError, describe_pool
from cojax.registry import find
from cojax.report.console import show_bar
from cojax.rollout.chat import TOOL_DOCUMENTS, Chat
from cojax.run import explorers, methods, policies
from cojax.run import initial_policy as initial_policies
from cojax.run.changes import read_fork
from cojax.run.engines import check_routes
from cojax.run.entries import build_environment, build_signals, entry, objective_of, reads_initial
from cojax.run.parts import Parts, check_evolution, draw_own_tasks, make_limits, make_sampling, read_kinds
from cojax.run.processes import ALONE, Together, as_text, make_mesh_of
from cojax.run.summary import measure_development
from cojax.settings.base import choose, settings
from cojax.similarity import NearDuplicates
from cojax.storage.files import Log
from cojax.synthesis import MEMORIES, PREFIXES, Synthesis, evolutions, initial_tasks, reads
from cojax.synthesis.beliefs import predictor
from cojax.types import Task, setup_hash
from cojax.validation import Validation

_LOG = logging.getLogger(__name__)
# Settings of config.learner that are not passed to the learner under their own names.
_OBJECTIVE_SETTINGS = ("loss", "loss_settings", "advantage_settings", "weighting_settings")
# Settings without a section that are passed to the loop under their own names.
_LOOP_SETTINGS = (
    "seed", "steps", "batch_size", "group_size", "evolve_every", "fresh_fraction", "checkpoint_every", "staleness",
    "quorum", "dynamic_sampling", "episodes", "environment_steps",
)  # fmt: skip
_MOST_TOOLS_NAMED = 8
# More tasks than any finite split has.
_MAX_TASKS = 100_000


def build_parts(config: ConfigDict, together: Together = ALONE) -> Parts:
    """Builds environment, tokenizer, model shape and engine of a configuration that cojax/run/checks.py has checked.

    An engine whose maker has a parameter `hosts` samples on the devices of all processes `together`.

    Raises ValueError or OSError, with what to do about it.
    """
    environment = build_environment(config)
    check_evolution(config, environment)
    Ending.of(environment, explorers.find_ending(config, environment))  # raises before any expedition is paid for
    tokenizer, model = policies.read_model(config, environment)
    chat = Chat(tokenizer, TOOL_DOCUMENTS[config.model.tools])
    mesh = make_mesh_of(config)
    find_route_shape(config.learner.routes, model, objective_of(config).loss.name, objective_of(config).loss.routes)
    make_engine = entry(config, "engine.name").function
    reads_hosts = "hosts" in inspect.signature(make_engine).parameters
    engine = make_engine(config, model, **({"hosts": together.hosts} if reads_hosts else {}))
    check_routes(config, engine)
    evaluation = config.evaluation
    return Parts(
        environment,
        build_environment(config) if traits_of(environment).reuses else environment,
        chat,
        model,
        mesh,
        engine,
        make_limits(config, environment),
        environment.tasks(evaluation.split, evaluation.tasks, evaluation.seed),
        environment.tasks(evaluation.dev_split, evaluation.dev_tasks),
        environment.tasks(evaluation.challenge_split, evaluation.challenge_tasks) if evaluation.challenge_tasks else (),
        read_kinds(environment, build_signals(config)),
        together=together,
    )


def build_learner(config: ConfigDict, parts: Parts, params: Params) -> Learner:
    """Builds the learner of a policy that starts from `params`. If `learner.remat` is "auto", see `choose_remat`."""
    hosts = parts.together.hosts
    with hosts.operation("build", as_text(parts.model), params):
        return make_learner(config, parts.model, parts.mesh, params, hosts)


def make_learner(
    config: ConfigDict, model: ModelConfig, mesh: Mesh | None, params: Params, hosts: Hosts = ONE_PROCESS
) -> Learner:
    """Builds the learner of a model on a mesh. `params` may be `jax.ShapeDtypeStruct`s, as in `Learner.init`."""
    lora = Lora(**settings(config.learner.lora)) if config.learner.lora.rank else None
    method_and_settings = methods.rounds_of(config)
    optimizer, named_loss = settings(config.optimizer), (config.learner.loss, entry(config, "learner.loss").overrides)
    if method_and_settings:
        method, round_settings = method_and_settings
        # The number of updates of a round is not known in advance, so the learning rate stays constant.
        optimizer |= {"learning_rate": round_settings.learning_rate, "decay_steps": 0}
        named_loss = methods.find_round_loss(method, round_settings)
    return Learner(
        config=model,
        optimizer=adamw(**optimizer),
        temperature=config.sampling.temperature,
        reference=params if reads_initial(config) else None,
        lora=lora,
        mesh=mesh,
        hosts=hosts,
        seed=config.seed,
        loss=named_loss[0],
        loss_settings=named_loss[1],
        round_reference=method_and_settings[1].reference if method_and_settings else "",
        hard=methods.make_hard_negatives(config),
        advantage_settings=entry(config, "learner.advantage").overrides,
        weighting_settings=entry(config, "learner.weighting").overrides,
        remat="layers" if config.learner.remat == AUTO_REMAT else config.learner.remat,
        **settings(config.learner, "remat", "lora", *_OBJECTIVE_SETTINGS),
    )


def choose_remat(config: ConfigDict, learner: Learner, state: TrainState) -> Learner:
    """Returns the learner; if `learner.remat` is "auto", one that recomputes as little as memory allows.

    The engine's copies of the weights and a second agent's state must fit too. Several processes would have to agree on
    the free memory, so their learner recomputes every layer.
    """
    if config.learner.remat != AUTO_REMAT or learner.hosts is not ONE_PROCESS:
        return learner
    weight_bytes = count_engine_bytes(learner, state)
    if methods.has_second_agent(config):
        weight_bytes += sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    fastest_learner = choose_fastest(learner, state, methods.list_group_sizes(config), beside=weight_bytes)
    _LOG.info("learner.remat=auto chose %s, micro_rows=%d", fastest_learner.remat, fastest_learner.micro_rows)
    return fastest_learner


def initial_policy(
    config: ConfigDict, parts: Parts, find_d0: Callable[[], Synthesis]
) -> tuple[Params, Mapping[str, Any]]:
    """Returns the policy before the first step. `find_d0` finds D_0, whose solutions a warm start may use.

    A perturbation follows the warm start, so runs that differ only in their perturbation share one warm start.
    """

    def score(step: int) -> float:
        # Without development tasks, success on D_0 decides when the warm start ends.
        tasks = parts.development or find_d0().tasks
        return measure_development(config, parts, step, tasks[: config.warm_start.check_tasks])["success"]

    params, origin = initial_policies.initial_policy(config, parts, score, lambda: find_d0().tasks)
    return perturb(params, config.perturbation), origin


def find_initial_tasks(config: ConfigDict, parts: Parts, stop: Callable[[], bool] = lambda: False) -> Synthesis:
    """Finds D_0 by unguided exploration; where nothing can be synthesized, D_0 is the environment's own tasks.

    The search is deterministic: equal settings and equal replies of a model give equal tasks. Raises Interrupted soon
    after `stop` turns true.
    """
    if traits_of(parts.environment).incomparable:
        return draw_own_tasks(config, parts.environment, find_reserved_tasks(config, parts))
    chosen_explorer = build_explorer(config, parts, explorers.name_initial(config))
    try:
        with show_bar("D_0: drafts examined") as advance:
            return initial_tasks(
                parts.environment,
                chosen_explorer,
                build_validation(config, parts, chosen_explorer),
                config.initial_tasks,
                seed=(config.seed, "initial"),
                weights=find_popularity(parts.environment),
                per_context=config.synthesis.per_context if isinstance(chosen_explorer, Metered) else 1,
                near_duplicates=NearDuplicates(config.validation.pool_similarity),
                examined=advance,
                stop=stop,
            )
    except ValueError:
        # Running the command again then repeats the failed calls: the endpoint may work by that time.
        if isinstance(chosen_explorer, LLMExplorer):
            chosen_explorer.chat_model.reopen()
        raise


def word_absent_tools(environment: Environment, tasks: Iterable[Task]) -> str:
    """Which tools no solution of these tasks uses, in words; "" if each is used, or if no task has a solution."""
    used_tools = {call.name for task in tasks for action in task.solution for call in action.calls}
    tools = document_tools(environment)
    absent_tools = [name for name in tools if name not in used_tools]
    if not (used_tools and absent_tools):
        return ""
    names = ", ".join(absent_tools[:_MOST_TOOLS_NAMED]) + (", …" if len(absent_tools) > _MOST_TOOLS_NAMED else "")
    return f"it leaves out {len(absent_tools)} of {len(tools)} tools: {names}"


def build_explorer(config: ConfigDict, parts: Parts, name: str = "", journal: Journal | None = None) -> Explorer:
    """Builds the explorer `name`, by default config.explorer.name. If `journal` is given, it replaces the run's."""
    make_explorer = find("explorer", name or config.explorer.name, explorers.EXPLORERS)
    return make_explorer(config, parts, journal or Journal(Path(config.workdir) / "journal.jsonl"))


def build_validation(config: ConfigDict, parts: Parts, chosen_explorer: Explorer) -> Validation:
    """Builds the validation of this explorer's drafts."""
    return explorers.validation(config, parts, chosen_explorer, find_reserved_tasks(config, parts))


def find_popularity(environment: Environment) -> Mapping[str, float] | None:
    """How often each tool is used, as the environment reports it; None if it does not."""
    return environment.popularity() if isinstance(environment, Charted) else None


def build_loop(config: ConfigDict, parts: Parts, learner: Learner, clock: Stopwatch) -> Loop:
    """Builds the loop's fixed parts, in a fork without what is gone."""
    chosen_explorer = build_explorer(config, parts)
    evolve = entry(config, "evolve").bind() if methods.evolves(config) else evolutions.static
    prefix_replay = find("statistic", "prefixes", PREFIXES)() if config.synthesis.prefix_replay else None
    curriculum = None if config.curriculum == "uniform" else entry(config, "curriculum").bind()
    loop = Loop(
        environment=parts.environment,
        engine=parts.engine,
        chat=parts.chat,
        learner=learner,
        explorer=chosen_explorer,
        validate=build_validation(config, parts, chosen_explorer),
        detectors={
            **parts.signals,
            **({"visits": RecentScores()} if curriculum else {}),
            **({"played": PlayedCount()} if config.episodes or config.environment_steps else {}),
            **{statistic: find("statistic", statistic, MEMORIES)() for statistic in reads(evolve)},
            **({"prefixes": prefix_replay} if prefix_replay else {}),
        },
        kinds=parts.signals,
        evolve=evolve,
        reads=reads(evolve),
        admission=entry(config, "synthesis.admit").bind()(),
        popularity=find_popularity(parts.environment),
        sampling=make_sampling(config, parts.chat, config.sampling.temperature),
        limits=parts.limits,
        clock=clock,
        score_every=config.evaluation.every if parts.development else 0,
        score=lambda step: measure_development(config, parts, step, parts.development),
        quality=build_quality(config, parts.evaluation),
        curriculum=curriculum,
        mixed=config.engine.name == "sglang" and config.sglang.mixed,
        evolve_beside=config.staleness > 0 and not explorers.samples_policy(config),
        select=entry(config, "synthesis.select").bind(),
        predictor=functools.partial(predictor, environment=parts.environment, ending=chosen_explorer.ending),
        near_duplicates=NearDuplicates(config.validation.pool_similarity),
        closed=frozenset(map(setup_hash, parts.evaluation)) if parts.from_initial else frozenset(),
        **{setting: config[setting] for setting in _LOOP_SETTINGS},
        **({"prefix": prefix_replay.prefix} if prefix_replay else {}),
        **settings(config.synthesis, "select", "admit", "prefix_replay"),
    )
    return read_fork(Path(config.workdir)).apply(loop)


def build_rounds(config: ConfigDict, loop: Loop) -> Rounds | None:
    """Builds the rounds of a run that learns in rounds; None for any other run."""
    plan = methods.rounds_of(config)
    return Rounds(loop, *plan, max_tokens=min(config.engine.max_length, config.learner.row_length)) if plan else None


def find_reserved_tasks(config: ConfigDict, parts: Parts) -> Sequence[Task]:
    """Returns the tasks that must never be trained on.

    These are all tasks of the splits that the run evaluates, and of those that the environment reserves for
    evaluations, so that the policy can be evaluated on any of them. Of an unlimited generated split, such as the
    desk's, only the tasks that the run evaluates are reserved.
    """
    evaluated_tasks = (*parts.evaluation, *parts.development, *parts.challenge)
    splits: tuple[str, ...] = worlds.list_reserved(config.environment.name)
    if splits:
        splits = (*splits, *(config.evaluation[key] for key in ("split", "dev_split", "challenge_split")))
    split_tasks = (task for split in dict.fromkeys(splits) for task in parts.environment.tasks(split, _MAX_TASKS))
    return tuple({task.id: task for task in (*evaluated_tasks, *split_tasks)}.values())


def build_quality(config: ConfigDict, evaluation_tasks: Sequence[Task]) -> Callable[[Iterable[Task]], dict[str, Any]]:
    """Returns a function that measures the pool against these evaluation tasks, and keeps only numbers of them.

    If the embedding fails, the run logs a warning, leaves out the figures that need it, and goes on. An endpoint's
    vectors are stored in the run's embeddings.jsonl, without the texts.
    """
    section = config.quality
    vector_log = Log(Path(config.workdir) / "embeddings.jsonl")
    embed = choose(EMBEDDINGS, section.embedding, "quality.embedding")(section.base_url, section.model, vector_log)

    def measure_pool(pool: Iterable[Task]) -> dict[str, Any]:
        tasks = tuple(pool)
        try:
            return describe_pool(tasks, evaluation_tasks, embed, section.k)
        except (EmbeddingError, OSError) as error:
            _LOG.warning("the pool's diversity and its distance to the evaluation tasks are left out: %s", error)
            return describe_pool(tasks, evaluation_tasks, None, section.k)

    return measure_pool


def perturb(params: Params, seed: int) -> Params:
    """Flips the last bit of each floating-point number of `params` with probability ½, by the seed.

    In float32 a number x changes by at most 2⁻²³ |x|, as much as rounding a sum once may change it. Seed 0 flips
    nothing. The draws are made on the host, so every machine flips the same bits.
    """
    if not seed:
        return params
    generator = np.random.default_rng(seed)

    def flip_last_bits(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        integer_dtype = np.dtype(f"uint{8 * leaf.dtype.itemsize}")
        bits = np.asarray(leaf).view(integer_dtype) ^ generator.integers(0, 2, leaf.shape, integer_dtype)
        return jax.device_put(bits.view(leaf.dtype), leaf.sharding)

    return jax.tree.map(flip_last_bits, params)
