"""Several texts of one prompt as the CLI shows them: at their end, in their order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from edgedec.cli._output import print_json
from edgedec.cli._stream import describe, rate
from edgedec.decoding.config import GenerationConfig
from edgedec.prompting import WrittenText, several
from edgedec.search.choices import Choices
from edgedec.session import Session

# The line between two texts.
_BETWEEN = "---"


class Several:
    """The texts of a prompt, and their counts."""

    def __init__(self, session: Session, config: GenerationConfig, choices: Choices) -> None:
        self.session, self._config, self._choices = session, config, choices
        self._texts, self._seconds = list[WrittenText](), 0.0

    def write(self, ids: Sequence[int], prompt: str, echo: bool, json: bool) -> None:
        """Write the texts, and print them."""
        began = perf_counter()
        choices = self._choices
        self._texts = several(self.session, ids, choices.n, choices.best_of, self._config)
        self._seconds = perf_counter() - began
        if json:
            texts = [self._described(text) for text in self._texts]
            print_json({"prompt": prompt, "texts": texts, "stats": self.stats()})
            return
        shown = [f"{prompt if echo else ''}{text.text}\n" for text in self._texts]
        sys.stdout.write(f"{_BETWEEN}\n".join(shown))

    def stats(self) -> dict[str, Any]:
        """Counts of the texts that are given; the time of all."""
        generated = sum(text.stats.generated for text in self._texts)
        return {
            "prompt_tokens": max((text.stats.prompt for text in self._texts), default=0),
            "texts": len(self._texts),
            "written": self._choices.texts,
            "generated_tokens": generated,
            "seconds": round(self._seconds, 4),
            "tokens_per_s": rate(generated, self._seconds),
            "seed": self._config.sampling.seed,
        }

    def stats_line(self) -> str:
        """The counts for display."""
        s = self.stats()
        seed = "" if s["seed"] is None else f", seed {s['seed']}"
        best = f"the best {s['texts']} of {s['written']}" if s["written"] > s["texts"] else s["texts"]
        return (
            f"prompt {s['prompt_tokens']} tokens, {best} texts of {s['generated_tokens']} tokens in all, "
            f"{s['tokens_per_s'] or 0:.1f} tokens/s, finish: {', '.join(text.finish for text in self._texts)}{seed}"
        )

    def _described(self, text: WrittenText) -> dict[str, Any]:
        found: dict[str, Any] = {
            "text": text.text,
            "tokens": [int(token) for token in text.tokens],
            "finish_reason": text.finish,
            "seed": text.seed,
        }
        if self._choices.texts > self._choices.n:
            found["score"] = round(text.score, 6)
        if text.search:
            found["search"] = text.search
        if self._config.logprobs is not None:
            found["logprobs"] = [describe(token, self.session.model.tokenizer) for token in text.tokens]
        return found
