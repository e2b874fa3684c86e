"""`TextEncoder`: what `Model.embed`, `rerank` and `classify` do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.bundle import Bundle
from edgedec.encoding.label_learning import learned, new_labels
from edgedec.encoding.learned_labels import LearnedLabels, open_labels
from edgedec.encoding.numeric import Array, squashed, unit
from edgedec.encoding.results import Results
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText, Text, TextReader
from edgedec.encoding.transport import Align, aligned
from edgedec.errors import UsageError
from edgedec.runtime import Runtime
from edgedec.spec import Output
from edgedec.text.tokenizer import Tokenizer

_DOES = {
    "vector": "embed",
    "vectors": "embed tokens or rerank",
    "terms": "embed",
    "duplex": "embed",
    "score": "rerank or classify",
}


@dataclass(frozen=True)
class Ranked:
    """A document by its place among those given, and its score: the higher, the better it fits."""

    index: int
    score: float


class TextEncoder:
    """The texts' side of an opened encoder."""

    def __init__(self, bundle: Bundle, runtime: Runtime, tokenizer: Tokenizer, output: Output) -> None:
        facts, spec = bundle.manifest.encoder, bundle.spec
        assert facts is not None
        self.name, self.output, self._origin = bundle.manifest.name, output, bundle.origin
        longest = min(facts.longest or spec.context_length, spec.context_length)
        self.reader = TextReader(tokenizer, facts, longest, spec.vocab_size, bundle.manifest.modes)
        self._runner, self._results = TextRunner(bundle, runtime), Results(bundle, output)
        self._hidden, self._vocabulary = spec.hidden_size, spec.vocab_size

    @property
    def width(self) -> int:
        """Values of an embedding."""
        return self.output.cls + self._vocabulary if self.output.of_terms else self.output.width(self._hidden)

    def embed(
        self, texts: Sequence[Text], *, prompt: str | None = None, dimensions: int = 0, truncate: bool = False
    ) -> Array:
        """A vector of each text [n, width]. prompt: by name, "" for none; None: the model's default. dimensions: only
        so many, the first ones (Matryoshka embeddings); 0: all. truncate: cut texts that are too long; they are an
        error else."""
        self.check_width(dimensions)
        return self.vectors(self.read(texts, prompt, truncate), dimensions)

    def read(self, texts: Sequence[Text], prompt: str | None = None, truncate: bool = False) -> list[EncodedText]:
        """Texts as tokens."""
        return [self.reader.text(text, i, prompt, truncate) for i, text in enumerate(texts)]

    def vectors(self, texts: Sequence[EncodedText], dimensions: int = 0) -> Array:
        """A vector of each text [n, width], or of the first `dimensions`."""
        self.check_width(dimensions)
        found = [self.narrowed(vector, dimensions) for vector in self.results(texts)]
        return np.stack(found) if found else np.zeros((0, dimensions or self.width), np.float32)

    def check_width(self, dimensions: int) -> None:
        """UsageError unless it makes embeddings, and of at least so many values."""
        self._require("embed", "vector", "terms", "duplex")
        if not 0 <= dimensions <= self.width:
            raise UsageError(f"dimensions {dimensions}: must be from 1 to {self.width}, or 0 for all")

    def narrowed(self, vector: Array, dimensions: int) -> Array:
        """The first values of an embedding, of length 1 again if it was."""
        if not dimensions or dimensions == len(vector):
            return vector
        cut = np.ascontiguousarray(vector[:dimensions])
        return unit(cut) if self.output.normalize else cut

    def token_vectors(self, texts: Sequence[Text], *, prompt: str | None = None, truncate: bool = False) -> list[Array]:
        """A vector of every token of each text, [tokens, width] each: for late interaction (ColBERT)."""
        self._require("embed tokens", "vectors")
        return self.results(self.read(texts, prompt, truncate))

    def scores(self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False) -> Array:
        """The logits [n, labels] of pairs of texts."""
        self._require("score pairs", "score")
        texts = [self.reader.pair(*pair, i, truncate) for i, pair in enumerate(pairs)]
        found = self.results(texts)
        return np.stack(found) if found else np.zeros((0, len(self.output.labels)), np.float32)

    def rerank(
        self, query: str, documents: Sequence[str], *, top: int | None = None, truncate: bool = False
    ) -> list[Ranked]:
        """Documents, the one that fits the query best first, equals in their order; only the first `top` of them."""
        if top is not None and top < 1:
            raise UsageError(f"top {top}: must be 1 or more")
        scores = self._fit(query, documents, truncate)
        order = np.argsort(-scores, kind="stable")[:top]
        return [Ranked(int(i), float(scores[i])) for i in order]

    def _fit(self, query: str, documents: Sequence[str], truncate: bool) -> Array:
        """How well each document fits [n]."""
        results = self.results(self.read_ranking(query, documents, truncate))
        return np.array(self.fits(results), np.float32)

    def read_ranking(self, query: str, documents: Sequence[str], truncate: bool) -> list[EncodedText]:
        """The texts whose results `fits` makes scores of."""
        if self.output.kind == "vectors":
            asked = self.read([query], self.side("query"), truncate)
            return asked + self.read(documents, self.side("document"), truncate)
        self._require("rerank", "score")
        if len(self.output.labels) != 1:
            raise UsageError(f"{self.name}: has {len(self.output.labels)} labels, a reranker has one; use classify")
        return [self.reader.pair(query, document, i, truncate) for i, document in enumerate(documents)]

    def fits(self, results: Sequence[Array]) -> list[float]:
        """How well each document fits, by the results of `read_ranking`."""
        if self.output.kind == "vectors":  # the best match of each of the query's tokens (ColBERT)
            asked, *held = results
            return [float((asked @ vectors.T).max(axis=1).sum()) for vectors in held]
        return [float(squashed(logits, self.output.squash)[0]) for logits in results]

    def side(self, name: str) -> str | None:
        """The prompt of that name, if the model has one; None: its default."""
        return name if name in self.reader.facts.prompts else None

    def classify(self, texts: Sequence[str | tuple[str, str]], *, truncate: bool = False) -> list[dict[str, float]]:
        """The score of every label of each text or pair, the highest first."""
        self._require("classify", "score")
        read = [
            self.reader.text(text, i, None, truncate) if isinstance(text, str) else self.reader.pair(*text, i, truncate)
            for i, text in enumerate(texts)
        ]
        return [self._labelled(logits) for logits in self.results(read)]

    def prototypes(self, examples: Mapping[str, Sequence[Text]], *, truncate: bool = False) -> dict[str, Array]:
        """The direction of each label: the mean of its examples' vectors of length 1, of length 1 again."""
        if not examples or not all(examples.values()):
            raise UsageError("examples: every label needs one at least")
        found = {label: unit(self.embed(texts, truncate=truncate)).mean(axis=0) for label, texts in examples.items()}
        return {label: unit(vector) for label, vector in found.items()}

    def by_examples(
        self,
        texts: Sequence[Text],
        examples: Mapping[str, Sequence[Text]],
        align: Align | None = None,
        *,
        truncate: bool = False,
    ) -> list[dict[str, float]]:
        """The cosine of each text to every label's prototype, the highest first. align: prototypes moved towards the
        texts (`transport`)."""
        prototypes = self.prototypes(examples, truncate=truncate)
        vectors = unit(self.embed(texts, truncate=truncate))
        if align is not None and texts:
            counts = np.array([len(examples[label]) for label in prototypes])
            moved = aligned(np.stack([*prototypes.values()]), counts, vectors, align)
            prototypes = dict(zip(prototypes, moved, strict=True))
        found = []
        for vector in vectors:
            scores = {label: float(vector @ prototype) for label, prototype in prototypes.items()}
            found.append(dict(sorted(scores.items(), key=lambda item: -item[1])))
        return found

    def new_labels(self, texts: Sequence[Text], *, truncate: bool = False) -> LearnedLabels:
        """No labels yet; keys of these texts, which need no labels."""
        self._require("learn labels", "vector")
        return new_labels(self._origin, self.embed(texts, truncate=truncate))

    def open_labels(self, path: str | os.PathLike[str]) -> LearnedLabels:
        """The labels in a file; UsageError if they are for another encoder."""
        self._require("learn labels", "vector")
        return open_labels(path, self._origin, self.width)

    def learn_labels(
        self, known: LearnedLabels, examples: Mapping[str, Sequence[Text]], *, truncate: bool = False
    ) -> LearnedLabels:
        """`known` and what examples add: new labels, or more of labels it has."""
        self._check(known)
        return learned(known, {label: self.embed(texts, truncate=truncate) for label, texts in examples.items()})

    def by_labels(
        self, texts: Sequence[Text], labels: LearnedLabels, *, truncate: bool = False
    ) -> list[dict[str, float]]:
        """The share of each learned label of each text, the highest first."""
        self._check(labels)
        return [labels.scores(vector) for vector in self.embed(texts, truncate=truncate)]

    def _check(self, labels: LearnedLabels) -> None:
        if labels.encoder != self._origin:
            raise UsageError(f"labels: of another encoder's vectors, not of {self.name}'s; build them again")

    def _labelled(self, logits: Array) -> dict[str, float]:
        scores = squashed(logits, self.output.squash)
        order = np.argsort(-scores, kind="stable")
        return {self.output.labels[i]: float(scores[i]) for i in order}

    def results(self, texts: Sequence[EncodedText]) -> list[Array]:
        """What the model makes of each text."""
        return [self._results.of(hidden) for hidden in self._runner.hidden(texts)]

    def _require(self, what: str, *kinds: str) -> None:
        if self.output.kind not in kinds:
            raise UsageError(f"{self.name}: cannot {what}; this model can {_DOES[self.output.kind]}")
