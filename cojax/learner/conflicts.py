"""Settings of a learner that do not exist or exclude each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from cojax.learner.routing import ROUTES
from cojax.policy.transformer import REMAT

if TYPE_CHECKING:
    from cojax.learner.learner import Learner

# Setting → the values it may have. With each_update="whole" each update of a step learns from all groups of the step,
# with "part" from a part of its own.
_ALLOWED: Mapping[str, Collection[str]] = {
    "remat": REMAT, "each_update": ("whole", "part"), "routes": ROUTES, "round_reference": ("", "initial", "round"),
}  # fmt: skip


def check_settings(learner: Learner) -> None:
    """Raises ValueError, with what to set instead."""
    for kind, known in _ALLOWED.items():
        if (name := vars(learner)[kind]) not in known:
            raise ValueError(f"{kind} {name!r} not found; available: {', '.join(sorted(known))}")
    if learner.config.dtype == "float16":
        raise ValueError(
            "dtype is float16, in which gradients of single tokens vanish; set model.dtype=bfloat16 or float32"
        )
    if learner.updates_per_batch < 1:
        raise ValueError(f"updates_per_batch is {learner.updates_per_batch}; expected 1 or more")
    if learner.reads_reference and learner.reference is None:
        raise ValueError(
            f"loss {learner.loss!r} reads reference_logprobs under its settings, but there is no reference; pass "
            "reference=params, or set the coefficient of that term, such as kl_coefficient, to 0"
        )
    if learner.lora is not None and learner.reference is None:
        raise ValueError("lora needs a reference, which the adapters are added to; pass reference=params")
    if learner.micro_rows % (shards := learner.placement.row_shards):
        raise ValueError(
            f"micro_rows is {learner.micro_rows}, the mesh splits rows {shards} ways; make it a multiple of {shards}"
        )
