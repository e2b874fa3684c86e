"""The process behind `edgedec bench`: opens one model with one engine, then measures on demand.

    python -m edgedec.cli._bench_worker CONFIG      (a `benchmark.Config` as JSON)

It says {"load_s", …}; answers

    {"do": "run"}                                     with {"prefill_s", "decode_s"}
    {"do": "rows", "context": 64, "counts": [1, 8]}   with {"rows_s": {"1": …, "8": …}, "all_logits": true}
    {"do": "together", "size": 4, "tokens": 8,
     "prompts": [[1, 2], …]}                          with {"seconds"}
    {"do": "end"}                                     with {"peak_bytes"}

and ends with its input. Prefill runs up to the first new token, decoding is `generate` calls of one token
each behind it; `rows` are calls of so many tokens behind a cached prefix, each forgotten again; `together`
makes many texts at a time.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter, sleep
from typing import Any, TextIO

from edgedec.bench.timing import Config, peak_memory
from edgedec.cli._bench_engines import ENGINES, Call, Edgedec, Engine, LlamaCpp
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime import available_cores
from edgedec.speculation.rowcost import prompt_ids

# Threads of whoever had the turn before may wait awake for a while; rows are short calls.
_SETTLE_S = 0.05
_PACKAGES = {"genai": "onnxruntime_genai", "llama.cpp": "llama_cpp"}


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
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find

    spec = Bundle.open(find(config.model)).spec
    if config.prompt + config.generate + 1 > spec.context_length:
        raise UsageError(
            f"prompt {config.prompt} + generate {config.generate} + 1 do not fit the context of {spec.context_length}"
        )
    ids = prompt_ids(spec.vocab_size, config.prompt)
    threads = config.threads or available_cores()
    _import(config)
    began = perf_counter()
    engine = ENGINES.get(config.engine, Edgedec)(config, threads)  # type: ignore[call-arg]
    _say(out, {"load_s": perf_counter() - began, **engine.facts})
    rows = _RowTurns(engine, spec.vocab_size)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "end":
            _say(out, {"peak_bytes": peak_memory()})
        elif request["do"] == "together" and isinstance(engine, LlamaCpp):
            _say(out, {"seconds": engine.together(request["prompts"], request["tokens"], request["size"])})
        elif request["do"] == "rows":
            _say(out, rows.turn(request["context"], request["counts"]))
        else:
            prefill, decode = engine.run(ids, config.generate)
            _say(out, {"prefill_s": prefill, "decode_s": decode})


class _RowTurns:
    """Calls of k rows, over and over behind the same prefix."""

    def __init__(self, engine: Engine, vocab: int) -> None:
        self._engine, self._vocab = engine, vocab
        self._calls: dict[tuple[int, int], Call] = {}

    def turn(self, context: int, counts: list[int]) -> dict[str, Any]:
        """Each of `counts` once, after a call of one row that wakes the threads."""
        ids = prompt_ids(self._vocab, context + max(counts))
        key = (context, max(counts))
        if key not in self._calls:
            self._calls[key] = self._engine.behind(ids[:context], max(counts))
        call = self._calls[key]
        sleep(_SETTLE_S)
        call(ids[context : context + 1])
        seconds = {str(k): call(ids[context : context + k]) for k in counts}
        return {"rows_s": seconds, "all_logits": self._engine.all_logits}


def _import(config: Config) -> None:
    """Import the engine's packages, which is not loading a model."""
    from importlib import import_module

    from edgedec.runtime import choose_engine, runtime_names

    name = choose_engine(config.engine)
    if name in runtime_names():
        import_module(f"edgedec.runtimes.{name}")
    elif name in _PACKAGES:
        try:
            import_module(_PACKAGES[name])
        except ImportError:
            pass  # the engine says so


def _say(out: TextIO, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
