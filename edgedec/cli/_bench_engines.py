"""What `_bench_worker` measures: our engines through the public API, and other people's on the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.bench.timing import Config
from edgedec.cli._bench_together import LlamaBatch
from edgedec.errors import RuntimeUnavailable
from edgedec.extras import install_command

TimedCall = Callable[[list[int]], float]


class BenchEngine(Protocol):
    """Loaded by its constructor. `all_logits`: a call of k rows computes the logits of all k, not of the last only."""

    facts: dict[str, Any]
    all_logits: bool

    def run(self, ids: list[int], n: int) -> tuple[float, float]:
        """Seconds to read `ids` and choose a token, and seconds for n tokens after it, one a call."""
        ...

    def drafted(self, ids: list[int], n: int) -> float | None:
        """Seconds for the n tokens with drafts; None if the engine drafts nothing."""
        ...

    def after(self, prefix: list[int], longest: int) -> TimedCall:
        """Read `prefix`; the result runs up to `longest` tokens after it, forgets them, and returns the seconds."""
        ...


class Edgedec:
    """Ours, through the public API."""

    all_logits = True

    def __init__(self, config: Config, threads: int) -> None:
        import edgedec

        self._model = edgedec.open(config.model, engine=config.engine, threads=threads, kv=config.kv, prefix_tokens=0)
        kv = self._model.runtime.new_cache(1).kv
        self.facts = {"engine_name": self._model.runtime.name, "kv": kv, "threads": threads}

    def run(self, ids: list[int], n: int) -> tuple[float, float]:
        return self._tokens(ids, n, "off")

    def drafted(self, ids: list[int], n: int) -> float | None:
        if not self._model.runtime.capabilities.batch_invariant:
            return None  # there `auto` drafts nothing
        return self._tokens(ids, n, "auto")[1]

    def _tokens(self, ids: list[int], n: int, speculate: str) -> tuple[float, float]:
        session = self._model.session(context=len(ids) + n + 1, speculate=speculate)
        step = session.tokens(ids, max_tokens=n + 1, ignore_eos=True).__next__
        return _timed(step, step, n)

    def after(self, prefix: list[int], longest: int) -> TimedCall:
        from edgedec.speculation.rowcost import RowCall

        return RowCall(self._model.runtime, prefix, longest)


class Undrafted:
    """An engine that is measured without drafts only."""

    def drafted(self, ids: list[int], n: int) -> float | None:
        return None


class Genai(Undrafted):
    """onnxruntime-genai on the bundle's whole-model graph, which makes the logits of the last row only."""

    all_logits = False

    def __init__(self, config: Config, threads: int) -> None:
        try:
            import onnxruntime_genai as og
        except ImportError:
            raise RuntimeUnavailable(f"needs onnxruntime-genai: {install_command('peers')}") from None
        from edgedec.bundle.folder import Bundle
        from edgedec.bundle.locate import find

        self._og = og
        # The whole-model graph is made for the first cache format.
        bundle = Bundle.open(find(config.model))
        options = og.Config(str(bundle.path))
        session = {"intra_op_num_threads": threads}
        options.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = og.Model(options)
        version = getattr(og, "__version__", "")
        name = f"onnxruntime-genai {version}".strip()
        self.facts = {"engine_name": name, "kv": bundle.manifest.kv_formats[0], "threads": threads}

    def run(self, ids: list[int], n: int) -> tuple[float, float]:
        generator = self._generator(len(ids) + n + 1)

        def first() -> None:
            generator.append_tokens(np.array(ids, np.int32))
            generator.generate_next_token()

        return _timed(first, generator.generate_next_token, n)

    def after(self, prefix: list[int], longest: int) -> TimedCall:
        generator = self._generator(len(prefix) + longest + 1)
        generator.append_tokens(np.array(prefix, np.int32))

        def call(ids: list[int]) -> float:
            tokens = np.array(ids, np.int32)
            began = perf_counter()
            generator.append_tokens(tokens)
            generator.get_logits()
            seconds = perf_counter() - began
            generator.rewind_to(len(prefix))
            return seconds

        return call

    def _generator(self, length: int) -> Any:
        params = self._og.GeneratorParams(self._model)
        # min_length forbids the end token, which would end the measurement.
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        return self._og.Generator(self._model, params)


class LlamaCpp(Undrafted):
    """llama.cpp on the bundle's weights as GGUF (`Config.gguf`), with its own defaults: its cache is f16."""

    all_logits = True

    def __init__(self, config: Config, threads: int) -> None:
        try:
            import llama_cpp
        except ImportError:
            raise RuntimeUnavailable(f"needs llama-cpp-python: {install_command('peers')}") from None
        if config.gguf is None:
            raise RuntimeUnavailable("needs the weights as GGUF, which `edgedec bench peers` makes")
        self._lib, self._threads = llama_cpp, threads
        # Kept: it is called as long as the process lives.
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(config.gguf.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeUnavailable(f"llama.cpp cannot load {config.gguf}")
        self._context = self._open(config.prompt + config.generate + 1)
        name = f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"
        self.facts = {"engine_name": name, "kv": "f16", "threads": threads}

    def run(self, ids: list[int], n: int) -> tuple[float, float]:
        context = self._context
        context.forget(0)
        last = ids

        def step() -> None:
            nonlocal last
            last = [int(context.feed(last, all_logits=False)[-1].argmax())]

        return _timed(step, step, n)

    def after(self, prefix: list[int], longest: int) -> TimedCall:
        context = self._open(len(prefix) + longest)
        context.feed(prefix, all_logits=False)

        def call(ids: list[int]) -> float:
            began = perf_counter()
            context.feed(ids, all_logits=True)
            seconds = perf_counter() - began
            context.forget(len(prefix))
            return seconds

        return call

    def together(self, prompts: list[list[int]], tokens: int, size: int) -> float:
        """Seconds for so many tokens after each prompt, `size` texts at a time."""
        texts = LlamaBatch(self._lib, self._model, size, max(map(len, prompts)) + tokens, self._threads)
        try:
            return texts.run(prompts, tokens)
        finally:
            texts.close()

    def _open(self, capacity: int) -> LlamaContext:
        return LlamaContext(self._lib, self._model, capacity, self._threads)


class LlamaContext:
    """One sequence in llama.cpp."""

    def __init__(self, lib: Any, model: Any, capacity: int, threads: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = capacity
        params.n_threads = params.n_threads_batch = threads
        self._lib, self._context = lib, lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeUnavailable(f"llama.cpp cannot open a context of {capacity}")
        self._batch = lib.llama_batch_init(capacity, 0, 1)
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self._length = 0

    def feed(self, ids: list[int], all_logits: bool) -> NDArray[np.float32]:
        """Run these tokens after the others: logits [n or 1, vocab_size], good until the next call."""
        batch, last = self._batch, len(ids) - 1
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self._length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == last
        code = self._lib.llama_decode(self._context, batch)
        if code:
            raise RuntimeUnavailable(f"llama.cpp: llama_decode of {len(ids)} tokens gave {code}")
        self._length += len(ids)
        rows = len(ids) if all_logits else 1
        logits: NDArray[np.float32] = np.ctypeslib.as_array(
            self._lib.llama_get_logits(self._context), (rows, self._vocab)
        )
        return logits

    def forget(self, length: int) -> None:
        """All but the first `length` tokens."""
        self._lib.llama_memory_seq_rm(self._lib.llama_get_memory(self._context), 0, length, -1)
        self._length = length


PEERS: dict[str, type[BenchEngine]] = {"genai": Genai}
ENGINES: dict[str, type[BenchEngine]] = PEERS | {"llama.cpp": LlamaCpp}


def _timed(first: Callable[[], object], step: Callable[[], object], n: int) -> tuple[float, float]:
    """Seconds of the first token, and of the n after it."""
    began = perf_counter()
    first()
    between = perf_counter()
    for _ in range(n):
        step()
    return between - began, perf_counter() - between
