"""Text encoders in ONNX Runtime and llama.cpp, for `edgedec bench embed`: files of others, as they run them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bench.embedding import Run, Texts
from edgedec.bench.llama_context import load_model
from edgedec.bench.llama_weights import missing_library
from edgedec.encoding.runner import batches
from edgedec.errors import RuntimeUnavailable, UsageError

# Tokens of a call of llama.cpp, and its texts.
_ROWS, _TEXTS = 2048, 64
_MEAN = 1  # llama.cpp's pooling


def of_onnx(file: str, threads: int) -> tuple[str, Run]:
    """(name, run) of an ONNX graph as the hub has them (what fastembed and optimum run): the texts of a call padded to
    the longest, the mean of each one's rows."""
    import onnxruntime as ort

    _existing(file, "onnx")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = {given.name for given in session.get_inputs()}
    if "input_ids" not in names or names - {"input_ids", "attention_mask", "token_type_ids"}:
        raise UsageError(f"--peer onnx:{file}: reads {', '.join(sorted(names))}; must be input_ids, attention_mask")

    def run(texts: Texts) -> object:
        most = max(map(len, texts))
        ids = np.array([text + [0] * (most - len(text)) for text in texts], np.int64)
        seen = (np.arange(most) < np.array([[len(text)] for text in texts])).astype(np.int64)
        all_ = {"input_ids": ids, "attention_mask": seen, "token_type_ids": np.zeros_like(ids)}
        found = session.run(None, {name: all_[name] for name in names})[0]
        return found if found.ndim == 2 else (found * seen[..., None]).sum(1) / seen.sum(1, keepdims=True)

    return f"onnx {Path(file).stem}", run


def of_llama_cpp(file: str, threads: int) -> tuple[str, Run]:
    """(name, run) of a GGUF file in llama.cpp: as many texts a call as have room, and the mean of each one's rows."""
    _existing(file, "llama.cpp")
    if why := missing_library():
        raise RuntimeUnavailable(f"--peer llama.cpp: {why}")
    import llama_cpp as lib

    model, log = load_model(lib, file)
    if not model:
        raise UsageError(f"--peer llama.cpp:{file}: llama.cpp cannot open it")
    context = _LlamaEncoder(lib, model, threads, log)
    return "llama.cpp", lambda texts: [vector for part in _parts(texts) for vector in context.vectors(part)]


class _LlamaEncoder:
    def __init__(self, lib: Any, model: Any, threads: int, kept: object) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = _ROWS
        params.n_seq_max, params.n_threads, params.n_threads_batch = _TEXTS, threads, threads
        params.embeddings, params.pooling_type, params.kv_unified = True, _MEAN, True
        self._lib, self._width, self._kept = lib, lib.llama_model_n_embd(model), kept
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeUnavailable("llama.cpp cannot open a context of embeddings")
        self._batch = lib.llama_batch_init(_ROWS, 0, 1)

    def vectors(self, texts: Texts) -> list[NDArray[np.float32]]:
        batch, row = self._batch, 0
        for number, text in enumerate(texts):
            for place, token in enumerate(text):
                batch.token[row], batch.pos[row], batch.logits[row] = token, place, True
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, number
                row += 1
        batch.n_tokens = row
        if code := self._lib.llama_encode(self._context, batch):
            raise RuntimeUnavailable(f"llama.cpp: llama_encode of {row} tokens gave {code}")
        found = (self._lib.llama_get_embeddings_seq(self._context, number) for number in range(len(texts)))
        return [np.ctypeslib.as_array(vector, (self._width,)).copy() for vector in found]


def _parts(texts: Texts) -> Iterator[Texts]:
    """The texts of each call of llama.cpp."""
    lengths = [len(text) for text in texts]
    if max(lengths, default=0) > _ROWS:
        raise UsageError(f"--peer llama.cpp: a text of {max(lengths)} tokens; a call has {_ROWS}")
    for batch in batches(lengths, _ROWS):
        for at in range(0, len(batch), _TEXTS):
            yield [texts[i] for i in batch[at : at + _TEXTS]]


def _existing(file: str, kind: str) -> None:
    if not Path(file).is_file():
        raise UsageError(f"--peer {kind}:{file}: there is no such file")
