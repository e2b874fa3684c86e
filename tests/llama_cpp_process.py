"""llama.cpp in a process of its own: what it keeps, and where it aborts, is not that of the tests.

`asked("tokens", path, texts)` runs the function of that name in another process; arguments and results are JSON.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from typing import Any

import pytest


def asked(what: str, *arguments: object) -> Any:
    """What a function of this file returns in another process."""
    pytest.importorskip("llama_cpp", reason="comparing with llama.cpp needs the package llama_cpp")
    given = json.dumps(arguments, default=str)
    done = subprocess.run([sys.executable, __file__, what], input=given.encode(), capture_output=True)
    assert done.returncode == 0, f"llama.cpp, {what}: {done.returncode} {done.stderr[-2000:].decode(errors='replace')}"
    return json.loads(done.stdout)


def _model(path: str, vocab_only: bool) -> tuple[Any, Any, Any]:
    """(The library, the model of a file, its vocabulary.)"""
    import llama_cpp

    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    assert model, path
    return llama_cpp, model, llama_cpp.llama_model_get_vocab(model)


def tokens(path: str, texts: list[str]) -> list[list[int]]:
    """The tokens of texts, with the special ones around."""
    library, _, vocabulary = _model(path, True)
    found = []
    for text in texts:
        raw = text.encode()
        buffer = (library.llama_token * (4 * len(raw) + 16))()
        n = library.llama_tokenize(vocabulary, raw, len(raw), buffer, len(buffer), True, True)
        found.append([int(token) for token in buffer[:n]])
    return found


def ends(path: str) -> list[int]:
    """The tokens after which it generates no more."""
    library, _, vocabulary = _model(path, True)
    return [i for i in range(library.llama_vocab_n_tokens(vocabulary)) if library.llama_vocab_is_eog(vocabulary, i)]


def states(path: str, ids: list[int], pooling: int) -> list[Any]:
    """The states of the rows [n, hidden_size], or with a pooling what it makes of them (4: scores)."""
    import numpy as np

    library, model, _ = _model(path, False)
    params = library.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(64, len(ids))
    params.n_threads = params.n_threads_batch = 1
    params.embeddings, params.pooling_type, params.flash_attn_type = True, pooling, 0
    context, batch = library.llama_init_from_model(model, params), library.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
        batch.seq_id[i][0] = 0
    assert library.llama_decode(context, batch) == 0
    if pooling:
        width = library.llama_model_n_cls_out(model) if pooling == 4 else library.llama_model_n_embd_out(model)
        found = np.ctypeslib.as_array(library.llama_get_embeddings_seq(context, 0), (width,))
    else:
        shape = len(ids), library.llama_model_n_embd(model)
        found = np.ctypeslib.as_array(library.llama_get_embeddings(context), shape)
    return list(found.tolist())


def quantized(kind: str, pure: bool, source: str, target: str) -> int:
    """0: the file was written."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.pure = getattr(llama_cpp, f"LLAMA_FTYPE_{kind}"), 1, pure
    params.allow_requantize = True
    return int(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


if __name__ == "__main__":
    answers = {"tokens": tokens, "ends": ends, "states": states, "quantized": quantized}
    answer: Any = answers[sys.argv[1]]
    print(json.dumps(answer(*json.load(sys.stdin))))  # its log goes to stderr
