"""Log-probabilities of given tokens and entropies, without the [B, T, V] array of logits.

Logits are computed in chunks, which are kept for the backward pass only if all of them fit into `MAX_KEPT_BYTES`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from cojax.policy.config import ModelConfig
from cojax.policy.gradient_sums import Summed, strip_totals
from cojax.policy.parameters import Params
from cojax.policy.sharding import ROWS, RULES, SHARDS, TOKENS, count_devices, find_platform, join_rows, split_rows
from cojax.policy.transformer import compute_routed_states, embed_tokens, find_scoring_matrix, score_tokens

MAX_KEPT_BYTES = 256 * 2**20  # of logits that a device keeps for the backward pass; beyond this it recomputes them


class TokenScores(NamedTuple):
    """A policy's scores of given tokens.

    logprobs: float32[B, T], log π(token | earlier tokens), in nats.
    entropy: float32[B, T], −Σ_v π(v) log π(v) of the distribution that the token was drawn from, in nats.
    routes_differing: float32[B, T], in the pass that the token was drawn from, the share of the experts chosen by the
        routers here that the sampler did not use; 0 where the sampler's routes are not known. None without routes.
    routes_known: float32[B, T], 1 where the sampler's routes are known, else 0. None without routes.
    """

    logprobs: jax.Array
    entropy: jax.Array
    routes_differing: jax.Array | None = None
    routes_known: jax.Array | None = None


def token_logprobs(config: ModelConfig, params: Params, *packed_rows: jax.Array, **settings: Any) -> jax.Array:
    """The log-probs of `token_scores`; `packed_rows` are (tokens, positions, segment_ids); settings are as there."""
    return token_scores(config, params, *packed_rows, entropy="none", **settings).logprobs


def token_scores(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    mask: jax.Array | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
    remat: str = "none",
    mesh: Mesh | None = None,
    entropy: str = "value",
    routes: jax.Array | None = None,
    replay: bool = True,
    prefix_ids: jax.Array | None = None,
) -> TokenScores:
    """log π(tokens[t] | earlier tokens of its segment) of logits / temperature, and that distribution's entropy.

    tokens, positions, segment_ids are int32[B, T], segment 0 is padding. Entries are 0 at padding, at the first token
    of a segment, which nothing predicts, and where `mask` bool[B, T] is false. `entropy` is "none" (all 0), "value"
    (no gradient) or "gradient".

    Logits are computed for `chunk` tokens of every row's mask at a time (None: `choose_chunk`), until the row with
    most such tokens is done. So the memory is B · chunk · V, and other tokens cost nothing here. A backward pass
    computes the logits again, unless B · N · V float32 fit into `MAX_KEPT_BYTES`, where N is T − 1 rounded up to whole
    chunks: then a gradient's forward pass keeps them. On a `mesh`, B and V count a device's own rows and its part of
    the vocabulary, and if it splits rows, T those of its part; the matrix is gathered once, and its gradient is
    reduced once. `remat` and `mesh` are as in
    `compute_hidden`, `routes`, `replay` and `prefix_ids` as in `compute_routed_states`. Raises ValueError unless
    temperature > 0, and for another `entropy`.
    """
    if temperature <= 0:
        raise ValueError(
            f"temperature is {temperature}; expected more than 0 (for greedy decoding take log-probs at temperature 1)"
        )
    if entropy not in ("none", "value", "gradient"):
        raise ValueError(f"entropy is {entropy!r}; expected none, value or gradient")
    split = functools.partial(jax.tree.map, lambda x: split_rows(x, mesh))  # None stays
    embedded, params = embed_tokens(config, params, split(tokens), mesh)
    part_routes = split(routes)
    hidden, differing_shares = compute_routed_states(
        config, params, embedded, split(positions), split(segment_ids), part_routes, replay=replay, remat=remat,
        mesh=mesh, prefix_ids=split(prefix_ids),
    )  # fmt: skip
    if tokens.shape[1] < 2:
        return TokenScores(*(jnp.zeros(tokens.shape, jnp.float32) for _ in range(2 if routes is None else 4)))
    # The state at t scores the token at t + 1.
    has_score = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
    if mask is not None:
        chex.assert_equal_shape([tokens, mask])
        has_score &= mask[:, 1:]
    matrix, state_count = find_scoring_matrix(config, params), count_states(tokens.shape[1], mesh)
    chunk = min(chunk or choose_chunk(tokens.shape[0], tokens.shape[1], mesh), state_count)
    # Of the logits of all rows, in whole chunks.
    logits_bytes = 4 * tokens.shape[0] * -(-state_count // chunk) * chunk * config.vocab_size
    keeps_logits = logits_bytes <= MAX_KEPT_BYTES * count_devices(mesh, *ROWS, "tensor")
    setup = _Setup(config, temperature, chunk, entropy, mesh, keeps_logits)
    grad_sum = matrix.total if isinstance(matrix, Summed) else None
    # Cast once, and before the gather, so that devices send each other only the bits that the product reads.
    matrix = strip_totals(matrix).astype(config.dtype)
    is_split = count_devices(mesh, "context") > 1
    scored = slice(None if is_split else -1)
    states, targets = hidden[:, scored], tokens[:, 1:]
    if is_split:
        # The next token may be in the part of another device.
        targets, has_score = (split(jnp.pad(x, ((0, 0), (0, 1)))) for x in (targets, has_score))
    scores: tuple[jax.Array, ...] = _compute_scores(setup, matrix, grad_sum, states, targets, has_score)
    if part_routes is not None and differing_shares is not None:
        has_routes = has_score & (part_routes[:, scored, 0, 0] >= 0)
        scores = *scores, jnp.where(has_routes, differing_shares[:, scored], 0.0), has_routes.astype(jnp.float32)
    if is_split:
        scores = tuple(join_rows(score, mesh)[:, :-1] for score in scores)
    return TokenScores(*(jnp.pad(score, ((0, 0), (1, 0))) for score in scores))


class _Setup(NamedTuple):
    """Settings that are static for the compiler; with `keeps_logits` a gradient's forward pass keeps its logits."""

    config: ModelConfig
    temperature: float
    chunk: int
    entropy: str
    mesh: Mesh | None
    keeps_logits: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _compute_scores(
    setup: _Setup, matrix: jax.Array, total: jax.Array | None, hidden: jax.Array, targets: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """float32[B, N] twice: log softmax(hidden · matrix / temperature)[target] and the entropy; 0 outside the mask.

    hidden [B, N, D], targets int32[B, N], mask bool[B, N]; `total` is that of a Summed. The gradient is written
    by hand, because the length of the loop depends on the data and JAX has no reverse mode for such loops.
    """
    return _score_fwd(setup, matrix, total, hidden, targets, mask)[0]


def _score_fwd(
    setup: _Setup,
    matrix: jax.Array,
    total: jax.Array | None,
    hidden: jax.Array,
    targets: jax.Array,
    mask: jax.Array,
    *,
    keep_logits: bool = False,
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    """The scores, and what `_score_bwd` reads; with `keep_logits` this includes the scaled logits."""

    def score_chunks(
        matrix: jax.Array, hidden: jax.Array, targets: jax.Array, mask: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, ...]:
        order = order_by_mask(mask, setup.chunk)
        state_chunks, target_chunks = gather(hidden, order), gather(targets, order)

        def score_chunk(index: jax.Array, buffers: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            logits = _make_logits(setup, matrix, take_chunk(state_chunks, index, setup.chunk))
            log_sum = _compute_log_sum(setup, logits)
            is_target = _is_target(setup, take_chunk(target_chunks, index, setup.chunk), logits)
            scores = [_sum_vocabulary(setup, jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)) - log_sum, log_sum]
            if setup.entropy != "none":
                mean_logit = _sum_vocabulary(setup, jnp.sum(jnp.exp(logits - log_sum[..., None]) * logits, axis=-1))
                scores.append(log_sum - mean_logit)
            scores += [logits] if keep_logits else []
            return tuple(put_chunk(x, value, index, setup.chunk) for x, value in zip(buffers, scores, strict=True))

        vocabulary_size = matrix.shape[_list_scoring_matrix_axes(setup).index("vocabulary")]
        shapes = [order.shape] * score_count + [(*order.shape, vocabulary_size)] * keep_logits
        return jax.lax.fori_loop(0, count, score_chunk, tuple(jnp.zeros(shape, jnp.float32) for shape in shapes))

    score_count = 2 if setup.entropy == "none" else 3
    run = _shard_map(setup, score_chunks, "mrrr.", "r" * score_count + "l" * keep_logits)
    outputs = run(matrix, hidden, targets, mask, count_chunks(mask, setup.chunk))
    logprobs = jnp.where(mask, ungather(outputs[0], mask), 0.0)
    residuals = matrix, total, hidden, targets, mask, outputs[1:score_count], outputs[score_count:]
    if setup.entropy == "none":
        return (logprobs, jnp.zeros_like(logprobs)), residuals
    return (logprobs, jnp.where(mask, ungather(outputs[2], mask), 0.0)), residuals


def _score_bwd(setup: _Setup, residuals: Any, cotangents: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
    """∂ log p_t / ∂ z = (1[target] − p) / temperature and ∂ H / ∂ z = −p · (log p + H) / temperature, z the logits."""
    matrix, grad_sum, hidden, targets, mask, statistics, kept_logits = residuals
    with_entropy = setup.entropy == "gradient"

    def add_chunks(
        matrix: jax.Array, hidden: jax.Array, targets: jax.Array, mask: jax.Array, count: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        order = order_by_mask(mask, setup.chunk)
        is_scored = jnp.arange(order.shape[1]) < jnp.sum(mask, axis=1, keepdims=True)
        states, labels = gather(hidden, order), gather(targets, order)
        local_logits, (log_sums, *token_columns) = arrays[: len(kept_logits)], arrays[len(kept_logits) :]
        d_logps = jnp.where(is_scored, gather(token_columns[0], order), 0.0)
        if with_entropy:
            entropies, d_entropies = token_columns[1], jnp.where(is_scored, gather(token_columns[2], order), 0.0)

        def add_chunk(i: jax.Array, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            state, label, log_sum, d_logp = (take_chunk(x, i, setup.chunk) for x in (states, labels, log_sums, d_logps))
            logits = take_chunk(local_logits[0], i, setup.chunk) if local_logits else _make_logits(setup, matrix, state)
            log_probs = logits - log_sum[..., None]
            d_logits = (_is_target(setup, label, logits).astype(jnp.float32) - jnp.exp(log_probs)) * d_logp[..., None]
            if with_entropy:
                entropy, d_entropy = (take_chunk(x, i, setup.chunk)[..., None] for x in (entropies, d_entropies))
                d_logits -= jnp.exp(log_probs) * (log_probs + entropy) * d_entropy
            # In the dtype of the forward products: float32 products are many times slower on an accelerator.
            d_logits = (d_logits / setup.temperature).astype(state.dtype)
            tied = setup.config.tie_word_embeddings
            d_matrix = _multiply_outer(d_logits, state) if tied else _multiply_outer(state, d_logits)
            d_state = _sum_vocabulary(setup, jnp.tensordot(d_logits, matrix.astype(state.dtype), (2, 0 if tied else 1)))
            return gradients[0] + d_matrix, put_chunk(gradients[1], d_state, i, setup.chunk)

        zeros = jnp.zeros(matrix.shape, jnp.float32), jnp.zeros_like(states)
        d_matrix, d_states = jax.lax.fori_loop(0, count, add_chunk, zeros)
        return _reduce_gradient(setup, d_matrix), d_states

    arrays = [*kept_logits, statistics[0], cotangents[0], *((statistics[1], cotangents[1]) if with_entropy else ())]
    run = _shard_map(setup, add_chunks, "mrrr." + "l" * len(kept_logits) + "r" * (len(arrays) - len(kept_logits)), "sr")
    d_matrix, d_states = run(matrix, hidden, targets, mask, count_chunks(mask, setup.chunk), *arrays)
    d_hidden = jnp.where(mask[..., None], ungather(d_states, mask), 0)
    if grad_sum is not None:
        return None, grad_sum + d_matrix, d_hidden, None, None
    return d_matrix.astype(matrix.dtype), None, d_hidden, None, None


_compute_scores.defvjp(lambda setup, *arrays: _score_fwd(setup, *arrays, keep_logits=setup.keeps_logits), _score_bwd)


def _shard_map(setup: _Setup, function: Callable[..., Any], in_layouts: str, out_layouts: str) -> Callable[..., Any]:
    """Runs the loop on each device, on its own rows and its part of the vocabulary; without a mesh, the loop as it is.

    One letter for each argument and result gives its layout: r by rows, m the matrix with its whole width on each
    device, s the matrix laid out like the parameters, l logits by rows and vocabulary, . replicated.
    """
    if setup.mesh is None:
        return function
    axes = _list_scoring_matrix_axes(setup)
    gathered_spec = PartitionSpec(*("tensor" if axis == "vocabulary" else None for axis in axes))
    shard_spec = PartitionSpec(*(RULES[axis] for axis in axes))
    logits_spec = PartitionSpec(TOKENS, None, "tensor")
    specs = {"r": PartitionSpec(TOKENS), "m": gathered_spec, "s": shard_spec, "l": logits_spec, ".": PartitionSpec()}
    in_specs, out_specs = (tuple(specs[letter] for letter in letters) for letters in (in_layouts, out_layouts))
    return jax.shard_map(function, mesh=setup.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _list_scoring_matrix_axes(setup: _Setup) -> tuple[str, str]:
    """Logical axes of `find_scoring_matrix`."""
    return ("vocabulary", "embed") if setup.config.tie_word_embeddings else ("embed", "vocabulary")


def _reduce_gradient(setup: _Setup, gradient: jax.Array) -> jax.Array:
    """The matrix's gradient summed over all rows; each device keeps its part."""
    if shards := tuple(axis for axis in SHARDS if count_devices(setup.mesh, axis) > 1):
        embed_axis = _list_scoring_matrix_axes(setup).index("embed")
        gradient = jax.lax.psum_scatter(gradient, shards, scatter_dimension=embed_axis, tiled=True)
    gradient = jax.lax.psum(gradient, "data") if count_devices(setup.mesh, "data") > 1 else gradient
    # The barrier keeps the reduction inside the micro-batch loop: libtpu 0.0.42 fails when it tries to move it out.
    return gradient if setup.mesh is None else jax.lax.optimization_barrier(gradient)


def _make_logits(setup: _Setup, matrix: jax.Array, states: jax.Array) -> jax.Array:
    """float32[B, c, V]: logits / temperature of states [B, c, D], over this device's part of the vocabulary."""
    return score_tokens(setup.config, matrix, states) / setup.temperature


def _sum_vocabulary(setup: _Setup, x: jax.Array) -> jax.Array:
    """Adds up sums over parts of the vocabulary."""
    return jax.lax.psum(x, "tensor") if count_devices(setup.mesh, "tensor") > 1 else x


def _compute_log_sum(setup: _Setup, logits: jax.Array) -> jax.Array:
    """log Σ_v exp(logits[..., v]) over the whole vocabulary."""
    local_log_sum = jax.nn.logsumexp(logits, axis=-1)
    if count_devices(setup.mesh, "tensor") == 1:
        return local_log_sum
    max_log_sum = jax.lax.pmax(local_log_sum, "tensor")
    return max_log_sum + jnp.log(jax.lax.psum(jnp.exp(local_log_sum - max_log_sum), "tensor"))


def _multiply_outer(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """float32[a, b]: the product of [B, c, a] and [B, c, b], summed over their tokens."""
    lhs, rhs = (x.reshape(-1, x.shape[-1]) for x in (lhs, rhs))
    return jax.lax.dot_general(lhs, rhs, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _is_target(setup: _Setup, targets: jax.Array, scores: jax.Array) -> jax.Array:
    """bool[..., V]: true at the target, over the part of the vocabulary that this device scores."""
    first_token = jax.lax.axis_index("tensor") * scores.shape[-1] if count_devices(setup.mesh, "tensor") > 1 else 0
    return targets[..., None] == first_token + jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)


def choose_chunk(rows: int, row_length: int, mesh: Mesh | None) -> int:
    """For how many tokens of each row logits are computed at a time; the rows are spread over the mesh.

    The size is 128. On a GPU it is as many as make 1,024 tokens of a device's rows, if that is more: each chunk reads
    and writes the whole float32 gradient of the matrix, which takes longer than the products of a smaller chunk. It is
    never more than `count_states`.
    """
    floor, gpu_tokens = 128, 1024
    size = floor if find_platform(mesh) != "gpu" else max(floor, gpu_tokens * count_devices(mesh, *ROWS) // rows)
    return min(size, count_states(row_length, mesh))


def count_states(row_length: int, mesh: Mesh | None) -> int:
    """The number of a row's states that a device scores: all but the last, or those of a part."""
    part_count = count_devices(mesh, "context")
    return row_length - 1 if part_count == 1 else row_length // part_count


def count_chunks(mask: jax.Array, chunk: int) -> jax.Array:
    """The number of chunks that hold every row's entries under the mask."""
    return (jnp.max(jnp.sum(mask, axis=1)) + chunk - 1) // chunk


def order_by_mask(mask: jax.Array, chunk: int) -> jax.Array:
    """int32[B, N']: the indices of a row, those under the mask first; N' is N rounded up to whole chunks."""
    order = jnp.argsort(~mask, axis=1, stable=True)
    return jnp.pad(order, ((0, 0), (0, -mask.shape[1] % chunk)))


def gather(x: jax.Array, order: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)


def ungather(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The inverse of `gather` by that order, where the mask is true."""
    return gather(x, jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0))


def take_chunk(x: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, index * chunk, chunk, axis=1)


def put_chunk(x: jax.Array, values: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(x, values, index * chunk, axis=1)
