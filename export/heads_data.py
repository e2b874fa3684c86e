"""Training data of draft heads: hidden states of a model on texts, and its prediction after each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.cache import Cache
from edgedec.runtime import Call, Outputs, Rows, Runtime, forward_one
from edgedec.runtime.checks import check_one_stream
from edgedec.storage.files import replacing

Progress = Callable[[str, int, int], None]
WINDOW = 512
_CHUNK = 128
_GREATEST_HALF = 65504.0


@dataclass(frozen=True)
class Data:
    """hidden f16 [n, H]; tokens int64 [n], the row's own; labels int64 [n], the model's prediction after it;
    left int64 [n], how many rows of its text follow a row."""

    hidden: NDArray[np.float16]
    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    left: NDArray[np.int64]

    def save(self, path: Path) -> None:
        from safetensors.numpy import save

        with replacing(path) as file:
            file.write(save({name: np.ascontiguousarray(value) for name, value in vars(self).items()}))

    @classmethod
    def load(cls, path: Path) -> Data:
        from safetensors.numpy import load_file

        return cls(**load_file(path))


def windows(texts: Sequence[Sequence[int]], context: int, first: int | None) -> list[list[int]]:
    """Texts cut to the length of one call; a text that begins with `first` has it before every piece."""
    found: list[list[int]] = []
    for text in texts:
        begin = list(text[:1]) if first is not None and text and text[0] == first else []
        body, step = text[len(begin) :], max(1, min(context, WINDOW) - len(begin))
        found += [[*begin, *body[at : at + step]] for at in range(0, len(body), step)]
    return [piece for piece in found if len(piece) > 1]


def key_of(bundle: Bundle, engine: str, layer: int, pieces: Sequence[Sequence[int]]) -> str:
    """The key of the data that `collect` would return."""
    said = hashlib.sha256(bundle.manifest.files[bundle.manifest.weights].sha256.encode())
    said.update(f"{engine} {layer} ".encode())
    for piece in pieces:
        said.update(np.asarray(piece, np.int64).tobytes() + b".")
    return said.hexdigest()[:16]


def collect(runtime: Runtime, pieces: Sequence[Sequence[int]], layer: int, show: Progress) -> Data:
    """Run the model over all pieces. layer 0: hidden states after the last block, else after so many layers."""
    total, done = sum(map(len, pieces)), 0
    check_one_stream(runtime.spec, (runtime.spec.span(0, layer or runtime.spec.n_layers)[-1],), "training of heads")
    data = Data(np.empty((total, runtime.spec.hidden_size), np.float16), *(np.empty(total, np.int64) for _ in range(3)))
    for piece in pieces:
        cache = runtime.new_cache(len(piece))
        for at in range(0, len(piece), _CHUNK):
            rows = Rows.chain(piece[at : at + _CHUNK], at)
            hidden, labels = _read(runtime, rows, cache, layer)
            cache.commit(range(len(rows)))
            here = slice(done, done + len(rows))
            data.hidden[here] = np.clip(hidden, -_GREATEST_HALF, _GREATEST_HALF)
            data.labels[here], data.tokens[here] = labels, rows.tokens
            data.left[here] = len(piece) - 1 - rows.positions
            done += len(rows)
            show("read", done, total)
    return data


def _read(runtime: Runtime, rows: Rows, cache: Cache, layer: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """The hidden states and the model's predictions of each row."""
    spec = runtime.spec
    block = spec.span(0, layer or spec.n_layers)[-1]
    result = forward_one(runtime, Call(rows, cache, outputs=Outputs(top=1, hidden=(block,))))
    assert result.ids is not None
    return result.hidden[block], result.ids[:, 0]


def most_said(data: Data, vocab: int, keep: int) -> NDArray[np.int64]:
    """VocabTrim: the `keep` tokens that the model predicts most often, ascending; all tokens if 0."""
    if not keep or keep >= vocab:
        return np.arange(vocab)
    counts = np.bincount(data.labels, minlength=vocab)
    return np.sort(np.argsort(-counts, kind="stable")[:keep])
