"""The launches of a state-space block, and of a commit."""

from __future__ import annotations

from edgedec.export.sources import ssm
from edgedec.export.sources.epilogue import KernelEnd
from edgedec.export.sources.kernel import Kernels
from edgedec.export.sources.launches import LaunchWriter
from edgedec.export.sources.rows import THREADS
from edgedec.export.sources.scan import row_floats
from edgedec.runtimes.tvm.plans import PlannedLaunch
from edgedec.spec import ModelSpec, Ssm


def write_ssm(writer: LaunchWriter, b: int, block: Ssm) -> None:
    """hidden += post_norm(out_proj(norm(scan(conv(in_proj(norm(hidden)))))))."""
    k, where = writer.kernels, f"blocks.{b}"
    x, projected = writer.normed(where, block.norm), writer.working("projected", block.in_rows)
    writer.product(f"{where}.in_proj", x, projected, KernelEnd(bias=block.proj_bias))
    kept, scanned = writer.working(f"kept.{b}", row_floats(block)), writer.working("scanned", block.inner_size)
    taps = (f"{where}.conv", f"{where}.conv_bias")
    writer.run(ssm.convolve(k, block), (projected, "rows", "path", f"state.{b}", *taps, kept))
    writer.run(ssm.time_steps(k, block), (projected, f"{where}.dt_bias", f"{where}.a", kept))
    states = ("rows", "path", f"state.{b}", kept, f"{where}.d", projected, scanned)
    writer.run(ssm.scan(k, block), states, _groups(block.inner_size))
    writer.run(ssm.gate_norm(k, block, writer.spec.norm_eps), (scanned, f"{where}.gate_norm"))
    writer.residual(b, block.post_norm, "out_proj", scanned, block.proj_bias)


def commits(k: Kernels, spec: ModelSpec) -> tuple[PlannedLaunch, ...]:
    """The launches that bring the states of a sequence to the end of committed rows."""
    found = []
    for b, block in spec.ssm.items():
        arrays = ("commit", f"kept.{b}", f"state.{b}")
        for kernel, items in ((ssm.advance(k, block), block.inner_size), (ssm.remember(k, block), block.conv_dim)):
            found.append(PlannedLaunch({"1": kernel}, _groups(items), "once", arrays))
    return tuple(found)


def _groups(values: int) -> int:
    return -(-values // THREADS)
