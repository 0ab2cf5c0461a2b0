"""Reports how a configuration's learner compiles for a target, and suggests what would make its programs fit.

The report gives the memory that the compiled programs take of each device, the bytes that they move and their cost.
"""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import math
import operator
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict
from rich.table import Table

from cojax.compile import program_text, targets
from cojax.compile.program_text import Collective, Program
from cojax.compile.targets import GIB, Chip, Target, lowered_for
from cojax.learner.batch import TrainBatch
from cojax.learner.learner import Learner
from cojax.learner.rehearsal import is_out_of_memory, make_full_batches
from cojax.learner.update import TrainState
from cojax.policy.attention import KERNELS
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import choose_chunk, count_states
from cojax.policy.parameters import parameters
from cojax.policy.sharding import SHARDS, check_divides, count_devices, find_platform, list_replicas, make_mesh
from cojax.policy.transformer import initialize
from cojax.run import assemble, checks, engines, methods, policies, trained
from cojax.run.entries import entry
from cojax.run.machine import read_facts
from cojax.run.processes import check_row_length, check_rows
from cojax.settings.base import put, settings

_COMPILER_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt", "tokamax")
_MEMORY_SHARE_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_LARGEST_MEMORY_SHARE = 0.92
_MIN_ROW_LENGTH = 1024
_LORA_RANK = 16
_MAX_CONTEXT = 8  # devices over which a suggestion splits a row
Settings = dict[str, Any]
# A configuration → its learner, and its abstract first state.
MakeLearner = Callable[[ConfigDict], tuple[Learner, TrainState]]


def report_target(config: ConfigDict, target: Target) -> dict[str, Any]:
    """The report of the configuration's learner on a target, with a suggestion if it does not fit.

    Raises ValueError for a configuration that cannot run, including a mesh that does not fit the target or the model,
    and ModuleNotFoundError if the target's compiler is missing.
    """
    config = methods.apply_method(config)
    checks.check_settings(config)
    model_config = shape(config)
    mesh = make_mesh(**settings(config.mesh), devices=targets.make_devices(target))
    check_rows(config, mesh)
    check_divides(model_config, mesh)
    learner, abstract_state = make_outline(config, model_config, mesh)
    engine = None
    if config.engine.name == "local":
        weight_bytes, token_bytes = engines.count_sampling_bytes(model_config, mesh)
        least_count = len(list_replicas(mesh)) * config.engine.max_length
        engine = EngineSizes(weight_bytes, token_bytes, config.engine.cache_tokens or least_count)
        if config.engine.slots and not config.engine.cache_tokens:
            engine = dataclasses.replace(engine, token_count=config.engine.slots * config.engine.max_length)
    group_sizes, agent_count = methods.list_group_sizes(config), methods.agents(config)
    figures = report(learner, abstract_state, group_sizes, target.chip, agents=agent_count, engine=engine)
    if not figures["fits"]:
        devices = list(mesh.devices.flat)
        figures["suggestion"] = suggestion(
            config, figures, target.chip,
            lambda variant: make_outline(variant, shape(variant), make_mesh(**settings(variant.mesh), devices=devices)),
        )  # fmt: skip
    return {**_describe_target(learner, target, mesh), **figures}


def shape(config: ConfigDict) -> ModelConfig:
    """The model's shape. A model folder needs its config.json alone; a policy from scratch needs its environment."""
    policies.check_folder(config)
    if config.model.dtype == "auto":
        config = config.copy_and_resolve_references()
        config.model.dtype = "bfloat16"  # what accelerators compute fastest
    if config.model.path:
        return trained.read_folder_shape(config, Path(config.model.path))
    environment = entry(config, "environment.name").bind()()
    return policies.read_model(config, environment)[1]


def make_outline(config: ConfigDict, model_config: ModelConfig, mesh: Mesh) -> tuple[Learner, TrainState]:
    """The learner and its abstract first state. Nothing is computed on the mesh."""
    params = jax.eval_shape(lambda: initialize(model_config, 0))
    learner = assemble.make_learner(config, model_config, mesh, params)
    return learner, learner.init(params)


def _describe_target(learner: Learner, target: Target, mesh: Mesh) -> dict[str, Any]:
    versions = {}
    for name in _COMPILER_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "target": target.name,
        "chip": target.chip.name,
        "devices": target.count,
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "method": "full" if learner.lora is None else f"LoRA {learner.lora.rank}",
        "loss": learner.loss,
        "reference": learner.reads_reference,
        "row_length": learner.row_length,
        "micro_rows": learner.micro_rows,
        "remat": learner.remat,
        "dtype": learner.config.dtype,
        "param_dtype": learner.config.param_dtype,
        "versions": versions,
        "commit": read_facts()["commit"],
    }


def suggestion(config: ConfigDict, figures: Mapping[str, Any], chip: Chip, make_variant: MakeLearner) -> dict[str, Any]:
    """The first change with which the learner is estimated to fit, or the fewest changes, applied in order.

    Arguments are exact. Of the temporaries the gradients and the results of kernels are exact, and all others are taken
    to be proportional to the tokens that go through the model at a time. So an estimate needs a compilation to confirm
    it. `settings` is empty if no change is estimated to fit.
    """
    base = make_variant(config)
    single_changes = list(list_changes(config, base[0], chip))
    joint_changes = list(itertools.accumulate(single_changes, operator.or_))[1:]
    for change in (*single_changes, *joint_changes):
        memory_share = float(change.get(_MEMORY_SHARE_VARIABLE, 0.0))
        limit_bytes = int(chip.memory * memory_share) if memory_share else chip.limit
        if (peak_bytes := estimate_peak(config, figures, base, change, make_variant)) <= limit_bytes:
            return {"settings": change, "bytes_peak_estimated": peak_bytes, "bytes_limit": limit_bytes}
    return {"settings": {}}


def list_changes(config: ConfigDict, learner: Learner, chip: Chip) -> Iterator[Settings]:
    """Yields changes that make an update smaller: first those that change no result, then lower precision, then
    shorter rows, and last adapters."""
    if chip.platform == "cuda" and chip.limit < int(chip.memory * _LARGEST_MEMORY_SHARE):
        yield {_MEMORY_SHARE_VARIABLE: _LARGEST_MEMORY_SHARE}
    if learner.remat in ("none", "dots"):
        yield {"learner.remat": "layers"}
    if _count_kernel_bytes(learner):
        yield {"learner.remat": "inputs"}
    if learner.micro_rows > (row_shards := learner.placement.row_shards):
        yield {"learner.micro_rows": row_shards}
    if config.mesh.data > 1:
        yield {"mesh.data": 1, "mesh.fsdp": row_shards}
    yield from _split_rows_further(learner)
    trains_all = learner.lora is None
    if trains_all and not config.optimizer.moments_dtype and learner.config.param_dtype == "float32":
        yield {"optimizer.moments_dtype": "bfloat16"}
    if trains_all and learner.config.param_dtype == "float32":
        yield {"model.param_dtype": "bfloat16"}
    if learner.config.dtype == "float32":
        yield {"model.dtype": "bfloat16"}
    row_length = learner.row_length // 2
    while row_length >= _MIN_ROW_LENGTH:
        yield {"learner.row_length": row_length, "engine.max_length": min(row_length, config.engine.max_length)}
        row_length //= 2
    if trains_all:
        yield {"learner.lora.rank": _LORA_RANK}


def _split_rows_further(learner: Learner) -> Iterator[Settings]:
    """Yields changes that split each row over 2, 4, … times as many devices, which hold the same parameters each."""
    loss, row_shards, factor = learner.objective.loss, learner.placement.row_shards, 2
    while not (loss.is_paired or loss.needs_groups or learner.hard is not None or row_shards % factor):
        part_count, shards = factor * count_devices(learner.mesh, "context"), row_shards // factor
        if part_count > _MAX_CONTEXT:
            break
        change = {"mesh.fsdp": shards, "mesh.context": part_count, "learner.micro_rows": shards}
        change |= {"mesh.data": 1} if count_devices(learner.mesh, "data") > 1 else {}
        with contextlib.suppress(ValueError):
            check_row_length(learner.row_length, part_count, learner.placement.devices[0], learner.config.dtype)
            yield change
        factor *= 2


def estimate_peak(
    config: ConfigDict,
    figures: Mapping[str, Any],
    base: tuple[Learner, TrainState],
    change: Mapping[str, Any],
    make_variant: MakeLearner,
) -> int:
    """Estimates a device's peak bytes with these settings, from the report without them."""
    variant_config = config.copy_and_resolve_references()
    with variant_config.unlocked(), variant_config.ignore_type():
        for setting_name, value in change.items():
            if setting_name != _MEMORY_SHARE_VARIABLE:
                put(variant_config, setting_name, value)
    variant = make_variant(variant_config)
    update_report = figures["programs"]["update"]
    tokens = [count_device_tokens(learner) for learner, _ in (base, variant)]
    gradient_bytes = [_count_gradient_bytes(*learner_and_state) for learner_and_state in (base, variant)]
    kernel_bytes = [_count_kernel_bytes(learner) for learner, _ in (base, variant)]
    counted_bytes = update_report["bytes_argument"] + gradient_bytes[0] + kernel_bytes[0]
    activation_bytes = max(0, update_report["bytes_peak"] - counted_bytes)
    state_bytes = methods.agents(config) * count_device_bytes(variant[1]) + count_device_bytes(variant[0].reference)
    # No change that is suggested splits a replica of the local engine over more devices.
    engine_bytes = figures.get("bytes_engine_weights", 0) + figures.get("bytes_cache", 0)
    return engine_bytes + state_bytes + gradient_bytes[1] + kernel_bytes[1] + activation_bytes * tokens[1] // tokens[0]


def count_device_tokens(learner: Learner) -> int:
    """Tokens of a micro-batch that go through the model on each device."""
    return learner.micro_rows * learner.row_length // learner.placement.token_shards


def _count_kernel_bytes(learner: Learner) -> int:
    """Bytes of a device that the results of attention kernels take, where the backward pass keeps them."""
    config, placement = learner.config, learner.placement
    if learner.remat == "inputs" or find_platform(placement.mesh) not in KERNELS:
        return 0
    token_count = count_device_tokens(learner)
    width = config.num_attention_heads * config.head_dim // count_devices(placement.mesh, "tensor")
    return config.num_hidden_layers * token_count * width * jnp.dtype(config.dtype).itemsize


def _count_gradient_bytes(learner: Learner, state: TrainState) -> int:
    """Bytes of a device that an update takes for any rows: the sum of the gradients, and the parameters cast once."""
    config = learner.config
    is_cast = learner.lora is None and config.dtype != config.param_dtype
    count = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(state.params))
    return count * (4 + is_cast * jnp.dtype(config.dtype).itemsize)


# Beginning of a kernel's name → the kernel's family.
_PREFIXES: Mapping[str, str] = targets.TARGET_TABLES["kernels"]
_BYTES_BY_UNIT = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class EngineSizes:
    """Bytes that the local engine takes of each device, for weights and for a token; all caches hold `token_count`."""

    weight_bytes: int
    token_bytes: float
    token_count: int

    @property
    def cache_bytes(self) -> int:
        return round(self.token_bytes * self.token_count)


def report(
    learner: Learner,
    state: TrainState,
    group_sizes: Sequence[int],
    chip: Chip,
    *,
    agents: int = 1,
    engine: EngineSizes | None = None,
) -> dict[str, Any]:
    """The report of all programs of a step, compiled for the batch of the memory rehearsal.

    `state` is a state or an abstract one; `group_sizes` are as in `rehearse`. Memory holds the states of
    `agents` agents, and the `engine` if it samples on the same devices. Bytes are those of one device. Collectives,
    FLOPs and the bound are those of a step, or of an update where a step is a round. If a program does not fit, the
    compiler may refuse it: then `bytes_peak` is the compiler's figure, and the program's collectives are missing.
    """
    step_batch, pairs = make_full_batches(learner, group_sizes)
    frozen = None if learner.lora is None else learner.reference
    # The arguments of each program; all else that a step holds stays in memory beside them.
    arguments_by_program = {"update": (state, frozen), "reference": (learner.reference,), "old": (frozen, state.params)}
    arguments_by_program["pairs"] = arguments_by_program["old"]
    resident_bytes = count_device_bytes((state, learner.reference)) + (agents - 1) * count_device_bytes(state)
    engine_bytes = 0 if engine is None else engine.weight_bytes + engine.cache_bytes
    batches = [learner.placement.outline_batch(x, learner.micro_rows) for x in (step_batch, pairs) if x is not None]
    batch_bytes = count_device_bytes(batches)
    device_count = len(learner.placement.devices)
    programs = {}
    with lowered_for(learner.placement.devices[0]):
        lowerings = {name: lower() for name, lower in learner.lower_programs(state, step_batch, pairs).items()}
    for name, lowering in lowerings.items():
        argument_bytes = count_device_bytes(arguments_by_program[name])
        program_report = _compile_program(lowering, learner, step_batch, device_count, argument_bytes + batch_bytes)
        programs[name] = {**program_report, "bytes_beside": resident_bytes - argument_bytes}
    peak_bytes = engine_bytes + max(program["bytes_peak"] + program["bytes_beside"] for program in programs.values())
    refusals = [program["refused"] for program in programs.values() if program["refused"]]
    sums_by_kind = _sum_collectives(programs, learner)
    held_bytes = programs["update"]["bytes_argument"] + programs["update"]["bytes_beside"]
    flops = count_step_flops(learner, step_batch, pairs)
    bound_seconds = {
        "compute": flops / (device_count * chip.flops),
        "memory": learner.updates_per_batch * held_bytes / chip.bandwidth,
        "interconnect": sum(collective_kind["bytes"] for collective_kind in sums_by_kind.values()) / chip.interconnect,
    }
    return {
        "fits": not refusals and peak_bytes <= chip.limit,
        "bytes_argument": held_bytes,
        "bytes_temporary": max(program["bytes_temporary"] for program in programs.values()),
        "bytes_peak": peak_bytes,
        "bytes_limit": chip.limit,
        **(_describe_engine(engine, chip.limit - peak_bytes) if engine is not None else {}),
        "collectives": sums_by_kind,
        "kernels": find_families(kernel for program in programs.values() for kernel in program["kernels"]),
        "silent_remat": sum(program.get("silent_remat", 0) for program in programs.values()),
        "seconds": sum(program["seconds"] for program in programs.values()),
        "cpu_seconds": sum(program["cpu_seconds"] for program in programs.values()),
        "flops": flops,
        "bounds": bound_seconds,
        "bound_seconds": max(bound_seconds.values()),
        "parameters": count_parameters(learner.config),
        "programs": programs,
    }


def _describe_engine(engine: EngineSizes, spare_bytes: int) -> dict[str, int]:
    """What the engine takes, and how many tokens all caches could hold with the bytes that are spare or missing."""
    return {
        "bytes_engine_weights": engine.weight_bytes,
        "bytes_cache": engine.cache_bytes,
        "cache_tokens": engine.token_count,
        "cache_tokens_fitting": max(0, int((spare_bytes + engine.cache_bytes) / engine.token_bytes)),
    }


def count_step_flops(learner: Learner, step_batch: TrainBatch, pairs: TrainBatch | None = None) -> int:
    """Operations of a step on full rows, each one text: three forwards for each update, and the forwards of `prepare`.

    What the backward pass recomputes does not count.
    """

    def count_flops(batch: TrainBatch) -> int:
        row_count, row_length = batch.tokens.shape
        return count_forward_flops(learner.config, [row_length] * row_count, row_count * (row_length - 1))

    update_passes, prepare_passes = 3 * learner.updates_per_batch, learner.reads_reference + (not learner.on_policy)
    pair_flops = 0 if pairs is None else count_flops(pairs) * (update_passes + 1)
    return count_flops(step_batch) * (update_passes + prepare_passes * learner.objective.splits) + pair_flops


def count_device_bytes(tree: Any) -> int:
    """Bytes that arrays or their ShapeDtypeStructs take on each device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _compile_program(
    lowering: jax.stages.Lowered, learner: Learner, step_batch: TrainBatch, device_count: int, argument_bytes: int
) -> dict[str, Any]:
    """Compiles and measures one program; if the compiler refuses it for lack of memory, gives its sizes alone.

    `argument_bytes` are those that its arguments take of each device.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        executable = lowering.compile()
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        executable, message = None, str(error)
    durations = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
    if executable is None:
        memory_sizes = read_refusal(message, argument_bytes)
        return {**memory_sizes, **durations, "refused": True, "refusal": message, "collectives": {}, "kernels": {}}
    analysis = executable.memory_analysis()
    assert analysis is not None
    program = program_text.parse_program(executable.as_text() or "")
    row_count, row_length = step_batch.tokens.shape
    state_count = count_states(row_length, learner.mesh)
    rounds = (row_count // learner.micro_rows, -(-state_count // _find_chunk_size(learner, row_length)))
    collectives = program_text.find_collectives(program, device_count, rounds)
    memory_sizes = {
        "bytes_argument": analysis.argument_size_in_bytes,
        "bytes_temporary": analysis.temp_size_in_bytes,
        "bytes_result": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "bytes_code": analysis.generated_code_size_in_bytes,
    }
    return {
        **memory_sizes,
        # The compiler's own figure for the peak is defined differently for TPUs.
        "bytes_peak": sum(memory_sizes.values()),
        "refused": False,
        **durations,
        "collectives": sum_by_kind(collectives),
        "kernels": program_text.count_kernels(program),
        "silent_remat": program_text.count_silent_remat(program),
        "donated": sum(argument.donated for argument in jax.tree.leaves(lowering.args_info)),
        "reused": program.alias_count,
        "vocabulary_in_chunks": len(find_vocabulary_moves(collectives, learner)),
        "logits_arrays": len(find_logits_arrays(program, learner, row_length)),
    }


def read_refusal(message: str, argument_bytes: int) -> dict[str, int]:
    """The sizes of a program that the compiler for TPUs refuses, from its message; without one, those of its arguments.

    What the message calls temporaries includes the arguments.
    """
    match = re.search(r"required for HLO temporaries \(([\d.]+)([KMGT])\)", message)
    needed_bytes = int(float(match[1]) * _BYTES_BY_UNIT[match[2]]) if match else argument_bytes
    return {
        "bytes_argument": argument_bytes,
        "bytes_temporary": max(0, needed_bytes - argument_bytes),
        "bytes_result": 0,
        "bytes_code": 0,
        "bytes_peak": max(needed_bytes, argument_bytes),
    }


def find_families(kernels: Iterable[str]) -> list[str]:
    """The families of these kernels, each once; a kernel of no family appears under its own name."""
    families = {next((family for stem, family in _PREFIXES.items() if name.startswith(stem)), name) for name in kernels}
    return sorted(families)


def sum_by_kind(collectives: Sequence[Collective]) -> dict[str, dict[str, int]]:
    """Kind → the number of collectives that run, and the bytes that each device sends in them."""
    sums_by_kind = defaultdict[str, Counter[str]](Counter)
    for collective in collectives:
        sums_by_kind[collective.kind].update(count=collective.runs, bytes=collective.runs * collective.bytes)
    return {kind: dict(sums) for kind, sums in sorted(sums_by_kind.items())}


def find_vocabulary_moves(collectives: Sequence[Collective], learner: Learner) -> list[Collective]:
    """Collectives of the scoring matrix or its gradient within an inner loop of a micro-batch, which repeats them."""
    vocab_sizes, widths = _list_matrix_sizes(learner)
    return [
        collective for collective in collectives
        if collective.loops >= 2 and any(vocab_sizes & set(axes) and widths & set(axes) for axes in collective.shapes)
    ]  # fmt: skip


def _list_matrix_sizes(learner: Learner) -> tuple[set[int], set[int]]:
    """The sizes of both axes: the whole, and a device's part."""
    vocabulary, width, mesh = learner.config.vocab_size, learner.config.hidden_size, learner.mesh
    return {vocabulary, vocabulary // count_devices(mesh, "tensor")}, {width, width // count_devices(mesh, *SHARDS)}


def _find_chunk_size(learner: Learner, row_length: int) -> int:
    """The number of a row's tokens that `token_scores` scores at a time."""
    return choose_chunk(learner.micro_rows, row_length, learner.placement.mesh)


def find_logits_arrays(program: Program, learner: Learner, row_length: int) -> list[tuple[int, ...]]:
    """Arrays of whole rows of logits: those with an axis of (a part of) the vocabulary and one of a row's tokens."""
    vocab_sizes, widths = _list_matrix_sizes(learner)
    row_count, chunk = learner.micro_rows // learner.placement.row_shards, _find_chunk_size(learner, row_length)
    state_count = count_states(row_length, learner.mesh)
    lengths = {row_length, row_length - 1, state_count, -(-state_count // chunk) * chunk}
    token_counts = lengths | {row_count * length for length in lengths}
    return [
        axes for axes in program_text.list_array_axes(program)
        if vocab_sizes & set(axes) and (token_counts - widths) & set(axes)
    ]  # fmt: skip


def _sum_collectives(programs: Mapping[str, Mapping[str, Any]], learner: Learner) -> dict[str, dict[str, int]]:
    """Adds up the collectives of a step: those of each update, and those of `prepare` once for each batch."""
    sums_by_kind = defaultdict[str, Counter[str]](Counter)
    for program_name, program in programs.items():
        call_count = learner.updates_per_batch if program_name == "update" else learner.objective.splits
        for kind, sums in program["collectives"].items():
            sums_by_kind[kind].update({figure_name: call_count * value for figure_name, value in sums.items()})
    return {kind: dict(sums) for kind, sums in sorted(sums_by_kind.items())}


def render_table(figures: Mapping[str, Any]) -> Table:
    """The report as a table with a row for each figure; bytes are those of one device."""
    title = f"{figures['target']}: {figures['devices']} × {figures['chip']}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    mesh_text = " × ".join(f"{name} {size}" for name, size in figures["mesh"].items()) or "one device"
    table.add_row("mesh", mesh_text)
    table.add_row("learner", f"{figures['method']}, {figures['loss']}, remat {figures['remat']}")
    table.add_row("micro-batch", f"{figures['micro_rows']} rows of {figures['row_length']:,} tokens")
    table.add_row("fits", "yes" if figures["fits"] else "no")
    for name in ("argument", "temporary", "peak", "limit"):
        table.add_row(name, f"{figures[f'bytes_{name}'] / GIB:.2f} GiB")
    if "cache_tokens" in figures:
        weights_gib, cache_gib = figures["bytes_engine_weights"] / GIB, figures["bytes_cache"] / GIB
        table.add_row("engine", f"weights {weights_gib:.2f} GiB, cache {cache_gib:.2f} GiB: both are part of the peak")
        fitting_count = figures["cache_tokens_fitting"]
        table.add_row("cache", f"{figures['cache_tokens']:,} tokens on all devices; {fitting_count:,} would fit")
    for kind, sums in figures["collectives"].items():
        table.add_row(kind, f"{sums['count']:,} a step, {sums['bytes'] / GIB:,.1f} GiB sent by each device")
    table.add_row("kernels", ", ".join(figures["kernels"]) or "none")
    table.add_row("computed twice by XLA", f"{figures['silent_remat']:,} operations")
    for name, program in figures["programs"].items():
        table.add_row(f"{name}: compiled in", f"{program['seconds']:.0f} s")
    table.add_row("operations", f"{figures['flops'] / 1e15:,.2f} PFLOP a step")
    bounds_text = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in figures["bounds"].items())
    table.add_row("at least", f"{figures['bound_seconds']:.2f} s a step ({bounds_text})")
    return table


def describe_in_one_line(figures: Mapping[str, Any]) -> str:
    """The report in one line, for a preflight."""
    traffic_gib = sum(sums["bytes"] for sums in figures["collectives"].values()) / GIB
    return (
        f"{figures['bytes_peak'] / GIB:.1f} of {figures['bytes_limit'] / GIB:.1f} GiB a device, each sends "
        f"{traffic_gib:,.0f} GiB a step, kernels: {', '.join(figures['kernels']) or 'none'}; a step takes at least "
        f"{figures['bound_seconds']:.2g} s"
    )


def list_advice(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yields what to change if the programs do not fit."""
    if figures["fits"]:
        return
    setting_changes = figures["suggestion"]["settings"]
    if not setting_changes:
        yield "it does not fit, and no setting is estimated to make it fit; take more devices"
        return
    flags = [format_setting(name, value) for name, value in setting_changes.items()]
    peak_gib = figures["suggestion"]["bytes_peak_estimated"] / GIB
    yield f"it does not fit; {' '.join(flags)} is estimated to, with {peak_gib:.1f} GiB. Compile again to confirm it"


def format_setting(setting_name: str, value: Any) -> str:
    """A setting as one types it: an environment variable, or a flag."""
    return f"{setting_name}={value}" if setting_name.isupper() else f"--config.{setting_name}={value}"


def count_parameters(config: ModelConfig) -> int:
    """The number of the model's parameters, including every expert's."""
    return sum(math.prod(parameter.shape(config)) for parameter in parameters(config))


def layer_weights(config: ModelConfig) -> int:
    """N: the weights of all layers by which one token is multiplied; of the experts, only the token's own.

    L · (D·S·(2H + 2K) + 3·D·F); for a sparse layer D·E + 3·D·F·k in place of 3·D·F.
    """
    width, head_count = config.hidden_size, config.num_attention_heads + config.num_key_value_heads
    attention_weights = 2 * width * config.head_dim * head_count
    feed_forward_weights = 3 * width * config.intermediate_size
    if config.sparse:
        expert_weights = 3 * width * config.moe_intermediate_size * config.num_experts_per_tok
        feed_forward_weights = width * config.num_experts + expert_weights
    return config.num_hidden_layers * (attention_weights + feed_forward_weights)


def count_forward_flops(config: ModelConfig, lengths: Sequence[int], scored_tokens: int) -> int:
    """Operations of one forward over texts of these lengths, with logits for `scored_tokens` of all their tokens.

    2·N·Σn + 2·D·V·scored_tokens + Σ 4·L·H·S·n(n + 1)/2: a multiplication and an addition count as two, and a token
    attends by two products to itself and those before it. Norms, rotations and softmaxes do not count.
    """
    products = 2 * layer_weights(config) * sum(lengths) + 2 * config.hidden_size * config.vocab_size * scored_tokens
    token_pairs = sum(length * (length + 1) // 2 for length in lengths)
    attention_width = config.num_attention_heads * config.head_dim
    return products + 4 * config.num_hidden_layers * attention_width * token_pairs
