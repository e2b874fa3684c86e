"""Texts as a stream of the target's features. Nothing is stored: the target runs on a row when it is needed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.errors import UsageError
from edgedec.export.exits_data import Encode, TokenStream, documents
from edgedec.export.students import Features, StudentTarget
from edgedec.runtime import Call, Outputs, Rows, Runtime, forward_one
from edgedec.runtime.checks import check_bare_head, check_one_stream

_CHUNK = 128
_COUNTED = 4096  # documents whose tokens are counted


class FeatureStream:
    """Rows of `length` + 1 tokens and their features; `tokens.place` is where the next one comes from."""

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        layers: Sequence[int],
        tokens: TokenStream,
        device: torch.device,
        anchors: int = 0,
    ) -> None:
        """anchors: so many first tokens of a row stay where they are, the others stand anywhere in the context."""
        spec = runtime.spec
        self.bundle, self.runtime, self.tokens, self.device, self._anchors = bundle, runtime, tokens, device, anchors
        self._blocks = tuple(spec.span(0, layer)[-1] for layer in (*layers, spec.n_layers))
        check_one_stream(spec, self._blocks, "training of heads")

    def __next__(self) -> Features:
        row, place = next(self.tokens), self.tokens.place
        room = self.runtime.spec.context_length - len(row)
        if not self._anchors or room <= 0:
            return self.of(row)
        return self.of(row, random.Random(f"{place.turn} {place.block} {place.row}").randint(0, room))

    def held(self) -> list[Features]:
        """Features of the held-out texts."""
        return [self.of(row) for row in self.tokens.held() if len(row) > 16]

    def of(self, row: Sequence[int], offset: int = 0) -> Features:
        """offset: how much further on the tokens after the anchors stand."""
        places = np.arange(len(row), dtype=np.int64)
        places[self._anchors :] += offset
        states, said = self._read(row, places)
        scale = np.float32(self.runtime.spec.embed_scale)
        ids = np.asarray(row, np.int64)
        found = [self._tensor(state) for state in states]
        embeddings = self._tensor(self.bundle.gather("embed", ids) * scale)
        after, at = self._tensor(said), self._tensor(places)
        return Features(self._tensor(ids), embeddings, tuple(found[:-1]), found[-1], after, at)

    def _read(
        self, row: Sequence[int], places: NDArray[np.int64]
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:
        """Hidden states after each of the blocks, and the model's prediction after each token."""
        cache, parts, said = self.runtime.new_cache(len(row)), [], []
        wanted = Outputs(top=1, hidden=tuple(sorted(set(self._blocks))))
        for at in range(0, len(row), _CHUNK):
            rows = replace(Rows.chain(row[at : at + _CHUNK], at), positions=places[at : at + _CHUNK])
            result = forward_one(self.runtime, Call(rows, cache, outputs=wanted))
            cache.commit(range(len(rows)))
            assert result.ids is not None
            parts.append(result.hidden)
            said.append(result.ids[:, 0])
        return [np.concatenate([part[b] for part in parts]) for b in self._blocks], np.concatenate(said).astype(
            np.int64
        )

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def most_used(files: Sequence[Path], encode: Encode, vocab: int, keep: int) -> NDArray[np.int64]:
    """The `keep` tokens that the texts use most, ascending; all of them if 0."""
    if not keep or keep >= vocab:
        return np.arange(vocab)
    counts: Counter[int] = Counter()
    for text in islice((text for path in files for text in documents(path)), _COUNTED):
        counts.update(encode(text))
    if not counts:
        raise UsageError("the data hold no text")
    order = np.argsort([-counts[i] for i in range(vocab)], kind="stable")
    return np.sort(order[:keep])


def target_of(bundle: Bundle, ids: NDArray[np.int64], device: torch.device) -> StudentTarget:
    """The last norm and the kept rows of the head."""
    check_bare_head(bundle.spec, "training")
    readout = bundle.gather("embed" if bundle.spec.tied else "head", ids)
    norm = bundle.rows("final_norm").reshape(-1)
    norm, readout, ids = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (norm, readout, ids))
    return StudentTarget(norm, readout, ids, bundle)


def stream_of(
    bundle: Bundle, runtime: Runtime, layers: Sequence[int], tokens: TokenStream, anchors: int = 0
) -> FeatureStream:
    """The features of a stream of tokens, on a GPU if torch sees one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return FeatureStream(bundle, runtime, layers, tokens, device, anchors)
