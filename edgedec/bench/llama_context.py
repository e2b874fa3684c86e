"""A text in llama.cpp: its tokens so far, and the logits of those that come next."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import RuntimeUnavailable

# Formats of llama.cpp's cache, by their numbers in ggml.h.
LLAMA_KV = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}


def load_model(lib: Any, gguf: str) -> tuple[Any, object]:
    """A model, null if llama.cpp cannot read it, and what silences its log, to be kept: it is called as long as the
    process lives."""
    log = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(log, None)
    lib.llama_backend_init()
    return lib.llama_model_load_from_file(gguf.encode(), lib.llama_model_default_params()), log


class LlamaContext:
    """One sequence in llama.cpp. length: of its tokens; flash: its flash attention, which rounds to 16 bits; None: as
    llama.cpp chooses, but with the cache in the format kv."""

    def __init__(
        self, lib: Any, model: Any, capacity: int, threads: int, kv: str | None = None, flash: bool | None = None
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = capacity
        params.n_threads = params.n_threads_batch = threads
        if kv is not None:
            params.type_k = params.type_v = LLAMA_KV[kv]
            params.flash_attn_type = 1  # without it values cannot be quantized
        if flash is not None:
            params.flash_attn_type = int(flash)
        self._lib, self.address = lib, lib.llama_init_from_model(model, params)
        if not self.address:
            raise RuntimeUnavailable(f"llama.cpp cannot open a context of {capacity}")
        self._batch = lib.llama_batch_init(capacity, 0, 1)
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self.length = 0
        self._kept, self._kept_length = (ctypes.c_uint8 * 0)(), -1

    def feed(self, ids: list[int], all_logits: bool) -> NDArray[np.float32]:
        """Run these tokens after the others: logits [n or 1, vocab_size], good until the next call."""
        batch, last = self._batch, len(ids) - 1
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == last
        code = self._lib.llama_decode(self.address, batch)
        if code:
            raise RuntimeUnavailable(f"llama.cpp: llama_decode of {len(ids)} tokens gave {code}")
        self.length += len(ids)
        rows = len(ids) if all_logits else 1
        logits: NDArray[np.float32] = np.ctypeslib.as_array(
            self._lib.llama_get_logits(self.address), (rows, self._vocab)
        )
        return logits

    def keep(self) -> None:
        """Save the state, for `forget`: a recurrent one cannot be cut back to its first tokens."""
        size = self._lib.llama_state_seq_get_size(self.address, 0)
        self._kept, self._kept_length = (ctypes.c_uint8 * size)(), self.length
        self._lib.llama_state_seq_get_data(self.address, self._kept, size, 0)

    def forget(self, length: int) -> None:
        """All but the first `length` tokens: none, or those that there were at `keep`, or any of a state of slots."""
        if not self._lib.llama_memory_seq_rm(self._lib.llama_get_memory(self.address), 0, length or -1, -1):
            restored = length == self._kept_length and self._lib.llama_state_seq_set_data(
                self.address, self._kept, len(self._kept), 0
            )
            if not restored:
                raise RuntimeUnavailable(f"llama.cpp cannot cut a recurrent state back to {length} tokens")
        self.length = length
