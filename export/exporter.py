"""Checkpoint -> bundle, in one pass over the weights and about two layers of memory.

During the writing the float model runs a layer at a time on two texts: one to calibrate cache scales, one to compare
the finished bundle with (`parity`).
"""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import MANIFEST, Bundle
from edgedec.bundle.adapter import save_adapter
from edgedec.bundle.locate import is_gguf
from edgedec.bundle.manifest import Text, WeightFormat
from edgedec.errors import BundleError, UsageError
from edgedec.export.artifacts import choose
from edgedec.export.calibrate import kv_scales
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.drafts import DraftOptions, add_draft
from edgedec.export.drafts.files import open_draft
from edgedec.export.drafts.model import KIND as MODEL
from edgedec.export.drafts.model import add_model
from edgedec.export.encoders import block_of, check_encoder, encoder_facts, require_encoder_options, usual_format
from edgedec.export.export_options import LAYOUTS, ExportOptions
from edgedec.export.float_run import FloatRun
from edgedec.export.kv_heads import SmallerHeads, check_heads
from edgedec.export.kv_heads_text import smaller_heads
from edgedec.export.latent_head import FILE as LATENT_FILE
from edgedec.export.latent_head import check_model as check_latent
from edgedec.export.latent_head import install as install_latent
from edgedec.export.latent_head import read_latent
from edgedec.export.opening import open_source
from edgedec.export.own_text import own_text
from edgedec.export.parity import check_parity, parity
from edgedec.export.passes import PassModel
from edgedec.export.passes._all import Passed, Passing, TextSources
from edgedec.export.passes._calibration import OWN
from edgedec.export.row_scales import fit_rows, row_scales
from edgedec.export.weights import ROW, Kept, format_of
from edgedec.export.writer import Add, BundleWriter, Contents, Progress, Scales, write_manifest
from edgedec.models import FAMILY as ARCHITECTURES
from edgedec.models import Source
from edgedec.models.drafts import known_kind
from edgedec.spec import OUTER, ModelSpec
from edgedec.storage.files import replacing_folder
from edgedec.text.tokenizer import Tokenizer

CALIBRATION_TOKENS = 512
PARITY_TOKENS = 256
# The adapter of a bundle whose passes have made one.
LOW_RANK = "low_rank.adapter"
EMBEDDING = "model.embed_tokens.weight"
_AS_THE_TARGET = DraftOptions()
DEFAULT_OPTIONS = ExportOptions()
AT_EIGHT_BITS = ExportOptions(weights="int8", check=False, runtimes=())


def export(
    checkpoint: str, out: Path, options: ExportOptions = DEFAULT_OPTIONS, progress: Progress = lambda *_: None
) -> Bundle:
    """Export the checkpoint at a folder, a GGUF file or a hub id to the bundle folder `out`."""
    source = open_source(checkpoint)
    if (head := read_latent(source.folder)) is not None:
        check_latent(source.spec(options.context), LATENT_FILE)
    if options.force and out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise UsageError(f"{out}: is not a bundle; --force replaces bundles only")
    try:
        passing = Passing.of(out, source.folder, options, progress)
        with replacing_folder(out, force=options.force) as folder:
            _Export(source, folder, replace(options, name=options.name or out.name), passing).run()
            for draft in options.drafts:
                put_draft(Bundle.open(folder), draft, DraftOptions(options.draft_weights), progress)
            if head is not None:
                install_latent(Bundle.open(folder), head, _last_norm(source))
        passing.store.remove()
        return Bundle.open(out)
    except OSError as error:
        what = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise BundleError(f"{out}: cannot be written: {what}") from None


def _last_norm(source: Checkpoint) -> NDArray[np.float32]:
    """The weight of the final norm as it was trained, which passes may fold into the head."""
    spec = source.spec()
    return source.read(source.weights(spec)["final_norm"], 0, spec.hidden_size)


def put_draft(
    bundle: Bundle, place: str, options: DraftOptions = _AS_THE_TARGET, progress: Progress = lambda *_: None
) -> tuple[Bundle, str]:
    """Put a draft into a bundle: a published draft checkpoint, or any model, as a bundle or to be exported -> the
    bundle as it is now, and the kind."""
    bundle.require_decoder()
    if (Path(place) / MANIFEST).is_file():
        return add_model(bundle, Bundle.open(place)), MODEL
    if not _is_model(place):
        return add_draft(bundle, place, options, progress)
    weights = options.weights or bundle.manifest.quantization.get("body")
    with TemporaryDirectory(prefix=".draft-", dir=bundle.path.parent) as folder:
        made = ExportOptions(weights=weights, check=False, runtimes=(), name=f"{bundle.manifest.name}-draft")
        return add_model(bundle, export(place, Path(folder) / MODEL, made, progress)), MODEL


def _is_model(place: str) -> bool:
    """Whether it is a model and not a draft of a known kind."""
    if is_gguf(Path(place)):
        return True
    checkpoint = open_draft(place)
    kind = known_kind(checkpoint.config, checkpoint.tensors)
    return kind is None and checkpoint.config.get("model_type") in ARCHITECTURES and EMBEDDING in checkpoint.tensors


class _Export:
    """One export into a staging folder."""

    def __init__(self, source: Checkpoint, folder: Path, options: ExportOptions, passing: Passing) -> None:
        self.source, self.folder, self.options, self.progress = source, folder, options, passing.progress
        self.passing, self.passed = passing, Passed()
        spec = source.spec(options.context)
        self.parts: dict[str, Source] = source.weights(spec)
        self.formats = self._formats(spec)
        self.block = block_of(source, spec, self.formats["body"], options)
        if spec.tied and self.formats["head"] != self.formats["embed"]:
            spec = replace(spec, tied=False)
            self.parts["head"] = self.parts["embed"]
        self.spec = self.whole = spec.check("config.json")
        require_encoder_options(spec, options.kv, options.kv_heads, source.tokenizer_size())
        if options.kv_heads:
            check_heads(spec, options.kv_heads)
        self.heads: SmallerHeads | None = None
        choose(self.spec, options.runtimes, formats=self.formats.values())
        self.kept = {name: kept for name in self.spec.tensors() if (kept := self._kept(name))}

    def run(self) -> None:
        text = self.source.copy_text(self.folder)
        texts, o = self._texts(text), self.options
        if o.kv_heads:
            self.heads = smaller_heads(self.whole, o.kv_heads, self._read_whole, texts["calibration"][0])
            self.spec = self.heads.spec
        recovered = {"recovered": self._recover(self.heads, text)} if self.heads and o.recover else {}
        self.passed = self._passed(text)
        if self.passed.low_rank:
            save_adapter(self.folder / LOW_RANK, str(o.name), self.spec, self.passed.low_rank)
        floats = FloatRun(self.spec, self._read, texts)
        said = self.source.said(self.parts, self.kept) | dict(self.passed.record)
        if o.kv_heads:
            said |= {"kv_heads": [block.n_kv_heads for block in self.whole.attention.values()]} | recovered
        of, fills = (str(o.name), self._stored(), text, self.formats), self.source.diffusion(self.spec)
        encodes, formats = encoder_facts(self.source, self.spec), (self.block, o.kv, LAYOUTS[o.target])
        own = self.passed.formats
        contents = Contents(*of, *formats, o.runtimes, said, own, "", fills, encodes, self.source.modes)
        manifest = BundleWriter(self.folder, contents, self.progress).write(lambda add: self._fill(add, floats))
        if o.check and encodes is not None:
            check_encoder(Bundle.open(self.folder), self.spec, self._read, self.formats, o.threads)
        if o.check and "parity" in texts:
            ids, what = texts["parity"]
            self.progress("parity", 0, 1)
            logits = floats.logits("parity") if self.heads is None else self._whole_logits(ids)
            found = parity(Bundle.open(self.folder), ids, logits, what, o.threads)
            floats_only = set(self.formats.values()) <= {"f32", "f16"}
            check_parity(found, floats=floats_only and not o.kv_heads and self.passed.spec is None)
            write_manifest(self.folder, replace(manifest, parity=found))
            self.progress("parity", 1, 1)

    def _fill(self, add: Add, floats: FloatRun) -> Scales:
        """Write all tensors, and run the float model a layer at a time for the cache scales."""
        scales = {kv: list[NDArray[np.float32]]() for kv in self.options.kv if kv in ("int8", "int4")}
        spec = self._stored()
        self._add(add, ["embed"])
        for layer in range(spec.n_layers):
            blocks = spec.span(layer, layer + 1)
            self._add(add, [name for b in blocks for name in spec.block_tensors(b)])
            floats.layer(layer)
            for kv, found in scales.items():
                found += [kv_scales(floats.kept(b), kv) for b in blocks if b in spec.attention]
        inner = {name for b in range(spec.n_blocks) for name in spec.block_tensors(b)}
        self._add(add, [name for name in spec.tensors() if name != "embed" and name not in inner])
        return scales

    def _stored(self) -> ModelSpec:
        """The model as the bundle has it: of its blocks passes may have made others."""
        return self.passed.spec or self.spec

    def _add(self, add: Add, names: list[str]) -> None:
        for name in names:
            read, kept = self.passed.read or self._read, self.passed.kept.get(name) or self.kept.get(name)
            add(name, partial(read, name), kept)

    def _passed(self, text: Text) -> Passed:
        """What passes make of the weights, or the fitting of scales of rows."""
        if self.block == ROW and self.formats["body"] == "int8" and fit_rows(self.spec):
            return row_scales(self.spec, self._read, frozenset(self.kept), self.formats["embed"])
        encode = None if text.tokenizer is None else Tokenizer.load(self.folder / text.tokenizer).encode
        model, texts = PassModel(self.spec, self._read, self._own_formats()), TextSources(encode, self._own_text)
        return self.passing.run(model, self.formats, self.block, frozenset(self.kept), texts)

    def _own_text(self, tokens: int, length: int) -> tuple[NDArray[np.int64], ...]:
        """Text that the model writes, stored in 8 bits for it."""
        with TemporaryDirectory(prefix=".own-", dir=self.folder.parent) as folder:
            options = replace(AT_EIGHT_BITS, context=self.options.context, kv_heads=self.options.kv_heads)
            bundle = export(str(self.source.folder), Path(folder) / "bundle", options, self.progress)
            return own_text(bundle, tokens, length, self.options.threads)

    def _kept(self, name: str) -> Kept | None:
        """How to read a matrix as stored; None if it has to be quantized. Without a requested format, the checkpoint's
        own is used."""
        if self.options.kv_heads and name.endswith((".qkv", ".o")):
            return None
        looked_up = name in ("embed", "lookup") and self.source.quantization  # may have zero points
        if name not in self.spec.matrices or looked_up:
            return None
        fmt = format_of(self.spec, name, self.formats["body"], self.formats["head"], self.formats["embed"])
        if self.options.weights is None and name not in OUTER:
            fmt = self.source.suggested([self.parts[name]]) or fmt
        asked = self.options
        ends = {"embed": asked.embed or (asked.head if self.spec.tied else None), "head": asked.head}
        own = asked.weights is None and ends.get(name) is None
        return self.source.kept(self.parts[name], fmt, self.block, own)

    def _read(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        return (self._read_whole if self.heads is None else self.heads.read)(name, start, stop)

    def _read_whole(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of the checkpoint, before any reduction of heads."""
        return self.source.read(self.parts[name], start, stop)

    def _recover(self, heads: SmallerHeads, text: Text) -> dict[str, Any]:
        from edgedec.export.recovery import RecoveryPlan, recover  # torch
        from edgedec.runtime.registry import available_cores

        if text.tokenizer is None or self.options.calibrate is None:
            raise UsageError("--recover: the checkpoint has no tokenizer to read the text with")
        plan = RecoveryPlan(minutes=self.options.recover, threads=self.options.threads or available_cores())
        encode = Tokenizer.load(self.folder / text.tokenizer).encode
        return recover(heads, self._read_whole, [self.options.calibrate], encode, plan, self.progress)

    def _whole_logits(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits of the checkpoint with all its heads, computed a layer at a time."""
        floats = FloatRun(self.whole, self._read_whole, {"parity": (ids, "")})
        for layer in range(self.whole.n_layers):
            floats.layer(layer)
        return floats.logits("parity")

    def _formats(self, spec: ModelSpec) -> dict[str, WeightFormat]:
        o, stored = self.options, self._stored_formats(spec)
        body = o.weights or stored["body"] or usual_format(self.source, spec)
        head = o.head or (o.embed if spec.tied else None) or o.weights or stored["head"] or body
        embed = o.embed or (head if spec.tied else o.weights or stored["embed"] or body)
        found = {"body": body, "head": head, "embed": embed}
        return {part: next(f for f in get_args(WeightFormat) if f == name) for part, name in found.items()}

    def _own_formats(self) -> dict[str, WeightFormat]:
        """The formats of the layers' matrices where each follows its stored type."""
        whole = self.options.weights is not None or self.source.quantization is not None
        names = () if whole else self.spec.matrices - OUTER
        found = {name: self.source.suggested([self.parts[name]]) for name in names}
        return {name: fmt for name, fmt in found.items() if fmt is not None}

    def _stored_formats(self, spec: ModelSpec) -> dict[str, WeightFormat | None]:
        """The formats for a quantized checkpoint's integers, by part."""
        ends = {"embed": [self.parts["embed"]], "head": [self.parts.get("head", self.parts["embed"])]}
        body = [self.parts[name] for name in spec.matrices if name not in OUTER]
        return {part: self.source.suggested(sources) for part, sources in {**ends, "body": body}.items()}

    def _texts(self, text: Text) -> dict[str, tuple[NDArray[np.int64], str]]:
        """The texts for the float model: {purpose: (ids, description)}."""
        wanted: dict[str, tuple[Path | None, int]] = {}
        if self.spec.output is not None:
            return {}
        if self.options.needs_scales or self.options.kv_heads:
            wanted["calibration"] = (self.options.calibrate, CALIBRATION_TOKENS)
        if self.options.check:
            wanted["parity"] = (None, PARITY_TOKENS)
        found = {}
        for purpose, (path, n) in wanted.items():
            n = min(n, self.spec.context_length)
            if text.tokenizer is None:
                seed = list(wanted).index(purpose)
                ids = np.random.default_rng(seed).integers(0, self.spec.vocab_size, n)
                found[purpose] = (ids, "random tokens (no tokenizer)")
            else:
                path = Path(__file__).with_name(f"{purpose}.txt") if path is None or str(path) == OWN else path
                try:
                    content = path.read_text("utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise UsageError(f"--calibrate {path}: not a readable text file ({error})") from None
                ids = np.array(Tokenizer.load(self.folder / text.tokenizer).encode(content)[:n], np.int64)
                found[purpose] = (ids, "built-in text" if purpose == "parity" else path.name)
            if len(ids) < 2 or ids.max() >= self.spec.vocab_size:
                raise UsageError(f"--calibrate {path}: fewer than two tokens, or tokens outside the vocabulary")
        return found
