"""Writes launches, with the parts that several kinds of blocks share: norms, products, residual additions."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources import product, rows, weights
from edgedec.export.sources.epilogue import KernelEnd, Stacked
from edgedec.export.sources.kernel import Kernels
from edgedec.runtimes.tvm.plans import MOST_ROWS, ArrayFacts, PlannedLaunch
from edgedec.spec import ModelSpec, Norm


@dataclass
class LaunchWriter:
    """Writes launches for caches of one format. arrays: working memory so far."""

    spec: ModelSpec
    tensors: dict[str, Tensor]
    kernels: Kernels
    kv: str
    arrays: dict[str, ArrayFacts]
    launches: list[PlannedLaunch] = field(default_factory=list)

    def normed(self, where: str, kind: Norm) -> str:
        """The array of the normed state."""
        if kind == "none":
            return "hidden"
        name = rows.norm(self.kernels, kind, self.spec.hidden_size, self.spec.norm_eps)
        bias = (f"{where}.norm_bias",) if kind == "layer" else ()
        x = self.working("normed", self.spec.hidden_size)
        self.run(name, ("hidden", f"{where}.norm", *bias, x))
        return x

    def residual(self, b: int, post_norm: Norm, matrix: str, x: str, bias: bool) -> None:
        """hidden += post_norm(matrix . x)."""
        where, width = f"blocks.{b}", self.spec.hidden_size
        if post_norm == "none":
            return self.product(f"{where}.{matrix}", x, "hidden", KernelEnd(add=True, bias=bias))
        self.product(f"{where}.{matrix}", x, self.working("post", width), KernelEnd(bias=bias))
        self.add_normed(b, post_norm)

    def add_normed(self, b: int, post_norm: Norm) -> None:
        """hidden += post_norm(post)."""
        where, width, post = f"blocks.{b}", self.spec.hidden_size, "post"
        name = rows.norm(self.kernels, post_norm, width, self.spec.norm_eps, "add")
        layer = (f"{where}.post_norm_bias",) if post_norm == "layer" else ()
        self.run(name, (post, f"{where}.post_norm", *layer, "hidden"))

    def product(
        self, matrix: str, x: str, out: str, end: KernelEnd, over: str = "rows", stacked: Stacked | None = None
    ) -> None:
        """out = matrix . x after the epilogue `end`; for stacked matrices the experts in the array "experts"."""
        t = self.tensors[matrix]
        source: tuple[str, ...] = (x, matrix)
        if weights.is_quantized(t):
            copies = stacked.top_k if stacked is not None and stacked.by_pair else 1
            ready = self._ready(t, x, copies, over)
            source = (*ready, matrix, *(f"{matrix}.{part}" for part in weights.parts_of(t)))
        experts = () if stacked is None else ("experts",)
        bias = (f"{matrix}_bias",) if end.bias else ()
        made = product.product(self.kernels, t, end, stacked)
        names, items = {str(tile): name for tile, name in made.items()}, product.items_of(t, end, stacked)
        self.launches.append(PlannedLaunch(names, items, over, (*source, *experts, *bias, out)))

    def _ready(self, t: Tensor, x: str, copies: int, over: str) -> tuple[str, ...]:
        """The arrays of rows made ready for a matrix. copies: of each row."""
        steps = weights.steps_of(t)
        ready = (
            self.working("q", copies * steps * weights.step_of(t) // 4, "uint32"),
            self.working("scale", copies * steps),
            self.working("sum", copies * steps, "int32"),
        )
        self.run(rows.ready(self.kernels, t, copies), (x, *ready), copies, over)
        return ready

    def run(self, kernel: str, arrays: tuple[str, ...], items: int = 1, over: str = "rows") -> None:
        """Launch a kernel for each row."""
        self.launches.append(PlannedLaunch({"1": kernel}, items, over, arrays))

    def working(self, name: str, width: int, dtype: str = "float32") -> str:
        """Working memory of a row's width, as large as its largest use."""
        held = self.arrays.get(name, ArrayFacts(dtype, 0))
        # A tile may extend past the last row.
        self.arrays[name] = ArrayFacts(dtype, max(held.elements, (MOST_ROWS + max(product.TILES)) * width))
        return name
