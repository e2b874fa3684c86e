"""Flags for the model, and for what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from edgedec.cli._flags.completing import plugins_of
from edgedec.cli._flags.device import DeviceWord
from edgedec.cli._flags.diffusion import DiffusionWords
from edgedec.cli._flags.lossy import CacheWords, SkipSpeed
from edgedec.cli._flags.option import option
from edgedec.cli._flags.trust import TrustCode

if TYPE_CHECKING:
    import edgedec
    from edgedec.runtime import Adapter


class KV(StrEnum):
    f32 = "f32"
    f16 = "f16"
    int8 = "int8"
    int4 = "int4"


class Weights(StrEnum):
    int2 = "int2"
    int3 = "int3"
    int4 = "int4"
    int8 = "int8"
    f16 = "f16"
    f32 = "f32"


class OnFull(StrEnum):
    error = "error"
    slide = "slide"

    @property
    def mode(self) -> Literal["error", "slide"]:
        """The same word, as `Session` takes it."""
        return "slide" if self is OnFull.slide else "error"


MODEL_HELP = "A bundle folder, a GGUF file, or hf:ORG/NAME of the Hugging Face Hub."
ModelName = Annotated[
    str,
    option("--model", "-m", metavar="MODEL", help=f"{MODEL_HELP} By default `nano`, a small one that is included."),
]
Engine = Annotated[
    str, option("--engine", metavar="NAME", help="What computes: auto (default), native, ort, reference.")
]
Threads = Annotated[int, option("--threads", "-t", min=0, max=1024, help="CPU threads; 0 (default) uses all cores.")]
KVFormat = Annotated[KV | None, option("--kv", help="KV cache format; the bundle's first by default.")]
CtxSize = Annotated[
    int,
    option("--ctx-size", "-c", min=0, help="Most tokens of prompt and text together; 0 (default): the model's limit."),
]
OnFullMode = Annotated[
    OnFull,
    option(
        "--on-full", help="When the context is full: end with an error (default), or drop the oldest tokens and go on."
    ),
]
Lora = Annotated[
    list[Path] | None,
    option(
        "--lora",
        metavar="FILE",
        help="A LoRA adapter, which `edgedec adapter` makes. Repeatable: of several with gates, each token takes two.",
    ),
]
Speculate = Annotated[
    str,
    option(
        "--spec",
        "--speculate",
        metavar="HOW",
        autocompletion=plugins_of("drafters"),
        help="Speculative decoding; the text stays the same: auto (default), off, or drafters, as in copy+recycling "
        "or recycling:fixed=8.",
    ),
]
Learn = Annotated[bool, option("--learn", help="Keep what drafters learn from this text for the next one.")]


@dataclass(frozen=True)
class MachineFlags:
    """The runtime and the context."""

    threads: Threads = 0
    ctx_size: CtxSize = 0
    on_full: OnFullMode = OnFull.error
    kv: KVFormat = None
    engine: Engine = "auto"
    device: DeviceWord = ""
    lora: Lora = None
    skip_speed: SkipSpeed = 1.0
    cache: CacheWords = "full"
    diffusion: DiffusionWords = ""
    trust_code: TrustCode = False

    def open(self, name: str) -> edgedec.Model:
        lossy = self.skip_speed, self.cache
        return open_model(
            name, self.engine, self.threads, self.kv, *lossy, device=self.device, diffusion=self.diffusion
        )

    def session(self, model: edgedec.Model, speculate: str, learn: bool = False) -> edgedec.Session:
        # As many first tokens as a small context has room for; 4 are enough as attention sinks.
        sinks = min(4, (self.ctx_size or model.spec.context_length) // 4)
        return model.session(
            context=self.ctx_size or None,
            on_full=self.on_full.mode,
            sinks=sinks,
            speculate=speculate,
            learn=learn,
            adapter=open_lora(model, self.lora),
        )


def open_model(
    name: str,
    engine: str,
    threads: int,
    kv: KV | None,
    skip_speed: float = 1.0,
    cache: str = "full",
    device: str = "",
    device_cache: int = 0,
    diffusion: str = "",
    encoders: bool = False,
) -> edgedec.Model:
    """A model for a command without shared prefixes: single texts, timed texts, or a batch with its own sharing.
    encoders: whether the command takes a text encoder."""
    from edgedec import open  # noqa: A004

    model = open(
        name,
        engine=engine,
        device=device,
        device_cache=device_cache,
        threads=threads,
        kv=kv and kv.value,
        prefix_tokens=0,
        skip_speed=skip_speed,
        cache=cache,
        diffusion=diffusion,
    )
    if not encoders:
        model.require_decoder()
    return model


def open_lora(model: edgedec.Model, files: Sequence[Path] | None) -> Adapter | None:
    """The adapter in a file, or the set of those in several; None for none."""
    return model.adapter(*files) if files else None
