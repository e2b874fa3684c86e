"""The inputs and outputs of a decoder's graph, read from the graph. Other conventions are refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.spec import Opaque

_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)\Z")
_FORMATS = {"tensor(float)": "f32", "tensor(float16)": "f16"}
_INTEGERS: dict[str, Any] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_OPTIONAL = ("attention_mask", "position_ids")


@dataclass(frozen=True)
class Interface:
    """Names of a graph's inputs and outputs. past, present: keys and values of each layer in turn; integers: the dtype
    of each input that is no cache; vocab_size: 0 if the graph does not give it."""

    logits: str
    past: tuple[str, ...]
    present: tuple[str, ...]
    integers: Mapping[str, Any]
    spec_blocks: tuple[Opaque, ...]
    kv: str
    vocab_size: int

    def feeds(self, tokens: NDArray[np.int64], start: int, past: Sequence[Any]) -> dict[str, Any]:
        """The inputs of rows `start` and on, after the keys and values `past` of `start` slots."""
        n = len(tokens)
        values = {
            "input_ids": tokens,
            "attention_mask": np.ones(start + n, np.int64),
            "position_ids": np.arange(start, start + n),
        }
        feeds = {
            name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(values[name][None], dtype))
            for name, dtype in self.integers.items()
        }
        return feeds | dict(zip(self.past, past, strict=True))


def interface_of(session: Any, where: str, wrong: type[EdgedecError]) -> Interface:
    """The interface of an open graph; `wrong` makes the error for a graph that is no decoder with a cache."""
    try:
        return _interface_of(session, where, wrong)
    except UnicodeDecodeError:
        raise wrong(f"{where}: names of its inputs or outputs are not UTF-8: the file is damaged") from None


def _interface_of(session: Any, where: str, wrong: type[EdgedecError]) -> Interface:
    inputs = {value.name: value for value in session.get_inputs()}
    outputs = {value.name: value for value in session.get_outputs()}
    past = sorted((name for name in inputs if _PAST.match(name)), key=_place)
    if "input_ids" not in inputs or "logits" not in outputs:
        raise wrong(f"{where}: takes {_listed(inputs)}: no decoder of text (input_ids in, logits out)")
    if not past:
        raise wrong(
            f"{where}: exported without past_key_values, so that every token would read the whole text again; export "
            "it with `optimum-cli export onnx --task text-generation-with-past`"
        )
    for name in inputs:
        if name not in ("input_ids", *_OPTIONAL, *past):
            raise wrong(f"{where}: needs the input {name!r}, which edgedec does not know; export it with optimum-onnx")
    layers = len(past) // 2
    names = [f"{i}.{part}" for i in range(layers) for part in ("key", "value")]
    present = [f"present.{name}" for name in names]
    if past != [f"past_key_values.{name}" for name in names] or not set(present) <= set(outputs):
        raise wrong(f"{where}: caches {_listed(past)}: expected a key and a value, in and out, of each layer")
    blocks = tuple(_block(inputs[past[2 * i]], inputs[past[2 * i + 1]], where, wrong) for i in range(layers))
    kinds = {inputs[name].type for name in past}
    if len(kinds) > 1 or not kinds <= set(_FORMATS):
        raise wrong(f"{where}: keys and values of {_listed(kinds)}: expected float or float16")
    integers = {name: _integer(inputs[name], where, wrong) for name in inputs if name not in past}
    width = outputs["logits"].shape[-1]
    vocab = width if isinstance(width, int) else 0
    return Interface("logits", tuple(past), tuple(present), integers, blocks, _FORMATS[kinds.pop()], vocab)


def _place(name: str) -> tuple[int, str]:
    """ "past_key_values.10.key" -> (10, "key")."""
    found = _PAST.match(name)
    assert found is not None
    return int(found[1]), found[2]


def _block(key: Any, value: Any, where: str, wrong: type[EdgedecError]) -> Opaque:
    """The layer that keeps these two [batch, heads, slots, head_dim]."""
    sizes = key.shape[1::2] if len(key.shape) == 4 else []
    if (
        list(value.shape[1::2]) != list(sizes)
        or not all(isinstance(size, int) and size > 0 for size in sizes)
        or not sizes
    ):
        raise wrong(
            f"{where}: {key.name} {list(key.shape)}: expected [batch, heads, slots, head_dim] of keys and values"
        )
    if isinstance(key.shape[2], int):
        raise wrong(
            f"{where}: {key.name} holds {key.shape[2]} slots and no others: edgedec needs a graph of any length"
        )
    return Opaque(*sizes)


def _integer(value: Any, where: str, wrong: type[EdgedecError]) -> Any:
    if value.type not in _INTEGERS or len(value.shape) != 2:
        raise wrong(f"{where}: {value.name} is {value.type}{list(value.shape)}: expected integers [batch, tokens]")
    return _INTEGERS[value.type]


def _listed(names: Any) -> str:
    """At most six names, for a message."""
    every = list(names)
    return ", ".join(map(str, every[:6])) + (", …" if len(every) > 6 else "")
