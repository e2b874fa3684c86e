"""The process that `edgedec bench` measures in: opens one model with one engine, then answers requests.

    python -m edgedec.bench.worker CONFIG      (a `timing.Config` as JSON)

It prints {"load_s", …} and answers

    {"do": "run"}                                     with {"prefill_s", "decode_s"}, and "drafted_s" if it drafts
    {"do": "rows", "context": 64, "counts": [1, 8]}   with {"rows_s": {"1": …, "8": …}, "all_logits": true}
    {"do": "together", "size": 4, "tokens": 8,
     "prompts": [[1, 2], …]}                          with {"seconds"}
    {"do": "filled"}                                  with {"decode_s"}
    {"do": "end"}                                     with {"peak_bytes"}

and ends with its input. Prefill runs up to the first new token, decoding is `generate` calls of one token
each after it; `drafted_s` are the same tokens with drafts, as `--spec auto` makes them; `rows` are calls of so
many tokens after a cached prefix, each forgotten again; `together` generates many texts at a time; `filled`
decodes after a prompt that was not read. The last two are for llama.cpp.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter, sleep
from typing import Any, TextIO

from edgedec.bench.engines import ENGINES, BenchEngine, Edgedec, LlamaCpp, TimedCall
from edgedec.bench.row_costs import prompt_ids
from edgedec.bench.timing import Config, peak_memory
from edgedec.bundle.folder import Bundle
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime import available_cores

# Threads of the engine before may spin for a while; calls of few rows are short.
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
        _write(out, {"error": str(error)})
    except Exception as error:
        _write(out, {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def _serve(config: Config, out: TextIO) -> None:
    from edgedec.bundle.locate import find

    bundle = Bundle.open(find(config.model))
    spec = bundle.spec
    if config.prompt + config.generate + 1 > spec.context_length:
        raise UsageError(
            f"prompt {config.prompt} + generate {config.generate} + 1 do not fit the context of {spec.context_length}"
        )
    ids = prompt_ids(spec.vocab_size, config.prompt)
    threads = config.threads or available_cores()
    _import(config, bundle)
    began = perf_counter()
    engine = ENGINES.get(config.engine, Edgedec)(config, threads)  # type: ignore[call-arg]
    _write(out, {"load_s": perf_counter() - began, **engine.facts})
    rows = _RowTurns(engine, spec.vocab_size)
    for line in sys.stdin:
        _write(out, _answer(json.loads(line), engine, rows, ids, config.generate))


def _answer(
    request: dict[str, Any], engine: BenchEngine, rows: _RowTurns, ids: list[int], generate: int
) -> dict[str, Any]:
    """What is measured for one request."""
    match request["do"]:
        case "end":
            return {"peak_bytes": peak_memory()}
        case "together" if isinstance(engine, LlamaCpp):
            return {"seconds": engine.together(request["prompts"], request["tokens"], request["size"])}
        case "filled" if isinstance(engine, LlamaCpp):
            return {"decode_s": engine.filled(ids, generate)}
        case "rows":
            return rows.turn(request["context"], request["counts"])
    prefill, decode = engine.run(ids, generate)
    drafted = engine.drafted(ids, generate)
    return {"prefill_s": prefill, "decode_s": decode} | ({"drafted_s": drafted} if drafted else {})


class _RowTurns:
    """Calls of k rows, repeated after the same prefix."""

    def __init__(self, engine: BenchEngine, vocab: int) -> None:
        self._engine, self._vocab = engine, vocab
        self._calls: dict[tuple[int, int], TimedCall] = {}

    def turn(self, context: int, counts: list[int]) -> dict[str, Any]:
        """Each of `counts` once, after a call of one row as a warm-up."""
        ids = prompt_ids(self._vocab, context + max(counts))
        key = (context, max(counts))
        if key not in self._calls:
            self._calls[key] = self._engine.after(ids[:context], max(counts))
        call = self._calls[key]
        sleep(_SETTLE_S)
        call(ids[context : context + 1])
        seconds = {str(k): call(ids[context : context + k]) for k in counts}
        return {"rows_s": seconds, "all_logits": self._engine.all_logits}


def _import(config: Config, bundle: Bundle) -> None:
    """Import the engine's packages, which is not loading a model."""
    from importlib import import_module

    from edgedec.runtime import RUNTIMES, choose_runtime

    name = choose_runtime(bundle, config.engine, config.device)
    if name in RUNTIMES:
        RUNTIMES.file(name)
    elif name in _PACKAGES:
        try:
            import_module(_PACKAGES[name])
        except ImportError:
            pass  # the engine reports it


def _write(out: TextIO, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
