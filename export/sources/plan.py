"""The kernels of a model, and the plan of how they are launched (`runtimes/tvm/plans.py`).

A launch has items x tiles of rows groups. Arrays are working memory, tensors of the bundle in the layout
`interleave16`, tables of ropes, pools of attention blocks and the caller's inputs.
"""

from __future__ import annotations

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources import attention, best, heads, rows, weights
from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.epilogue import KernelEnd
from edgedec.export.sources.kernel import Kernels
from edgedec.export.sources.kv import KvWords
from edgedec.export.sources.launches import LaunchWriter
from edgedec.export.sources.plan_experts import write_experts
from edgedec.export.sources.plan_ssm import commits, write_ssm
from edgedec.export.sources.scan import state_floats
from edgedec.runtimes.tvm.plans import (
    INPUTS,
    MOST_ROWS,
    ROW_NUMBERS,
    VERSION,
    ArrayFacts,
    KernelFacts,
    LaunchPlan,
    PlannedLaunch,
)
from edgedec.spec import Attention, Block, Mlp, ModelSpec, Moe, Ssm


def planned(
    spec: ModelSpec, tensors: dict[str, Tensor], dialect: Dialect, kv: tuple[str, ...]
) -> tuple[Kernels, LaunchPlan]:
    """The kernels of a model and their plan."""
    kernels, arrays, launches, pages = Kernels(dialect), dict[str, ArrayFacts](), {}, {}
    for name in kv:
        writer = _Writer(spec, tensors, kernels, name, arrays)
        launches[name] = writer.model()
        blocks = spec.attention.items()
        pages[name] = {f"pool.{b}": KvWords(dialect, block, name).page_words for b, block in blocks}
    states = {f"state.{b}": state_floats(block) for b, block in spec.ssm.items()}
    after = commits(kernels, spec)
    facts = {k.name: KernelFacts(k.threads, tuple(k.arrays.values())) for k in kernels.made.values()}
    inputs = {name: ArrayFacts(*of) for name, of in INPUTS.items()}
    plan = LaunchPlan(
        VERSION, dialect.name, ROW_NUMBERS, MOST_ROWS, {**inputs, **arrays}, facts, pages, states, launches, after
    )  # fmt: skip
    return kernels, plan


class _Writer(LaunchWriter):
    """Writes the launches of a model with caches of one format."""

    def model(self) -> tuple[PlannedLaunch, ...]:
        """Embedding, blocks, head."""
        spec, embed = self.spec, self.tensors["embed"]
        parts = [f"embed.{part}" for part in weights.parts_of(embed)]
        name = rows.embed(self.kernels, embed, spec.embed_scale)
        self.run(name, ("rows", "embed", *parts, self.working("hidden", spec.hidden_size)))
        for b, block in enumerate(spec.blocks):
            self._block(b, block)
        self._head()
        return tuple(self.launches)

    def _block(self, b: int, block: Block) -> None:
        if isinstance(block, Attention):
            return self._attention(b, block)
        if isinstance(block, Moe):
            return write_experts(self, b, block)
        if isinstance(block, Ssm):
            return write_ssm(self, b, block)
        assert isinstance(block, Mlp)
        x = self.normed(f"blocks.{b}", block.norm)
        up = KernelEnd(glu=block.gated, bias=block.bias, activation=block.activation)
        self.product(f"blocks.{b}.{block.up}", x, self.working("act", block.inner_size), up)
        self.residual(b, block.post_norm, "down", "act", block.bias)

    def _attention(self, b: int, block: Attention) -> None:
        k, where = self.kernels, f"blocks.{b}"
        width = block.q_dim + 2 * block.kv_dim
        x, qkv = self.normed(where, block.norm), self.working("qkv", width)
        self.product(f"{where}.qkv", x, qkv, KernelEnd(bias=block.qkv_bias))
        if block.qk_norm == "full":
            whole = heads.norm_whole(k, block, self.spec.norm_eps)
            self.run(whole, (qkv, f"{where}.q_norm", f"{where}.k_norm"))
        self._heads(b, block)
        pages = ("rows", "pages", f"pool.{b}")
        self.run(heads.store(k, block, self.kv), (qkv, *pages), 2 * block.n_kv_heads)
        out = self.working("attended", block.q_dim)
        self.run(attention.attend(k, block, self.kv), (qkv, "rows", "path", *pages[1:], out), block.n_heads)
        self.residual(b, block.post_norm, "o", out, block.o_bias)

    def _heads(self, b: int, block: Attention) -> None:
        rope = block.rope
        pairs = 0 if rope is None else len(self.spec.ropes[rope].inv_freq)
        if not pairs and block.qk_norm != "head":
            return
        name = heads.heads(self.kernels, block, pairs, self.spec.norm_eps)
        turned = ("rows", f"rope.{rope}.cos", f"rope.{rope}.sin") if pairs else ()
        norms = (f"blocks.{b}.q_norm", f"blocks.{b}.k_norm") if block.qk_norm == "head" else ()
        self.run(name, ("qkv", *turned, *norms), block.n_heads + block.n_kv_heads)

    def _head(self) -> None:
        spec, where = self.spec, "embed" if self.spec.tied else "head"
        name = rows.norm(self.kernels, spec.final_norm, spec.hidden_size, spec.norm_eps, "pick")
        x = self.working("normed", spec.hidden_size)
        norms = () if spec.final_norm == "none" else ("final_norm",)
        bias = ("final_norm_bias",) if spec.final_norm == "layer" else ()
        self.run(name, ("which", "hidden", *norms, *bias, x), over="head_rows")
        logits = self.working("logits", spec.vocab_size)
        self.product(where, x, logits, KernelEnd(softcap=spec.final_softcap), "head_rows")
        chosen = best.best(self.kernels, spec.vocab_size)
        self.run(chosen, (logits, self.working("ids", 1, "int32")), over="head_rows")
