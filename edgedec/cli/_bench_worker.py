"""The process behind `edgedec bench`: opens one model with one engine, then measures on demand.

    python -m edgedec.cli._bench_worker CONFIG      (a `benchmark.Config` as JSON)

It says {"load_s", …}; answers {"do": "run"} with {"prefill_s", "decode_s"} and {"do": "end"} with
{"peak_bytes"}; ends with its input. Prefill runs up to the first new token, decoding is `generate`
calls of one token each behind it. A class named in PEERS measures another engine on the same folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, TextIO

import numpy as np

from edgedec.benchmark import Config, cores, peak_memory
from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError


class Engine(Protocol):
    """Loaded by its constructor."""

    facts: dict[str, Any]

    def run(self, ids: list[int], n: int) -> tuple[float, float]:
        """Seconds to read `ids` and choose a token, and seconds for n tokens behind it."""
        ...


class Edgedec:
    """Ours, through the public API."""

    def __init__(self, config: Config, threads: int) -> None:
        import edgedec

        self._model = edgedec.open(config.model, engine=config.engine, threads=threads, kv=config.kv)
        kv = self._model.runtime.new_cache(1).kv
        self.facts = {"engine_name": self._model.runtime.name, "kv": kv, "threads": threads}

    def run(self, ids: list[int], n: int) -> tuple[float, float]:
        session = self._model.session(context=len(ids) + n + 1)
        step = session.tokens(ids, max_tokens=n + 1, ignore_eos=True).__next__
        return _timed(step, step, n)


class Genai:
    """onnxruntime-genai on the bundle's whole-model graph."""

    def __init__(self, config: Config, threads: int) -> None:
        try:
            import onnxruntime_genai as og
        except ImportError:
            raise RuntimeUnavailable('needs onnxruntime-genai: pip install "edgedec[peers]"') from None
        from edgedec.bundle import Bundle
        from edgedec.model import find

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
        params = self._og.GeneratorParams(self._model)
        length = len(ids) + n + 1
        # min_length forbids the end token, which would end the measurement.
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = self._og.Generator(self._model, params)

        def first() -> None:
            generator.append_tokens(np.array(ids, np.int32))
            generator.generate_next_token()

        return _timed(first, generator.generate_next_token, n)


PEERS: dict[str, type[Engine]] = {"genai": Genai}


def _timed(first: Callable[[], object], step: Callable[[], object], n: int) -> tuple[float, float]:
    """Seconds of the first token, and of the n behind it."""
    began = perf_counter()
    first()
    between = perf_counter()
    for _ in range(n):
        step()
    return between - began, perf_counter() - between


def prompt_ids(vocab: int, n: int) -> list[int]:
    """The same random tokens for everyone."""
    ids: list[int] = np.random.default_rng(0).integers(0, vocab, n).tolist()
    return ids


def main(raw: str) -> None:
    # What a library prints must not land between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        _serve(Config(**json.loads(raw)), out)
    except KeyboardInterrupt:
        pass
    except EdgedecError as error:
        _say(out, {"error": str(error)})
    except Exception as error:
        _say(out, {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def _serve(config: Config, out: TextIO) -> None:
    from edgedec.bundle import Bundle
    from edgedec.model import find

    spec = Bundle.open(find(config.model)).spec
    if config.prompt + config.generate + 1 > spec.context_length:
        raise UsageError(
            f"prompt {config.prompt} + generate {config.generate} + 1 do not fit the context of {spec.context_length}"
        )
    ids = prompt_ids(spec.vocab_size, config.prompt)
    threads = config.threads or cores()
    _import(config)
    began = perf_counter()
    engine = PEERS.get(config.engine, Edgedec)(config, threads)  # type: ignore[call-arg]
    _say(out, {"load_s": perf_counter() - began, **engine.facts})
    for line in sys.stdin:
        if json.loads(line)["do"] == "end":
            _say(out, {"peak_bytes": peak_memory()})
            continue
        prefill, decode = engine.run(ids, config.generate)
        _say(out, {"prefill_s": prefill, "decode_s": decode})


def _import(config: Config) -> None:
    """Import the engine's packages, which is not loading a model."""
    from importlib import import_module

    from edgedec.runtime import choose_engine, runtime_names

    name = choose_engine(config.engine)
    if name in runtime_names():
        import_module(f"edgedec.runtimes.{name}")
    elif config.engine == "genai":
        try:
            import_module("onnxruntime_genai")
        except ImportError:
            pass  # the engine says so


def _say(out: TextIO, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
