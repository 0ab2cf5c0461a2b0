"""A report as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

GIB = 2**30


def table(found: Mapping[str, Any]) -> Table:
    """One line a figure; bytes are those of one device."""
    title = f"{found['target']}: {found['devices']} × {found['chip']}"
    shown = Table(title=title, title_justify="left", show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column()
    mesh = " × ".join(f"{name} {size}" for name, size in found["mesh"].items()) or "one device"
    shown.add_row("mesh", mesh)
    shown.add_row("learner", f"{found['method']}, {found['loss']}, remat {found['remat']}")
    shown.add_row("micro-batch", f"{found['micro_rows']} rows of {found['row_length']:,} tokens")
    shown.add_row("fits", "yes" if found["fits"] else "no")
    for name in ("argument", "temporary", "peak", "limit"):
        shown.add_row(name, f"{found[f'bytes_{name}'] / GIB:.2f} GiB")
    for kind, figures in found["collectives"].items():
        shown.add_row(kind, f"{figures['count']:,} a step, {figures['bytes'] / GIB:,.1f} GiB sent by each device")
    shown.add_row("kernels", ", ".join(found["kernels"]) or "none")
    for name, program in found["programs"].items():
        shown.add_row(f"{name}: compiled in", f"{program['seconds']:.0f} s")
    shown.add_row("operations", f"{found['flops'] / 1e15:,.2f} PFLOP a step")
    bounds = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found["bounds"].items())
    shown.add_row("at least", f"{found['bound_seconds']:.2f} s a step ({bounds})")
    return shown


def in_one_line(found: Mapping[str, Any]) -> str:
    """What a preflight says of a report."""
    sent = sum(kind["bytes"] for kind in found["collectives"].values()) / GIB
    return (
        f"{found['bytes_peak'] / GIB:.1f} of {found['bytes_limit'] / GIB:.1f} GiB a device, each sends {sent:,.0f} GiB "
        f"a step, kernels: {', '.join(found['kernels']) or 'none'}; a step takes at least "
        f"{found['bound_seconds']:.2g} s"
    )


def advice(found: Mapping[str, Any]) -> Iterator[str]:
    """What to change where the programs do not fit."""
    if found["fits"]:
        return
    settings = found["suggestion"]["settings"]
    if not settings:
        yield "it does not fit, and no setting is estimated to make it fit; take more devices"
        return
    flags = [name_and_value(name, value) for name, value in settings.items()]
    peak = found["suggestion"]["bytes_peak_estimated"] / GIB
    yield f"it does not fit; {' '.join(flags)} is estimated to, with {peak:.1f} GiB. Compile again to confirm it"


def name_and_value(name: str, value: Any) -> str:
    """A setting as it is typed: an environment variable, or a flag."""
    return f"{name}={value}" if name.isupper() else f"--config.{name}={value}"
