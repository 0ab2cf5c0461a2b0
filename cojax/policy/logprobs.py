"""Log-probabilities of given tokens and entropies, without the [B, T, V] array of logits.

Logits are made in chunks. The chunks are kept for the backward pass only where all of them fit into `KEPT_BYTES`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params
from cojax.policy.sharding import ROWS, RULES, devices_along, platform_of
from cojax.policy.transformer import routed_hidden_states, score_tokens, scoring_matrix

KEPT_BYTES = 256 * 2**20  # of logits that a device keeps for the backward pass; more are computed again there


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


def token_logprobs(config: ModelConfig, params: Params, *rows: jax.Array, **settings: Any) -> jax.Array:
    """The log-probs of `token_scores`, of rows (tokens, positions, segment_ids) and with settings as there."""
    return token_scores(config, params, *rows, entropy="none", **settings).logprobs


def token_scores(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    wanted: jax.Array | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
    remat: str = "none",
    mesh: Mesh | None = None,
    entropy: str = "value",
    routes: jax.Array | None = None,
    replay: bool = True,
) -> TokenScores:
    """log π(tokens[t] | earlier tokens of its segment) of logits / temperature, and that distribution's entropy.

    tokens, positions, segment_ids are int32[B, T], segment 0 is padding. Entries are 0 at padding, at the first token
    of a segment, which nothing predicts, and where `wanted` bool[B, T] is false. `entropy` is "none" (all 0), "value"
    (no gradient) or "gradient".

    Logits are computed for `chunk` wanted tokens of every row at a time (None: `chunk_size`), until the row with most
    of them is done. So the memory is B · chunk · V, and tokens that are not wanted cost nothing here. A backward pass
    computes them again, unless B · N · V float32 fit into `KEPT_BYTES`, N being T − 1 rounded up to whole chunks: then
    the forward pass of a gradient keeps them. On a `mesh`, each device works on its own rows, and its own rows and part
    of the vocabulary are the B and V of this; the matrix is gathered once, and its gradient is reduced once. `remat`
    and `mesh` are as in `hidden_states`, `routes` and `replay` as in `routed_hidden_states`. Raises ValueError unless
    temperature > 0, and for another `entropy`.
    """
    if temperature <= 0:
        raise ValueError(
            f"temperature is {temperature}; expected more than 0 (for greedy decoding take log-probs at temperature 1)"
        )
    if entropy not in ("none", "value", "gradient"):
        raise ValueError(f"entropy is {entropy!r}; expected none, value or gradient")
    hidden, differing = routed_hidden_states(
        config, params, tokens, positions, segment_ids, routes, replay=replay, remat=remat, mesh=mesh
    )
    if tokens.shape[1] < 2:
        return TokenScores(*(jnp.zeros(tokens.shape, jnp.float32) for _ in range(2 if routes is None else 4)))
    # The state at t scores the token at t + 1.
    predicted = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
    if wanted is not None:
        predicted &= wanted[:, 1:]
    matrix = scoring_matrix(config, params)
    chunk = chunk_size(tokens.shape[0], tokens.shape[1], mesh) if chunk is None else min(chunk, tokens.shape[1] - 1)
    # A device's part of the logits of all rows, in whole chunks.
    kept = 4 * tokens.shape[0] * -(-(tokens.shape[1] - 1) // chunk) * chunk * config.vocab_size
    fits = kept <= KEPT_BYTES * devices_along(mesh, *ROWS, "tensor")
    fixed = _Settings(config, temperature, chunk, entropy, mesh, fits)
    # Cast before it is gathered: devices then send each other only the bits that the product reads.
    matrix = matrix if mesh is None else matrix.astype(config.dtype)
    scores: tuple[jax.Array, ...] = _scores(fixed, matrix, hidden[:, :-1], tokens[:, 1:], predicted)
    if routes is not None and differing is not None:
        known = predicted & (routes[:, :-1, 0, 0] >= 0)
        scores = *scores, jnp.where(known, differing[:, :-1], 0.0), known.astype(jnp.float32)
    return TokenScores(*(jnp.pad(score, ((0, 0), (1, 0))) for score in scores))


class _Settings(NamedTuple):
    """Settings that are fixed when the program is compiled; `keep`: a gradient's forward pass keeps its logits."""

    config: ModelConfig
    temperature: float
    chunk: int
    entropy: str
    mesh: Mesh | None
    keep: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(
    fixed: _Settings, matrix: jax.Array, hidden: jax.Array, targets: jax.Array, wanted: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """float32[B, N] twice: log softmax(hidden · matrix / temperature)[target] and the entropy; 0 where not wanted.

    hidden [B, N, D], targets int32[B, N], wanted bool[B, N]. The gradient is written by hand: the length of the loop
    depends on the data, and JAX has no reverse mode for such loops.
    """
    return _forward(fixed, matrix, hidden, targets, wanted)[0]


def _forward(
    fixed: _Settings, matrix: jax.Array, hidden: jax.Array, targets: jax.Array, wanted: jax.Array, *, keep: bool = False
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    """The scores, and what `_backward` reads, which the scaled logits are part of if `keep`."""

    def loop(
        matrix: jax.Array, hidden: jax.Array, targets: jax.Array, wanted: jax.Array, rounds: jax.Array
    ) -> tuple[jax.Array, ...]:
        order = wanted_first(wanted, fixed.chunk)
        states, goals = gather(hidden, order), gather(targets, order)

        def fill(index: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            scaled = _scaled(fixed, matrix, piece(states, index, fixed.chunk))
            log_sum = _log_sum(fixed, scaled)
            goal = _is_target(fixed, piece(goals, index, fixed.chunk), scaled)
            values = [_sum_vocabulary(fixed, jnp.sum(jnp.where(goal, scaled, 0.0), axis=-1)) - log_sum, log_sum]
            if fixed.entropy != "none":
                mean = _sum_vocabulary(fixed, jnp.sum(jnp.exp(scaled - log_sum[..., None]) * scaled, axis=-1))
                values.append(log_sum - mean)
            values += [scaled] if keep else []
            return tuple(with_piece(x, value, index, fixed.chunk) for x, value in zip(found, values, strict=True))

        vocabulary = matrix.shape[_matrix_axes(fixed).index("vocabulary")]
        shapes = [order.shape] * columns + [(*order.shape, vocabulary)] * keep
        return jax.lax.fori_loop(0, rounds, fill, tuple(jnp.zeros(shape, jnp.float32) for shape in shapes))

    columns = 2 if fixed.entropy == "none" else 3
    run = _per_device(fixed, loop, "mrrr.", "r" * columns + "l" * keep)
    found = run(matrix, hidden, targets, wanted, chunks_needed(wanted, fixed.chunk))
    logprobs = jnp.where(wanted, ungather(found[0], wanted), 0.0)
    residuals = matrix, hidden, targets, wanted, found[1:columns], found[columns:]
    if fixed.entropy == "none":
        return (logprobs, jnp.zeros_like(logprobs)), residuals
    return (logprobs, jnp.where(wanted, ungather(found[2], wanted), 0.0)), residuals


def _backward(fixed: _Settings, residuals: Any, cotangents: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
    """∂ log p_t / ∂ z = (1[target] − p) / temperature and ∂ H / ∂ z = −p · (log p + H) / temperature, z the logits."""
    matrix, hidden, targets, wanted, found, kept = residuals
    with_entropy = fixed.entropy == "gradient"

    def loop(
        matrix: jax.Array, hidden: jax.Array, targets: jax.Array, wanted: jax.Array, rounds: jax.Array, *rest: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        order = wanted_first(wanted, fixed.chunk)
        real = jnp.arange(order.shape[1]) < jnp.sum(wanted, axis=1, keepdims=True)
        states, goals = gather(hidden, order), gather(targets, order)
        logits, (log_sums, *others) = rest[: len(kept)], rest[len(kept) :]
        weights = jnp.where(real, gather(others[0], order), 0.0)
        if with_entropy:
            entropies, of_entropy = others[1], jnp.where(real, gather(others[2], order), 0.0)

        def add(index: jax.Array, total: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            state, goal, log_sum, weight = (piece(x, index, fixed.chunk) for x in (states, goals, log_sums, weights))
            scaled = piece(logits[0], index, fixed.chunk) if logits else _scaled(fixed, matrix, state)
            logs = scaled - log_sum[..., None]
            slopes = (_is_target(fixed, goal, scaled).astype(jnp.float32) - jnp.exp(logs)) * weight[..., None]
            if with_entropy:
                entropy, strength = (piece(x, index, fixed.chunk)[..., None] for x in (entropies, of_entropy))
                slopes -= jnp.exp(logs) * (logs + entropy) * strength
            # In the dtype of the forward's products: a product of float32 is many times slower on an accelerator.
            slopes = (slopes / fixed.temperature).astype(state.dtype)
            tied = fixed.config.tie_word_embeddings
            of_matrix = _outer(slopes, state) if tied else _outer(state, slopes)
            of_state = _sum_vocabulary(fixed, jnp.tensordot(slopes, matrix.astype(state.dtype), (2, 0 if tied else 1)))
            return total[0] + of_matrix, with_piece(total[1], of_state, index, fixed.chunk)

        nothing = jnp.zeros(matrix.shape, jnp.float32), jnp.zeros_like(states)
        of_matrix, of_states = jax.lax.fori_loop(0, rounds, add, nothing)
        return _reduce_gradient(fixed, of_matrix), of_states

    rest = [*kept, found[0], cotangents[0], *((found[1], cotangents[1]) if with_entropy else ())]
    run = _per_device(fixed, loop, "mrrr." + "l" * len(kept) + "r" * (len(rest) - len(kept)), "sr")
    of_matrix, of_states = run(matrix, hidden, targets, wanted, chunks_needed(wanted, fixed.chunk), *rest)
    of_hidden = jnp.where(wanted[..., None], ungather(of_states, wanted), 0)
    return of_matrix.astype(matrix.dtype), of_hidden, None, None


_scores.defvjp(lambda fixed, *arrays: _forward(fixed, *arrays, keep=fixed.keep), _backward)


def _per_device(fixed: _Settings, loop: Callable[..., Any], arguments: str, results: str) -> Callable[..., Any]:
    """Runs the loop on each device, on its own rows and its part of the vocabulary; without a mesh just the loop.

    One letter for each argument and result gives its layout: r by rows, m the matrix with its whole width on each
    device, s the matrix spread like the parameters, l logits by rows and vocabulary, . replicated.
    """
    if fixed.mesh is None:
        return loop
    axes = _matrix_axes(fixed)
    vocabulary = PartitionSpec(*("tensor" if axis == "vocabulary" else None for axis in axes))
    as_stored = PartitionSpec(*(RULES[axis] for axis in axes))
    logits = PartitionSpec(ROWS, None, "tensor")
    specs = {"r": PartitionSpec(ROWS), "m": vocabulary, "s": as_stored, "l": logits, ".": PartitionSpec()}
    taken, given = (tuple(specs[letter] for letter in letters) for letters in (arguments, results))
    return jax.shard_map(loop, mesh=fixed.mesh, in_specs=taken, out_specs=given, check_vma=False)


def _matrix_axes(fixed: _Settings) -> tuple[str, str]:
    """Logical axes of `scoring_matrix`."""
    return ("vocabulary", "embed") if fixed.config.tie_word_embeddings else ("embed", "vocabulary")


def _reduce_gradient(fixed: _Settings, gradient: jax.Array) -> jax.Array:
    """The matrix's gradient summed over all rows; each device keeps its part."""
    if devices_along(fixed.mesh, "fsdp") > 1:
        embed = _matrix_axes(fixed).index("embed")
        gradient = jax.lax.psum_scatter(gradient, "fsdp", scatter_dimension=embed, tiled=True)
    gradient = jax.lax.psum(gradient, "data") if devices_along(fixed.mesh, "data") > 1 else gradient
    # The barrier keeps the reduction in its micro-batch: libtpu 0.0.42 fails when it tries to move it out of that loop.
    return gradient if fixed.mesh is None else jax.lax.optimization_barrier(gradient)


def _scaled(fixed: _Settings, matrix: jax.Array, states: jax.Array) -> jax.Array:
    """float32[B, c, V]: logits / temperature of states [B, c, D], over this device's part of the vocabulary."""
    return score_tokens(fixed.config, matrix, states) / fixed.temperature


def _sum_vocabulary(fixed: _Settings, x: jax.Array) -> jax.Array:
    """Sums over parts of the vocabulary → sums over all of it."""
    return jax.lax.psum(x, "tensor") if devices_along(fixed.mesh, "tensor") > 1 else x


def _log_sum(fixed: _Settings, scaled: jax.Array) -> jax.Array:
    """log Σ_v exp(scaled[..., v]) over the whole vocabulary."""
    own = jax.nn.logsumexp(scaled, axis=-1)
    if devices_along(fixed.mesh, "tensor") == 1:
        return own
    largest = jax.lax.pmax(own, "tensor")
    return largest + jnp.log(jax.lax.psum(jnp.exp(own - largest), "tensor"))


def _outer(left: jax.Array, right: jax.Array) -> jax.Array:
    """float32[a, b]: [B, c, a] and [B, c, b] multiplied and summed over their tokens."""
    left, right = (x.reshape(-1, x.shape[-1]) for x in (left, right))
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _is_target(fixed: _Settings, targets: jax.Array, scores: jax.Array) -> jax.Array:
    """bool[..., V]: true at the target, over the part of the vocabulary that this device scores."""
    first = jax.lax.axis_index("tensor") * scores.shape[-1] if devices_along(fixed.mesh, "tensor") > 1 else 0
    return targets[..., None] == first + jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)


def chunk_size(rows: int, length: int, mesh: Mesh | None) -> int:
    """How many tokens of each of so many rows, which are spread over the mesh, have their logits made at a time.

    128; on a GPU as many as make 1,024 tokens of a device's rows, where that is more; never more than the length − 1
    tokens of a row that are scored. On a GPU, a chunk's products take less time than reading and writing the whole
    float32 gradient of the matrix, which each chunk does.
    """
    few, many = 128, 1024
    size = few if platform_of(mesh) != "gpu" else max(few, many * devices_along(mesh, *ROWS) // rows)
    return min(size, length - 1)


def chunks_needed(wanted: jax.Array, chunk: int) -> jax.Array:
    """The number of chunks that hold the wanted entries of every row."""
    return (jnp.max(jnp.sum(wanted, axis=1)) + chunk - 1) // chunk


def wanted_first(wanted: jax.Array, chunk: int) -> jax.Array:
    """int32[B, N']: the indices of a row, wanted ones first; N' is N rounded up to whole chunks."""
    order = jnp.argsort(~wanted, axis=1, stable=True)
    return jnp.pad(order, ((0, 0), (0, -wanted.shape[1] % chunk)))


def gather(x: jax.Array, order: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)


def ungather(x: jax.Array, wanted: jax.Array) -> jax.Array:
    """The inverse of `gather`, where wanted."""
    return gather(x, jnp.maximum(jnp.cumsum(wanted, axis=1) - 1, 0))


def piece(x: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, index * chunk, chunk, axis=1)


def with_piece(x: jax.Array, new: jax.Array, index: jax.Array, chunk: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(x, new, index * chunk, axis=1)
