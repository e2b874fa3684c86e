"""Many texts at a time in llama.cpp's library, as its server generates them: each call decodes one token of every
running text, and prompts of those that begin. The next text takes the place of one that ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from edgedec.errors import RuntimeUnavailable

# llama.cpp keeps the cache of a sequence in whole blocks of this many tokens.
_BLOCK = 256


@dataclass
class _Text:
    """`pending`: tokens to run; `length`: those run already; `left`: tokens still to choose."""

    place: int
    pending: list[int]
    left: int
    length: int = 0


class LlamaBatch:
    """`size` sequences in one context, each with room for `each` tokens."""

    def __init__(self, lib: Any, model: Any, size: int, each: int, threads: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = size * -(-each // _BLOCK) * _BLOCK, size
        params.n_threads = params.n_threads_batch = threads
        self._lib, self._size, self._rows = lib, size, params.n_batch
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeUnavailable(f"llama.cpp cannot open a context of {size} texts")
        self._batch = lib.llama_batch_init(self._rows, 0, 1)
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def close(self) -> None:
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)

    def run(self, prompts: list[list[int]], tokens: int) -> float:
        """Seconds for `tokens` more after each prompt, always the likeliest."""
        waiting, free, running = deque(prompts), list(range(self._size)), list[_Text]()
        began = perf_counter()
        while waiting or running:
            while waiting and free:
                running.append(_Text(free.pop(), list(waiting.popleft()), tokens))
            for text, row in self._decode(running):
                logits = self._lib.llama_get_logits_ith(self._context, row)
                text.pending = [int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())]
                text.left -= 1
                if not text.left:
                    self._lib.llama_memory_seq_rm(self._lib.llama_get_memory(self._context), text.place, -1, -1)
                    free.append(text.place)
            running = [text for text in running if text.left]
        return perf_counter() - began

    def _decode(self, running: list[_Text]) -> list[tuple[_Text, int]]:
        """One call for what is pending, as far as it has room: the texts that may choose, and by which row."""
        batch, ready, row = self._batch, list[tuple[_Text, int]](), 0
        for text in running:
            some, text.pending = text.pending[: self._rows - row], text.pending[self._rows - row :]
            for token in some:
                batch.token[row], batch.pos[row] = token, text.length
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, text.place
                batch.logits[row] = False
                text.length, row = text.length + 1, row + 1
            if some and not text.pending:
                batch.logits[row - 1] = True
                ready.append((text, row - 1))
        batch.n_tokens = row
        if code := self._lib.llama_decode(self._context, batch):
            raise RuntimeUnavailable(f"llama.cpp: llama_decode of {row} tokens gave {code}")
        return ready
