"""The engines that `worker.py` measures: edgedec's through the public API, and others on the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from edgedec.bench.llama_batch import LlamaBatch
from edgedec.bench.llama_context import LLAMA_KV, LlamaContext, load_model
from edgedec.bench.llama_filled import fill
from edgedec.bench.timing import Config
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

        self._model = edgedec.open(
            config.model,
            engine=config.engine,
            threads=threads,
            kv=config.kv,
            prefix_tokens=0,
            trust_code=config.trust_code,
            device=config.device,
        )
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
        from edgedec.bench.row_costs import RowCall

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
    """llama.cpp on the bundle's weights as GGUF (`Config.gguf`), with its own defaults: its cache is f16, or what
    `Config.kv` says in its words."""

    all_logits = True

    def __init__(self, config: Config, threads: int) -> None:
        try:
            import llama_cpp
        except ImportError:
            raise RuntimeUnavailable(f"needs llama-cpp-python: {install_command('peers')}") from None
        if config.gguf is None:
            raise RuntimeUnavailable("needs the weights as GGUF, which `edgedec bench peers` makes")
        if config.kv is not None and config.kv not in LLAMA_KV:
            raise RuntimeUnavailable(f"llama.cpp has no cache of {config.kv}; there are: {', '.join(LLAMA_KV)}")
        self._lib, self._threads, self._kv = llama_cpp, threads, config.kv
        self._model, self._log = load_model(llama_cpp, config.gguf)
        if not self._model:
            raise RuntimeUnavailable(f"llama.cpp cannot load {config.gguf}")
        self._context = self._open(config.prompt + config.generate + 1)
        name = f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"
        self.facts = {"engine_name": name, "kv": config.kv or "f16", "threads": threads}

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
        context.keep()

        def call(ids: list[int]) -> float:
            began = perf_counter()
            context.feed(ids, all_logits=True)
            seconds = perf_counter() - began
            context.forget(len(prefix))
            return seconds

        return call

    def filled(self, ids: list[int], n: int) -> float:
        """Seconds of n steps after so many tokens, most of which are filled in."""
        fill(self._lib, self._context, ids, len(ids))
        last = ids

        def step() -> None:
            nonlocal last
            last = [int(self._context.feed(last[-1:], all_logits=False)[-1].argmax())]

        return _timed(step, step, n)[1]

    def together(self, prompts: list[list[int]], tokens: int, size: int) -> float:
        """Seconds for so many tokens after each prompt, `size` texts at a time."""
        texts = LlamaBatch(self._lib, self._model, size, max(map(len, prompts)) + tokens, self._threads)
        try:
            return texts.run(prompts, tokens)
        finally:
            texts.close()

    def _open(self, capacity: int) -> LlamaContext:
        return LlamaContext(self._lib, self._model, capacity, self._threads, self._kv)


def _timed(first: Callable[[], object], step: Callable[[], object], n: int) -> tuple[float, float]:
    """Seconds of the first token, and of the n after it."""
    began = perf_counter()
    first()
    between = perf_counter()
    for _ in range(n):
        step()
    return between - began, perf_counter() - between


PEERS: dict[str, type[BenchEngine]] = {"genai": Genai}
ENGINES: dict[str, type[BenchEngine]] = PEERS | {"llama.cpp": LlamaCpp}
