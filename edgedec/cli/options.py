"""Every option that more than one verb takes, declared once; flags are those of llama.cpp and Hugging Face.

Those that verbs take together are groups: one parameter stands for all of them (see `_groups.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edgedec.cli._constraint_flags import ConstraintFlags as ConstraintFlags
from edgedec.cli._lossy_flags import CacheWords, SkipSpeed
from edgedec.cli._place import DeviceWord
from edgedec.cli._prompt_texts import read_prompt as read_prompt
from edgedec.cli._prompt_texts import read_text as read_text
from edgedec.cli._trust import TrustCode
from edgedec.decoding.config import OPTIONS, GenerationConfig

if TYPE_CHECKING:
    import edgedec
    from edgedec.runtime import Adapter


class KV(StrEnum):
    f32 = "f32"
    f16 = "f16"
    int8 = "int8"
    int4 = "int4"


class Weights(StrEnum):
    int4 = "int4"
    int8 = "int8"
    f16 = "f16"
    f32 = "f32"


class OnFull(StrEnum):
    error = "error"
    slide = "slide"


def _option(*flags: str, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*flags, help=help, show_default=False, **more)


def _generation(name: str, *flags: str, note: str = "", **more: Any) -> Any:
    """The flag of an option of `GenerationConfig`; the help is the option's own."""
    return _option(*flags, help=OPTIONS[name].help + note, **more)


# The model and the machine
MODEL_HELP = "A bundle folder, a GGUF file, or hf:ORG/NAME of the Hugging Face Hub."
ModelName = Annotated[
    str,
    _option("--model", "-m", metavar="MODEL", help=f"{MODEL_HELP} By default `nano`, a small one that is included."),
]
Engine = Annotated[
    str, _option("--engine", metavar="NAME", help="What computes: auto (default), native, ort, reference.")
]
Threads = Annotated[int, _option("--threads", "-t", min=0, max=1024, help="CPU threads; 0 (default) uses all cores.")]
KVFormat = Annotated[KV | None, _option("--kv", help="KV cache format; the bundle's first by default.")]
CtxSize = Annotated[
    int,
    _option("--ctx-size", "-c", min=0, help="Most tokens of prompt and text together; 0 (default): the model's limit."),
]
OnFullMode = Annotated[
    OnFull,
    _option(
        "--on-full", help="When the context is full: end with an error (default), or drop the oldest tokens and go on."
    ),
]
Lora = Annotated[Path | None, _option("--lora", metavar="FILE", help="A LoRA adapter, which `edgedec adapter` makes.")]
Speculate = Annotated[
    str,
    _option(
        "--spec",
        "--speculate",
        metavar="HOW",
        help="Speculative decoding; the text stays the same: auto (default), off, or drafters, as in copy+recycling "
        "or recycling:fixed=8.",
    ),
]
Learn = Annotated[bool, _option("--learn", help="Keep what drafters learn from this text for the next one.")]

# The prompt
Prompt = Annotated[
    str | None, _option("--prompt", "-p", metavar="TEXT", help="The prompt; `-`, or none and piped input: stdin.")
]
PromptFile = Annotated[Path | None, _option("--file", "-f", metavar="FILE", help="Read the prompt from a file.")]

# Output
Json = Annotated[bool, _option("--json", help="Print one JSON object on stdout.")]
Verbose = Annotated[bool, _option("--verbose", "-v", help="Print on stderr how long each part took, and --stats.")]
ShowStats = Annotated[bool, _option("--stats", help="Print token counts and speed on stderr.")]
Logprobs = Annotated[
    int | None,
    _option(
        "--logprobs",
        min=0,
        max=100,
        metavar="N",
        help="With --json: the log-probability of each token, and of the N likeliest in its place.",
    ),
]


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
    trust_code: TrustCode = False

    def open(self, name: str) -> edgedec.Model:
        return open_model(name, self.engine, self.threads, self.kv, self.skip_speed, self.cache, self.device)

    def session(self, model: edgedec.Model, speculate: str, learn: bool = False) -> edgedec.Session:
        mode: Literal["error", "slide"] = "slide" if self.on_full is OnFull.slide else "error"
        # As many first tokens as a small context can spare; 4 are enough for attention to rest on.
        sinks = min(4, (self.ctx_size or model.spec.context_length) // 4)
        return model.session(
            context=self.ctx_size or None,
            on_full=mode,
            sinks=sinks,
            speculate=speculate,
            learn=learn,
            adapter=open_lora(model, self.lora),
        )


@dataclass(frozen=True)
class GenerationFlags:
    """The options of `GenerationConfig`, by name; None keeps what holds otherwise."""

    max_tokens: Annotated[
        int, _generation("max_tokens", "--max-tokens", "-n", "--n-predict", min=-1, note=" -1 (default): no limit.")
    ] = -1
    min_tokens: Annotated[int | None, _generation("min_tokens", "--min-tokens", min=0)] = None
    temperature: Annotated[float | None, _generation("temperature", "--temp", "--temperature")] = None
    top_k: Annotated[int | None, _generation("top_k", "--top-k")] = None
    top_p: Annotated[float | None, _generation("top_p", "--top-p")] = None
    min_p: Annotated[float | None, _generation("min_p", "--min-p")] = None
    typical_p: Annotated[float | None, _generation("typical_p", "--typical", "--typical-p")] = None
    repetition_penalty: Annotated[
        float | None, _generation("repetition_penalty", "--repeat-penalty", "--repetition-penalty")
    ] = None
    presence_penalty: Annotated[float | None, _generation("presence_penalty", "--presence-penalty")] = None
    frequency_penalty: Annotated[float | None, _generation("frequency_penalty", "--frequency-penalty")] = None
    logit_bias: Annotated[
        list[str] | None, _generation("logit_bias", "--logit-bias", metavar="TOKEN=BIAS", note=" (repeatable)")
    ] = None
    stop: Annotated[list[str] | None, _generation("stop", "--stop", metavar="TEXT", note=" (repeatable)")] = None
    stop_tokens: Annotated[
        list[int] | None, _generation("stop_tokens", "--stop-token", metavar="ID", note=" (repeatable)")
    ] = None
    ignore_eos: Annotated[bool, _generation("ignore_eos", "--ignore-eos")] = False

    def config(self, model: edgedec.Model) -> GenerationConfig:
        """What the bundle's makers suggest, with every given flag in its place."""
        return GenerationConfig(sampling=model.sampling).override(dict(self._given()))

    def _given(self) -> Iterator[tuple[str, Any]]:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name == "logit_bias" and value:
                yield name, tuple(parse_bias(item) for item in value)
            elif value not in (None, []) and (name, value) != ("max_tokens", -1):
                yield name, value


@dataclass(frozen=True)
class SeededGeneration(GenerationFlags):
    """The same for one text, which one seed repeats."""

    seed: Annotated[int | None, _generation("seed", "--seed")] = None


def open_model(
    name: str,
    engine: str,
    threads: int,
    kv: KV | None,
    skip_speed: float = 1.0,
    cache: str = "full",
    device: str = "",
    device_cache: int = 0,
) -> edgedec.Model:
    """A model for a command: one text, texts that are timed, or texts that a batch shares by itself."""
    from edgedec import open  # noqa: A004

    return open(
        name,
        engine=engine,
        device=device,
        device_cache=device_cache,
        threads=threads,
        kv=kv and kv.value,
        prefix_tokens=0,
        skip_speed=skip_speed,
        cache=cache,
    )


def open_lora(model: edgedec.Model, file: Path | None) -> Adapter | None:
    """The adapter in a file; None for none."""
    if file is None:
        return None
    from edgedec.bundle.adapter import open_adapter

    return open_adapter(file, model.spec)


def with_seed(config: GenerationConfig) -> GenerationConfig:
    """The same with a fresh seed where one is needed and missing, so that a run can report how to repeat it."""
    if config.sampling.temperature == 0 or config.sampling.seed is not None:
        return config
    return config.override({"seed": secrets.randbits(32)})


def parse_bias(item: str) -> tuple[int, float]:
    """ "15043=-1.5" -> (15043, -1.5)."""
    token, _, bias = item.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(f"--logit-bias {item!r}: must be TOKEN=BIAS, as in 15043=-1.5") from None
