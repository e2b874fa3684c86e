"""Which models can be compiled. Libraries support more blocks than kernel sources."""

from __future__ import annotations

from edgedec.runtimes.tvm.frame import LANES
from edgedec.spec import Attention, Block, Mlp, ModelSpec, Moe, Ssm
from edgedec.spec.newer import newer

KINDS = ("attention", "mlp", "moe", "ssm")


def library_lacks(spec: ModelSpec) -> str | None:
    """The part of a model that a library cannot run, in one line that names the block; None if it can run all."""
    if spec.output is not None:
        return "it encodes texts"
    if newer(spec):
        return f"it has {', '.join(newer(spec))}"
    for b, block in enumerate(spec.blocks):
        reason = _of_library(block, spec.hidden_size)
        if reason is not None:
            return f"block {b} ({block.kind}): {reason}"
    return None


def _of_library(block: Block, hidden: int) -> str | None:
    if block.kind not in KINDS:
        return f"compiled libraries have {', '.join(KINDS)}"
    if isinstance(block, Attention):
        return _of_attention(block)
    if isinstance(block, Moe) and hidden % LANES:
        return f"experts of {hidden} outputs, not a multiple of {LANES}"
    if isinstance(block, Ssm) and block.head_dim % LANES:
        return f"heads of {block.head_dim} values, not a multiple of {LANES}"
    return None


def sources_lack(spec: ModelSpec) -> str | None:
    """The part of a model that kernel sources cannot run; they need heads of whole vectors."""
    if spec.output is not None:
        return "it encodes texts"
    if newer(spec):
        return f"it has {', '.join(newer(spec))}"
    if spec.hidden_size % LANES:
        return f"a state of {spec.hidden_size} values, not a multiple of {LANES}"
    for b, block in enumerate(spec.blocks):
        reason = _of_source(block)
        if reason is not None:
            return f"block {b} ({block.kind}): {reason}"
    return None


def _of_source(block: Block) -> str | None:
    if block.kind not in KINDS:
        return f"sources have {', '.join(KINDS)}"
    if isinstance(block, Attention):
        return _of_attention(block)
    sizes = [block.inner_size] if isinstance(block, Mlp | Moe | Ssm) else []
    sizes += [block.shared_size] if isinstance(block, Moe) else []
    sizes += [block.inner_size // block.norm_groups] if isinstance(block, Ssm) else []
    odd = next((size for size in sizes if size % LANES), None)
    return None if odd is None else f"{odd} inner values, not a multiple of {LANES}"


def _of_attention(block: Attention) -> str | None:
    if block.paired:
        return "reads the embedding beside the state"
    if block.head_dim % LANES:
        return f"heads of {block.head_dim} values, not a multiple of {LANES}"
    if block.head_dim > LANES and block.head_dim % (2 * LANES):
        return f"heads of {block.head_dim} values, which int4 caches keep by {2 * LANES}"
    return None
