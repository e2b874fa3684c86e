"""How much each passage of a long text has to do with the text's end: by tokens in common, or by a text encoder.

By an encoder as in RAPID (Chen et al. 2025): a passage's text and the end's are embedded, and count by their cosine.
The authors take BGE-M3, passages of up to 512 tokens, at least 4,096 tokens of them or a 24th of the text, and only
those with a cosine of 0.3 or more; their query is the question. Here the query is the end of the text, since a prompt
need not have a question; there is no threshold, which is a figure of BGE-M3 (cosines of other encoders lie elsewhere),
and the passages are of the drafter's `chunk` tokens, because its short text is to stay short.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.drafters import DrafterContext
from edgedec.drafters._models.opening import draft_runtime
from edgedec.drafters._networks.shared import SharedInstances
from edgedec.encoding import TextEncoder
from edgedec.encoding.numeric import Array, unit
from edgedec.errors import BundleNotFound, UsageError
from edgedec.runtime import opened_with
from edgedec.text.tokenizer import Tokenizer

_KEPT = 1 << 24  # numbers in the vectors that are kept: 64 MiB, or those of one text if they are more
_encoders: SharedInstances[TextEncoder] = SharedInstances()
Ids = Sequence[int]


def shared_tokens(passages: Sequence[Ids], query: Ids) -> NDArray[np.float64]:
    """The weight [passages] of the query's tokens that each passage has: of a token the more, the fewer passages have
    it (as in TF-IDF)."""
    rows = np.asarray(passages, np.int64)
    tokens = np.unique(np.asarray(query, np.int64))
    has = np.stack([(rows == token).any(axis=1) for token in tokens], axis=1)
    weight = np.log((1 + len(rows)) / (1 + has.sum(axis=0)))
    found: NDArray[np.float64] = has @ weight
    return found


class PassageEncoder:
    """Embeds passages, each once, as long as it stays in the text. known: the vectors by passage, which sessions of a
    model may share. `made`: the passages that were embedded; `seconds`: the time of that, queries included."""

    def __init__(self, encoder: TextEncoder, tokenizer: Tokenizer, known: dict[bytes, Array]) -> None:
        self._encoder, self._tokenizer, self._known = encoder, tokenizer, known
        self.made, self.seconds = 0, 0.0

    def cosines(self, passages: Sequence[Ids], query: Ids) -> NDArray[Any]:
        """The cosine [passages] of each passage's vector to the query's."""
        began, known = perf_counter(), self._known
        keys = [np.asarray(passage, np.int32).tobytes() for passage in passages]
        fresh = {key: passage for key, passage in zip(keys, passages, strict=True) if key not in known}
        known.update(zip(fresh, self._vectors([*fresh.values()], "document"), strict=True))
        found = np.stack([known[key] for key in keys]) @ self._vectors([query], "query")[0]
        if len(known) * self._encoder.width > _KEPT:
            kept = {key: known[key] for key in keys}
            known.clear()
            known.update(kept)
        self.made, self.seconds = self.made + len(fresh), self.seconds + perf_counter() - began
        return found

    def inherit(self, other: PassageEncoder) -> None:
        """Know the passages of another text too."""
        self._known.update(other._known)

    def _vectors(self, passages: Sequence[Ids], side: str) -> Array:
        """A vector of length 1 of each passage [passages, width]; zeros where it has no text."""
        texts = [self._text(passage) for passage in passages]
        at = [i for i, text in enumerate(texts) if text]
        found = np.zeros((len(texts), self._encoder.width), np.float32)
        read = self._encoder.read([texts[i] for i in at], self._encoder.side(side), truncate=True)
        found[at] = unit(self._encoder.vectors(read))
        return found

    def _text(self, ids: Ids) -> str:
        """The text of tokens, without the parts of characters at its ends."""
        return self._tokenizer.decode(ids).strip("\ufffd").strip()


def passage_encoder(host: DrafterContext, path: str) -> PassageEncoder:
    """That of the text encoder's bundle at `path`; UsageError if it makes no vectors of texts."""
    where = f"drafter rapid: encoder={path}"
    if host.bundle.manifest.text.tokenizer is None:
        raise UsageError(f"{where}: {host.bundle.path} has no tokenizer, so its passages have no text")
    try:
        bundle = Bundle.open(find(path))
    except BundleNotFound as error:
        raise UsageError(f"{where}: {error}") from None
    key = str(bundle.path.resolve()), bundle.digest, host.runtime.name, opened_with(host.runtime)
    encoder = host.table(("encoder", *key), lambda: _encoders.get(key, lambda: _opened(host, bundle, where)))
    return PassageEncoder(encoder, host.tokenizer(), host.table(("passages", *key), dict))


def _opened(host: DrafterContext, bundle: Bundle, where: str) -> TextEncoder:
    name, output = bundle.manifest.text.tokenizer, bundle.output
    if output is None:
        raise UsageError(f"{where}: {bundle.manifest.name} generates text; passages need a text encoder")
    if name is None:
        raise UsageError(f"{where}: {bundle.path} has no tokenizer, so it reads no text")
    encoder = TextEncoder(bundle, draft_runtime(host, bundle), Tokenizer.load(bundle.file(name)), output)
    try:
        encoder.check_width(0)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return encoder
