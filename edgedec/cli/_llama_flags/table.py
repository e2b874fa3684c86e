"""llama.cpp's flags, by name: the flag of edgedec for each, or the alternative.

Only what is not a flag of ours with the same meaning; `translate.py` reads this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgedec.errors import UsageError
from edgedec.plugins.words import quoted

_CACHE_TYPES = {"f32": "f32", "f16": "f16", "q8_0": "int8", "q4_0": "int4"}
_LETTERS = {
    **{"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p"},
    **{"x": "xtc", "t": "temperature"},
}
_SWITCH = ("on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled")


@dataclass(frozen=True)
class Foreign:
    """A flag of llama.cpp.

    values: the number of values after it ("switch": on, off or auto, or none). to: edgedec's flag; `convert` converts
    its value (None: the flag is left out). note: printed on stderr if the flag has no effect here. instead: why it is
    rejected, and the alternative. verb: the command that it selects instead of `run`.
    """

    values: int | Literal["switch"] = 0
    to: str = ""
    convert: Callable[[str], str | None] = str
    note: str = ""
    instead: str = ""
    verb: str = ""


def _seed(value: str) -> str | None:
    return None if value == "-1" else _number(value)


def _draft_model(name: str) -> str:
    """The words of a draft model; a path may hold + and commas."""
    return f"model:path={quoted(name)}"


def _cache_type(value: str) -> str:
    if value not in _CACHE_TYPES:
        raise UsageError(f"cache type {value}: there are {', '.join(_CACHE_TYPES)} (--kv f32, f16, int8, int4)")
    return _CACHE_TYPES[value]


def _number(value: str) -> str:
    try:
        int(value)
    except ValueError:
        raise UsageError(f"{value}: must be a whole number") from None
    return value


def _layers(value: str) -> str | None:
    """The value, so that its note is printed; None for no layers on a GPU, which needs no note."""
    if value in ("auto", "all"):
        return value
    return None if int(_number(value)) == 0 else value


def _own_number(value: str) -> str | None:
    """A number; below 1 it is left to edgedec, as llama.cpp does."""
    return _number(value) if int(_number(value)) > 0 else None


def _sequence(value: str) -> str:
    """llama.cpp's letters of samplers."""
    for letter in value:
        if letter not in _LETTERS:
            raise UsageError(f"{value}: no sampler {letter!r}; there are {', '.join(_LETTERS)}")
    return ";".join(_LETTERS[letter] for letter in value)


def _device(value: str) -> str:
    """llama.cpp's names of devices: none, CUDA0."""
    name, number = value.rstrip("0123456789").lower(), value[len(value.rstrip("0123456789")) :]
    return "cpu" if name == "none" else f"{name}:{number}" if number else name


def _takes(to: str, convert: Callable[[str], str | None] = str) -> Foreign:
    return Foreign(1, to, convert)


_GPU = Foreign(1, convert=_layers, note="--device names what computes; it computes all layers")
_ONE_DEVICE = Foreign(1, instead="one device computes, which --device names; leave it out")
_PROMPT_CHUNK = Foreign(1, convert=_number, note="the engine chooses how many tokens of a prompt it reads at a time")
_ROPE = Foreign(1, instead="positions are fixed when a model is exported: edgedec export --ctx-size N")
_CHAT = Foreign(verb="chat")

FLAGS: dict[str, Foreign] = {
    # the prompt
    "-s": _takes("--seed", _seed),
    "-sys": Foreign(1, "--system", verb="chat"),
    "--system-prompt": Foreign(1, "--system", verb="chat"),
    "-sysf": Foreign(1, "--system-file", verb="chat"),
    "--system-prompt-file": Foreign(1, "--system-file", verb="chat"),
    "-cnv": _CHAT,
    "--conversation": _CHAT,
    "-i": _CHAT,
    "--interactive": _CHAT,
    "-if": _CHAT,
    "--interactive-first": _CHAT,
    "-st": Foreign(0, "--single-turn", verb="chat"),
    "--single-turn": Foreign(0, "--single-turn", verb="chat"),
    "-no-cnv": Foreign(),
    "--no-conversation": Foreign(),
    "-bf": Foreign(1, instead="a prompt is text: -f FILE"),
    "--binary-file": Foreign(1, instead="a prompt is text: -f FILE"),
    "-r": _takes("--stop"),
    "--reverse-prompt": _takes("--stop"),
    "--no-display-prompt": Foreign(0, "--no-echo"),
    "-sp": Foreign(0, instead="special tokens are not printed"),
    "--special": Foreign(0, instead="special tokens are not printed"),
    "--jinja": Foreign(),
    "--chat-template": Foreign(1, "--chat-template", verb="chat"),
    "--chat-template-file": Foreign(1, "--chat-template-file", verb="chat"),
    "--prompt-cache": _takes("--session"),
    "--prompt-cache-all": Foreign(note="--session saves the whole text"),
    "--prompt-cache-ro": Foreign(instead="a session file is saved at the end of a run; copy it before"),
    # constraints
    "-j": _takes("--json-schema"),
    "-jf": _takes("--json-schema"),
    "--json-schema-file": _takes("--json-schema"),
    "--grammar-file": _takes("--grammar"),
    # the model
    "-hf": _takes("--model", "hf:{}".format),
    "-hfr": _takes("--model", "hf:{}".format),
    "--hf-repo": _takes("--model", "hf:{}".format),
    "-hff": Foreign(1, instead="name the file with the model: -m hf:ORG/NAME/FILE.gguf"),
    "--hf-file": Foreign(1, instead="name the file with the model: -m hf:ORG/NAME/FILE.gguf"),
    "-hft": Foreign(1, instead="set HF_TOKEN"),
    "--hf-token": Foreign(1, instead="set HF_TOKEN"),
    "-mu": Foreign(1, instead="download the file, then edgedec export FILE -o BUNDLE"),
    "--model-url": Foreign(1, instead="download the file, then edgedec export FILE -o BUNDLE"),
    "-md": _takes("--spec", _draft_model),
    "--model-draft": _takes("--spec", _draft_model),
    "-hfd": _takes("--spec", lambda name: _draft_model(f"hf:{name}")),
    "--draft": Foreign(1, instead="name it with the drafter: --spec model:path=FOLDER,length=N"),
    "--draft-max": Foreign(1, instead="name it with the drafter: --spec model:path=FOLDER,length=N"),
    "--draft-n": Foreign(1, instead="name it with the drafter: --spec model:path=FOLDER,length=N"),
    "--draft-min": Foreign(1, note="the governor drafts only where it pays"),
    "--draft-p-min": Foreign(1, note="the governor drafts only where it pays"),
    "--lora-scaled": Foreign(2, instead="--lora FILE adds an adapter at its own scale"),
    "-mm": Foreign(1, instead="models read text only; leave it out"),
    "--mmproj": Foreign(1, instead="models read text only; leave it out"),
    # memory and speed
    "-ctk": _takes("--kv", _cache_type),
    "--cache-type-k": _takes("--kv", _cache_type),
    "-ctv": _takes("--kv", _cache_type),
    "--cache-type-v": _takes("--kv", _cache_type),
    "-fa": Foreign("switch"),
    "--flash-attn": Foreign("switch"),
    "-ngl": _GPU,
    "--gpu-layers": _GPU,
    "--n-gpu-layers": _GPU,
    "-ngld": _GPU,
    "-b": _PROMPT_CHUNK,
    "--batch-size": _PROMPT_CHUNK,
    "-ub": _PROMPT_CHUNK,
    "--ubatch-size": _PROMPT_CHUNK,
    "-tb": Foreign(1, convert=_number, note="--threads serves prompts too"),
    "--threads-batch": Foreign(1, convert=_number, note="--threads serves prompts too"),
    "-np": _takes("--slots", _own_number),
    "--parallel": _takes("--slots", _own_number),
    "-cb": Foreign(),
    "--cont-batching": Foreign(),
    "-nocb": Foreign(instead="texts are always batched; --slots 1 runs one at a time"),
    "--mlock": Foreign(note="weights are mapped, not locked"),
    "--no-mmap": Foreign(note="weights are always mapped"),
    "--numa": Foreign(1, instead="start edgedec under numactl"),
    "-nkvo": Foreign(),
    "--no-kv-offload": Foreign(),
    "-dev": _takes("--device", _device),
    "-sm": _ONE_DEVICE,
    "--split-mode": _ONE_DEVICE,
    "-ts": _ONE_DEVICE,
    "--tensor-split": _ONE_DEVICE,
    "-mg": _ONE_DEVICE,
    "--main-gpu": _ONE_DEVICE,
    "-ot": _ONE_DEVICE,
    "--override-tensor": _ONE_DEVICE,
    "--no-warmup": Foreign(),
    "--perf": Foreign(0, "--stats"),
    "--no-perf": Foreign(),
    "--color": Foreign(),
    "-co": Foreign(),
    "--simple-io": Foreign(),
    "--log-disable": Foreign(),
    "--context-shift": Foreign(0, "--on-full=slide"),
    "--no-context-shift": Foreign(0, "--on-full=error"),
    "--keep": Foreign(1, instead="--on-full slide keeps the first tokens, or in a chat the system message"),
    # sampling
    "--sampling-seq": _takes("--samplers", _sequence),
    "--sampler-seq": _takes("--samplers", _sequence),
    "-l": _takes("--logit-bias", lambda value: value.replace("+", "=").replace("-", "=-", 1)),
    "--rope-scaling": _ROPE,
    "--rope-scale": _ROPE,
    "--rope-freq-base": _ROPE,
    "--rope-freq-scale": _ROPE,
    # the server
    "-a": Foreign(1, instead="a model has its bundle's name"),
    "--alias": Foreign(1, instead="a model has its bundle's name"),
    "-to": _takes("--timeout"),
    "--api-key-file": Foreign(1, instead="EDGEDEC_API_KEY=$(cat FILE)"),
    "--embedding": Foreign(),
    "--embeddings": Foreign(),
    "--metrics": Foreign(),
    "--props": Foreign(),
    "--slot-save-path": Foreign(1, instead="prefixes of ended texts are kept in memory by themselves"),
    "--path": Foreign(1, instead="the page at / is built in; put other files behind a web server"),
    "--no-webui": Foreign(instead="the page cannot be left out; --api-key protects what it does"),
}


def is_switch(value: str) -> bool:
    return value.lower() in _SWITCH
