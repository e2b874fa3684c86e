"""Every option that more than one verb takes, declared once; flags are those of llama.cpp and Hugging Face.

Those that verbs take together are groups: one parameter stands for all of them (see `_groups.py`).
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edgedec.errors import UsageError

if TYPE_CHECKING:
    import edgedec
    from edgedec.constraints import Constraint
    from edgedec.sampling import Sampling


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


# The model and the machine
ModelName = Annotated[
    str, _option("--model", "-m", metavar="BUNDLE", help="Bundle folder, or `nano` (default), which ships along.")
]
Engine = Annotated[str, _option("--engine", metavar="NAME", help="Runtime: auto (default), native, ort, reference.")]
Threads = Annotated[int, _option("--threads", "-t", min=0, help="CPU threads; 0 (default) uses all cores.")]
KVFormat = Annotated[KV | None, _option("--kv", help="Cache format; the bundle's first by default.")]
CtxSize = Annotated[
    int, _option("--ctx-size", "-c", min=0, help="Tokens the context holds; the model's limit by default.")
]
OnFullMode = Annotated[
    OnFull, _option("--on-full", help="When the context is full: end with an error (default), or slide on.")
]

Spec = Annotated[
    str,
    _option(
        "--spec",
        metavar="HOW",
        help="Guess ahead; the text stays the same: auto (default), off, or drafters, as in copy+recycling or "
        "recycling:fixed=8.",
    ),
]
Learn = Annotated[bool, _option("--learn", help="Take up what drafters learned of this bundle, and keep it again.")]

# The prompt
Prompt = Annotated[
    str | None, _option("--prompt", "-p", metavar="TEXT", help="The prompt; `-`, or none and piped input: stdin.")
]
PromptFile = Annotated[Path | None, _option("--file", "-f", metavar="FILE", help="Read the prompt from a file.")]

# How much, and what ends it
MaxTokens = Annotated[
    int,
    _option("--max-tokens", "-n", "--n-predict", min=-1, help="Tokens to generate; -1 (default): to the end."),
]
Stop = Annotated[list[str] | None, _option("--stop", metavar="TEXT", help="End before this text (repeatable).")]
IgnoreEos = Annotated[bool, _option("--ignore-eos", help="Go on after the model's end token.")]

# Output
Json = Annotated[bool, _option("--json", help="Print one JSON object on stdout.")]
ShowStats = Annotated[bool, _option("--stats", help="Print token counts and speed on stderr.")]
Logprobs = Annotated[
    int | None, _option("--logprobs", min=0, max=100, metavar="N", help="With --json: log-probabilities, N likeliest.")
]


@dataclass(frozen=True)
class MachineFlags:
    """What the model runs on, and in."""

    threads: Threads = 0
    ctx_size: CtxSize = 0
    on_full: OnFullMode = OnFull.error
    kv: KVFormat = None
    engine: Engine = "auto"

    def open(self, name: str) -> edgedec.Model:
        return open_model(name, self.engine, self.threads, self.kv)

    def session(self, model: edgedec.Model, spec: str, learn: bool = False) -> edgedec.Session:
        mode: Literal["error", "slide"] = "slide" if self.on_full is OnFull.slide else "error"
        # As many first tokens as a small context can spare; 4 are enough for attention to rest on.
        sinks = min(4, (self.ctx_size or model.spec.context_length) // 4)
        return model.session(context=self.ctx_size or None, on_full=mode, sinks=sinks, spec=spec, learn=learn)


@dataclass(frozen=True)
class SamplingFlags:
    """How the next token is drawn. Fields are named as in `Sampling`; None keeps what the bundle's makers suggest."""

    temperature: Annotated[
        float | None, _option("--temp", "--temperature", help="Temperature; 0: greedy whatever the rest.")
    ] = None
    top_k: Annotated[int | None, _option("--top-k", help="Keep the K likeliest tokens; 0 keeps all.")] = None
    top_p: Annotated[float | None, _option("--top-p", help="Keep the likeliest tokens that hold this mass.")] = None
    min_p: Annotated[float | None, _option("--min-p", help="Drop tokens below this share of the likeliest.")] = None
    typical_p: Annotated[
        float | None, _option("--typical", "--typical-p", help="Locally typical sampling, this mass.")
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _option("--repeat-penalty", "--repetition-penalty", help="Weakens tokens seen so far; 1 is off."),
    ] = None
    presence_penalty: Annotated[
        float | None, _option("--presence-penalty", help="Subtract this from tokens generated before.")
    ] = None
    frequency_penalty: Annotated[
        float | None, _option("--frequency-penalty", help="Subtract this for every time a token was generated.")
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _option("--logit-bias", metavar="TOKEN=BIAS", help="Add to a token id's logit; -inf forbids it."),
    ] = None

    def for_model(self, model: edgedec.Model) -> Sampling:
        """The bundle's suggestion with every given flag in its place."""
        flags: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        flags["logit_bias"] = tuple(parse_bias(item) for item in self.logit_bias or ()) or None
        return replace(model.sampling, **{name: value for name, value in flags.items() if value is not None})


@dataclass(frozen=True)
class SeededSampling(SamplingFlags):
    """The same for one text, which one seed repeats."""

    seed: Annotated[int | None, _option("--seed", help="Makes sampling repeatable; drawn afresh if left out.")] = None


@dataclass(frozen=True)
class ConstraintFlags:
    """What the text must be: one of them, or anything."""

    json_schema: Annotated[
        str | None, _option("--json-schema", metavar="FILE|JSON", help="Generate JSON that this schema describes.")
    ] = None
    grammar: Annotated[
        Path | None, _option("--grammar", metavar="FILE", help="Generate what this grammar (Lark or GBNF) allows.")
    ] = None
    regex: Annotated[
        str | None, _option("--regex", metavar="PATTERN", help="Generate what this pattern matches whole.")
    ] = None

    def text(self) -> tuple[str, str] | None:
        """Kind and text of the one that was given, read if it is a file."""
        given = [(field.name, value) for field in fields(self) if (value := getattr(self, field.name)) is not None]
        if len(given) > 1:
            raise typer.BadParameter("--json-schema, --grammar and --regex: give one of them")
        for kind, value in given:
            # No file's name begins like a JSON object.
            is_text = kind == "regex" or (kind == "json_schema" and value.lstrip()[:1] == "{")
            return kind, value if is_text else read_text(Path(value))
        return None

    def for_model(self, model: edgedec.Model) -> Constraint | None:
        from edgedec import constraints

        kind, text = self.text() or ("", "")
        made: Constraint | None = getattr(constraints, kind)(model, text) if kind else None
        return made


def open_model(name: str, engine: str, threads: int, kv: KV | None) -> edgedec.Model:
    import edgedec

    return edgedec.open(name, engine=engine, threads=threads, kv=kv and kv.value)


def with_seed(chosen: Sampling) -> Sampling:
    """The same, with a fresh seed where one is needed and missing: a run can say how to repeat it."""
    if chosen.temperature == 0 or chosen.seed is not None:
        return chosen
    return replace(chosen, seed=secrets.randbits(32))


def parse_bias(item: str) -> tuple[int, float]:
    """ "15043=-1.5" -> (15043, -1.5)."""
    token, _, bias = item.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(f"--logit-bias {item!r}: must be TOKEN=BIAS, as in 15043=-1.5") from None


def read_prompt(prompt: str | None, file: Path | None, *, optional: bool = False) -> str | None:
    """The prompt that the flags mean; None if there is none and it is `optional`.

    One newline at the end of a file or of piped text is the editor's or echo's, and dropped.
    """
    if prompt is not None and file is not None:
        raise typer.BadParameter("--prompt and --file: give one of them")
    if file is not None:
        return read_text(file).removesuffix("\n")
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        if optional:
            return None
        raise typer.BadParameter("no prompt: give -p TEXT, -f FILE, or pipe it in")
    text = _utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    return None if optional and prompt is None and not text else text


def read_text(file: Path) -> str:
    try:
        return _utf8(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None


def _utf8(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text (byte {error.start})") from None
