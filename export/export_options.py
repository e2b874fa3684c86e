"""What an export is asked for, checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedec.bundle.manifest import WeightLayout
from edgedec.errors import UsageError
from edgedec.export.kv_heads import Heads
from edgedec.export.passes import chosen
from edgedec.export.weights import ROW
from edgedec.spec import KV_FORMATS, WEIGHT_FORMATS

LAYOUTS: dict[str, WeightLayout] = {"cpu": "interleave16", "portable": "rows"}


@dataclass(frozen=True)
class ExportOptions:
    """weights: the format of the layers' matrices; head and embed follow it unless given (a tied model that gets two
    formats stores both); None: the closest format for a quantized checkpoint, else int4. block: weights that share a
    scale; ROW: all of a row, of int8; None: ROW for text encoders of int8, else 32. kv: cache formats,
    the default one first. target: the machine whose layout quantized matrices are stored in; either is read everywhere.
    runtimes: whose files to write, None for all that can run the model. drafts: draft checkpoints to put in, their
    matrices in the format draft_weights, or as the model's.
    kv_heads: key and value heads of each attention block, fewer than the checkpoint has, or the share of all heads; 0:
    as many. recover: minutes of training after that, on the calibration text. passes: what is done to the weights
    first (`passes/`), in words; quality: a choice of them; calibrate: the text for caches, heads and passes, or "own":
    the model's own samples."""

    weights: str | None = None
    head: str | None = None
    embed: str | None = None
    block: int | None = None
    kv: tuple[str, ...] = ("f32",)
    target: str = "cpu"
    context: int | None = None
    calibrate: Path | None = None
    check: bool = True
    force: bool = False
    name: str | None = None
    threads: int = 0
    runtimes: tuple[str, ...] | None = None
    drafts: tuple[str, ...] = ()
    draft_weights: str | None = None
    kv_heads: Heads = 0
    recover: float = 0.0
    passes: str = ""
    quality: str = "fast"

    def __post_init__(self) -> None:
        for flag, value in (("weights", self.weights), ("head", self.head), ("embed", self.embed)):
            if value is not None and value not in WEIGHT_FORMATS:
                raise UsageError(f"--{flag} {value}: must be one of {', '.join(WEIGHT_FORMATS)}")
        if self.block not in (None, 32, 64, 128, ROW):
            raise UsageError(f"--block {self.block}: must be 32, 64, 128, row")
        if self.block == ROW:
            self._check_rows()
        if not self.kv or len(set(self.kv)) != len(self.kv) or not set(self.kv) <= set(KV_FORMATS):
            raise UsageError(f"--kv {','.join(self.kv)}: must name some of {', '.join(KV_FORMATS)}, each once")
        if self.recover and not (self.kv_heads and self.calibrate):
            raise UsageError("--recover: trains what --kv-heads changed, on a text; give --kv-heads and --calibrate")
        if self.target not in LAYOUTS:
            raise UsageError(f"--target {self.target}: must be one of {', '.join(LAYOUTS)}")
        chosen(self.passes, self.quality)

    def _check_rows(self) -> None:
        for flag, value in (("weights", self.weights), ("head", self.head), ("embed", self.embed)):
            if value not in ("int8", "f16", "f32") and (value is not None or flag == "weights"):
                raise UsageError(f"--block row: scales of whole rows are of int8; give --{flag} int8, f16 or f32")
        if self.passes or self.quality != "fast":
            raise UsageError("--block row: passes round in blocks; leave out --passes and --quality")

    @property
    def needs_scales(self) -> bool:
        return bool({"int8", "int4"} & set(self.kv))
