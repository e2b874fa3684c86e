"""One of several prompts for each input, chosen in one pass: input-dependent prompts (IDP).

Rests on the text of a paper's reviews: K trained soft prompts stand before the input, all of them, and the one with the
largest mean of the attention that the input pays to its rows is kept (by="attention"). The mean, not the sum, so that a
long prompt is not preferred. Two things are our own choice: the prompts are texts, which nobody trained, while the
paper's gain rests on training, and the nearest of them gets most attention whatever it says; so the default is
by="likelihood": the prompt after which the input is likeliest by the mean of its log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import Call, Outputs, Rows

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

PoolBy = Literal["attention", "likelihood"]


class PromptPool:
    """Prompts, read once each."""

    def __init__(self, model: Model, prompts: Sequence[str], by: PoolBy = "likelihood") -> None:
        if len(prompts) < 2:
            raise UsageError(f"prompts: {len(prompts)} of them; give two or more")
        if by == "attention" and not model.runtime.capabilities.attention_sums:
            raise RuntimeUnavailable(f"engine {model.runtime.name} returns no attention: choose by likelihood")
        self._model, self.prompts, encode = model, list(prompts), model.tokenizer.encode
        self._sessions: list[Session] = []
        self._spans: list[tuple[int, int]] = []
        # What the tokenizer puts before a text is no prompt's: much attention goes there whatever the text is.
        self._ids = encode("")
        if by == "likelihood":
            self._sessions = [model.session().extend(prompt) for prompt in prompts]
            return
        for prompt in prompts:
            start = len(self._ids)
            self._ids += encode(prompt, around=False)
            self._spans.append((start, len(self._ids)))

    def choose(self, text: str) -> int:
        """The number of the prompt for an input."""
        return int(np.argmax(self.values(text)))

    def values(self, text: str) -> list[float]:
        """What each prompt is worth for an input."""
        ids = self._model.tokenizer.encode(text, around=False)
        if not ids:
            raise UsageError("an empty input: prompts cannot be compared by it")
        if self._sessions:
            return [sum(session.score(ids)) / len(ids) for session in self._sessions]
        attention = self._attention(ids)
        return [float(attention[low:high].mean()) for low, high in self._spans]

    def _attention(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """What an input's rows attend to each row of the prompts [rows of all prompts], over all blocks and heads."""
        runtime, n = self._model.runtime, len(self._ids)
        cache, chunk, found = runtime.new_cache(n + len(ids)), runtime.capabilities.prefill_chunk, np.zeros(n)
        for text in (self._ids, ids):
            # Rows of the prompts attend to each other, which is not asked.
            wanted = Outputs(attention=text is ids)
            for at in range(0, len(text), chunk):
                rows = Rows.chain(text[at : at + chunk], cache.length)
                (result,) = runtime.forward([Call(rows, cache, outputs=wanted)])
                for sums in result.attention.values():
                    found += sums[:, :n].sum(axis=0)
                cache.commit(range(len(rows)))
        return found
