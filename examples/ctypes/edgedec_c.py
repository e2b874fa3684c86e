"""libedgedec from Python by ctypes alone: what a binding in any language looks like. Standard library only.

    python examples/ctypes/edgedec_c.py models/nano/bundle "Once upon a time"

The library is loaded from EDGEDEC_LIBRARY, else by the system's search path. The structures below are edgedec.h's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from ctypes.util import find_library
from typing import Any

ABI = 1
STATUS = [
    "ok",
    "usage",
    "not_found",
    "version",
    "corrupt",
    "unsafe",
    "unavailable",
    "full",
    "session",
    "text",
    "memory",
    "io",
    "cancelled",
    "busy",
]
FINISH = ["none", "eos", "stop", "length", "context", "stopped"]
AROUND, SPECIAL = 1, 2

Progress = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)
Pressure = CFUNCTYPE(c_int, c_void_p, c_uint64)


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    return [(name, kind) for kind, names in groups for name in names.split()]


class OpenOptions(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_int32, "threads verify"),
        (c_char_p, "kv isa"),
        (c_int32, "big_cores priority"),
        (c_uint64, "memory_limit"),
        (Pressure, "on_pressure"),
        (c_void_p, "pressure_user"),
        (Progress, "on_progress"),
        (c_void_p, "progress_user"),
        (c_int32, "prefix_tokens reserved"),
    )


class ModelInfo(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_int32, "vocab_size hidden_size context_length n_layers n_blocks threads bos n_eos has_text reserved"),
        (c_uint64, "weights_bytes cache_row_bytes"),
    )


class MemoryUse(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_uint64, "weights_bytes cache_bytes prefix_bytes limit"),
        (c_int32, "sessions prefixes"),
    )


class SessionOptions(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_int32, "context sinks"),
        (c_char_p, "speculate"),
        (c_int32, "draft reserved"),
        (c_void_p, "adapter"),
    )


class SamplingOptions(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_double, "temperature top_p min_p typical_p repetition_penalty presence_penalty frequency_penalty"),
        (c_int32, "top_k n_bias"),
        (POINTER(c_int32), "bias_tokens"),
        (POINTER(c_float), "bias"),
        (c_uint64, "seed"),
        (c_int32, "seeded reserved"),
    )


class GeneratedToken(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_int32, "id drafted"),
        (c_void_p, "text"),  # may hold zeros: `piece` reads it
        (c_size_t, "text_bytes"),
        (c_double, "logprob"),
        (POINTER(c_int32), "top_tokens"),
        (POINTER(c_double), "top_logprobs"),
        (c_int32, "n_top reserved"),
    )

    @property
    def piece(self) -> str:
        """The text that this token completes."""
        return ctypes.string_at(self.text, self.text_bytes).decode()


OnToken = CFUNCTYPE(c_int, c_void_p, POINTER(GeneratedToken))
OnLogits = CFUNCTYPE(c_int, c_void_p, POINTER(c_int32), c_int32, POINTER(c_float))


class GenerateOptions(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_int32, "max_tokens min_tokens ignore_eos logprobs"),
        (POINTER(c_int32), "stop_tokens"),
        (c_int32, "n_stop_tokens n_stop"),
        (POINTER(c_char_p), "stop"),
        (c_int32, "text reserved"),
        (POINTER(SamplingOptions), "sampling"),
        (OnToken, "on_token"),
        (c_void_p, "token_user"),
        (OnLogits, "on_logits"),
        (c_void_p, "logits_user"),
        (Progress, "on_progress"),
        (c_void_p, "progress_user"),
        (c_char_p, "constraint constraint_kind"),
    )


class GenerateResult(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_int32, "finish prompt cached generated calls drafted accepted reserved"),
        (c_double, "prompt_seconds seconds forward_seconds"),
    )


class GenerateRequest(ctypes.Structure):
    _fields_ = _fields(
        (c_size_t, "size"),
        (c_void_p, "session"),
        (POINTER(c_int32), "prompt"),
        (c_int32, "n status"),
        (POINTER(GenerateOptions), "options"),
        (POINTER(GenerateResult), "result"),
    )


_TOKENS = POINTER(c_int32)
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "abi": (c_uint32, []),
    "version": (c_char_p, []),
    "isa": (c_char_p, []),
    "status_name": (c_char_p, [c_int]),
    "last_error": (c_char_p, []),
    "open_options_init": (None, [c_void_p, c_size_t]),
    "open": (c_int, [c_char_p, c_void_p, POINTER(c_void_p)]),
    "open_memory": (c_int, [c_void_p, c_uint64, c_void_p, POINTER(c_void_p)]),
    "open_fd": (c_int, [c_int, c_uint64, c_uint64, c_void_p, POINTER(c_void_p)]),
    "close": (None, [c_void_p]),
    "info": (c_int, [c_void_p, c_void_p, c_size_t]),
    "eos": (c_int, [c_void_p, _TOKENS, c_int32]),
    "model_string": (c_char_p, [c_void_p, c_int]),
    "memory": (c_int, [c_void_p, c_void_p, c_size_t]),
    "trim": (c_int, [c_void_p]),
    "adapter_open": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "adapter_close": (None, [c_void_p]),
    "session_options_init": (None, [c_void_p, c_size_t]),
    "session_new": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "session_free": (None, [c_void_p]),
    "session_fork": (c_int, [c_void_p, POINTER(c_void_p)]),
    "session_save": (c_int, [c_void_p, c_char_p]),
    "session_load": (c_int, [c_void_p, c_char_p]),
    "session_length": (c_int32, [c_void_p]),
    "session_cached": (c_int32, [c_void_p]),
    "session_context": (c_int32, [c_void_p]),
    "session_tokens": (c_int32, [c_void_p, c_int32, _TOKENS, c_int32]),
    "session_seed": (c_int, [c_void_p, c_uint64]),
    "session_append": (c_int, [c_void_p, _TOKENS, c_int32]),
    "session_truncate": (c_int, [c_void_p, c_int32]),
    "cancel": (None, [c_void_p]),
    "prefill": (c_int, [c_void_p, _TOKENS, c_int32]),
    "step": (c_int, [c_void_p, c_int32]),
    "step_many": (c_int, [POINTER(c_void_p), _TOKENS, c_int32]),
    "logits": (POINTER(c_float), [c_void_p]),
    "sampling_init": (None, [c_void_p, c_size_t]),
    "suggested_sampling": (c_int, [c_void_p, c_void_p, c_size_t]),
    "sample": (c_int, [c_void_p, c_void_p, _TOKENS]),
    "score": (c_int, [c_void_p, _TOKENS, c_int32, POINTER(c_double)]),
    "generate_options_init": (None, [c_void_p, c_size_t]),
    "generate": (c_int, [c_void_p, _TOKENS, c_int32, c_void_p, c_void_p]),
    "generate_text": (c_int, [c_void_p, c_char_p, c_void_p, c_void_p]),
    "generate_many": (c_int, [POINTER(GenerateRequest), c_int32]),
    "encode": (c_int32, [c_void_p, c_char_p, c_int64, c_int32, _TOKENS, c_int32]),
    "decode": (c_int64, [c_void_p, _TOKENS, c_int32, c_int32, c_char_p, c_int64]),
}


class EdgedecFailure(Exception):
    """An error of the library; `.status` is its name."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = STATUS[status]


class Library:
    """The shared library with its signatures."""

    def __init__(self, path: str | None = None) -> None:
        found = path or os.environ.get("EDGEDEC_LIBRARY") or find_library("edgedec") or "libedgedec.so"
        self.lib = ctypes.CDLL(found)
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self.lib, f"edgedec_{name}")
            function.restype, function.argtypes = result, arguments
        if self("abi") != ABI:
            raise OSError(f"{found}: ABI {self('abi')}, this binding knows {ABI}")

    def __call__(self, name: str, *arguments: Any) -> Any:
        """What a function returns."""
        return getattr(self.lib, f"edgedec_{name}")(*arguments)

    def check(self, name: str, *arguments: Any) -> None:
        """Calls a function that may fail."""
        if status := self(name, *arguments):
            raise EdgedecFailure(status, self("last_error").decode())

    def made(self, name: str, *arguments: Any) -> int:
        """The handle that a function makes."""
        out = c_void_p()
        self.check(name, *arguments, byref(out))
        assert out.value is not None
        return out.value

    def options(self, kind: type[Any], init: str, **values: Any) -> Any:
        """A structure of options: its defaults, and these values."""
        made = kind()
        self(init, byref(made), sizeof(made))
        for name, value in values.items():
            if name not in dict(kind._fields_):
                raise TypeError(f"no option {name!r}")
            setattr(made, name, value)
        return made


def tokens_of(ids: Sequence[int]) -> Any:
    return (c_int32 * len(ids))(*ids)


class Model:
    """An open bundle."""

    def __init__(self, library: Library, path: str, **options: Any) -> None:
        self.library = library
        self._options = library.options(OpenOptions, "open_options_init", **options)
        self.handle = library.made("open", os.fspath(path).encode(), byref(self._options))

    def session(self, **options: Any) -> Session:
        made = self.library.options(SessionOptions, "session_options_init", **options)
        return Session(self, self.library.made("session_new", self.handle, byref(made)))

    @property
    def info(self) -> ModelInfo:
        found = ModelInfo()
        self.library.check("info", self.handle, byref(found), sizeof(found))
        return found

    @property
    def memory(self) -> MemoryUse:
        found = MemoryUse()
        self.library.check("memory", self.handle, byref(found), sizeof(found))
        return found

    def string(self, what: int) -> str:
        return str(self.library("model_string", self.handle, what).decode())

    def encode(self, text: str | bytes, flags: int = AROUND | SPECIAL) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        room = len(raw) + 8
        out = (c_int32 * room)()
        n = self.library("encode", self.handle, raw, len(raw), flags, out, room)
        if n < 0:
            raise EdgedecFailure(-n, self.library("last_error").decode())
        return out[:n]

    def decode(self, ids: Sequence[int], flags: int = 0) -> str:
        n = self.library("decode", self.handle, tokens_of(ids), len(ids), flags, None, 0)
        if n < 0:
            raise EdgedecFailure(-n, self.library("last_error").decode())
        out = ctypes.create_string_buffer(n + 1)
        self.library("decode", self.handle, tokens_of(ids), len(ids), flags, out, n + 1)
        return out.raw[:n].decode()

    def close(self) -> None:
        self.library("close", self.handle)
        self.handle = 0

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.close()


class Session:
    """One text."""

    def __init__(self, model: Model, handle: int) -> None:
        self.model, self.library, self.handle = model, model.library, handle
        self.result = GenerateResult()

    @property
    def ids(self) -> list[int]:
        room = self.library("session_length", self.handle)
        out = (c_int32 * room)()
        return out[: self.library("session_tokens", self.handle, 0, out, room)]

    @property
    def cached(self) -> int:
        return int(self.library("session_cached", self.handle))

    @property
    def finish(self) -> str:
        return FINISH[self.result.finish]

    def fork(self) -> Session:
        return Session(self.model, self.library.made("session_fork", self.handle))

    def save(self, path: str) -> None:
        self.library.check("session_save", self.handle, os.fspath(path).encode())

    def load(self, path: str) -> None:
        self.library.check("session_load", self.handle, os.fspath(path).encode())

    def cancel(self) -> None:
        self.library("cancel", self.handle)

    def prefill(self, ids: Sequence[int] | None = None) -> None:
        self.library.check("prefill", self.handle, None if ids is None else tokens_of(ids), len(ids or ()))

    def step(self, token: int) -> None:
        self.library.check("step", self.handle, token)

    def logits(self) -> list[float]:
        found = self.library("logits", self.handle)
        return found[: self.model.info.vocab_size] if found else []

    def sample(self, **sampling: Any) -> int:
        token, keep = c_int32(), sampling_of(self.library, sampling)
        self.library.check("sample", self.handle, byref(keep[0]), byref(token))
        return token.value

    def score(self, ids: Sequence[int]) -> list[float]:
        out = (c_double * len(ids))()
        self.library.check("score", self.handle, tokens_of(ids), len(ids), out)
        return list(out)

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        on_token: Callable[[GeneratedToken], bool | None] = lambda token: None,
        **options: Any,
    ) -> list[int]:
        """The tokens that follow; on_token may return True to end there. Options are those of Python's edgedec."""
        tokens: list[int] = []

        def each(user: int | None, given: Any) -> int:
            token = given.contents
            if token.id >= 0:
                tokens.append(token.id)
            return bool(on_token(token))

        made, keep = generate_options(self.library, OnToken(each), options)
        self.result = GenerateResult(size=sizeof(GenerateResult))
        if isinstance(prompt, str):
            self.library.check("generate_text", self.handle, prompt.encode(), byref(made), byref(self.result))
        else:
            ids = None if prompt is None else tokens_of(prompt)
            self.library.check("generate", self.handle, ids, len(prompt or ()), byref(made), byref(self.result))
        del keep
        return tokens

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.library("session_free", self.handle)
            self.handle = 0


def sampling_of(library: Library, values: Mapping[str, Any]) -> tuple[SamplingOptions, Any]:
    """The structure of sampling settings, and what it points to."""
    plain = {name: value for name, value in values.items() if name not in ("logit_bias", "seed")}
    made = library.options(SamplingOptions, "sampling_init", **plain)
    bias = dict(values.get("logit_bias") or {})
    ids, amounts = tokens_of(list(bias)), (c_float * len(bias))(*bias.values())
    made.n_bias, made.bias_tokens, made.bias = len(bias), ids, amounts
    if values.get("seed") is not None:
        made.seed, made.seeded = values["seed"], 1
    return made, (ids, amounts)


def generate_options(library: Library, on_token: Any, given: Mapping[str, Any]) -> tuple[GenerateOptions, Any]:
    """The structure of options, and what it points to."""
    settings = {name for name, _ in SamplingOptions._fields_} | {"logit_bias", "seed"}
    values = dict(given)
    sampling, keep = sampling_of(library, {name: values.pop(name) for name in list(values) if name in settings})
    ends, stop = list(values.pop("stop_tokens", ())), [text.encode() for text in values.pop("stop", ())]
    end_ids, texts = tokens_of(ends), (c_char_p * len(stop))(*stop)
    made = library.options(GenerateOptions, "generate_options_init", **values)
    made.sampling, made.on_token = ctypes.pointer(sampling), on_token
    made.stop_tokens, made.n_stop_tokens = end_ids, len(ends)
    made.stop, made.n_stop = texts, len(stop)
    return made, (sampling, keep, end_ids, texts)


def main() -> None:
    bundle, prompt = sys.argv[1:]
    session = Model(Library(), bundle).session()

    def show(token: GeneratedToken) -> None:
        print(token.piece, end="", flush=True)

    print(prompt, end="")
    session.generate(prompt, show, text=1, max_tokens=150)
    print()


if __name__ == "__main__":
    main()
