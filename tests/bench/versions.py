"""Two versions of edgedec beside each other on one host:

    python tests/bench/versions.py BEFORE_PYTHON NOW_PYTHON -m nano -t 1
    python tests/bench/versions.py BEFORE_PYTHON NOW_PYTHON --before-model OLD_BUNDLE -m BUNDLE -t 2 --cpus 0,1

Each interpreter has its version installed. Both processes stay open and take turns of a few calls, the first of them
alternating, so that a busy host slows both. Prints the median of the rounds' ratios, before to now: above 1 the new
version is faster.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from time import perf_counter

ROWS = (1, 4, 8, 16, 32)
CONTEXT, PROMPT, DECODE, EACH = 64, 512, 64, 32


# ---- a version's own process ------------------------------------------------------------------------


def calls(model):
    """What runs k rows after 64 cached ones and reads the best token of each; versions before `Call` had `compute`."""
    runtime, context = model.runtime, range(CONTEXT)
    cache = runtime.new_cache(2 * CONTEXT)
    try:
        from edgedec.rows import Rows
        from edgedec.runtime import Want, compute
    except ImportError:
        from edgedec.runtime import Call, Outputs, Rows, logits_of

        logits_of(runtime, Rows.chain(context, 0), cache, CONTEXT - 1)
        cache.commit(context)
        best = Outputs(logits=False, top=1)
        return lambda k: runtime.forward([Call(Rows.chain(range(k), CONTEXT), cache, outputs=best)])
    compute(runtime, Rows.chain(context, 0), cache, CONTEXT - 1, Want())
    cache.keep(context)
    return lambda k: compute(runtime, Rows.chain(range(k), CONTEXT), cache, 0, Want(logits=False, top=1))


def plain(model, **options):
    """A session that does not draft, in the words of either version."""
    try:
        return model.session(speculate="off", **options)
    except TypeError:
        return model.session(spec="off", **options)


def work(model, vocabulary: int):
    """The things measured: a name and what runs it once."""
    import numpy as np

    try:
        from edgedec.decoding.scheduler.batch import Batch
    except ImportError:
        from edgedec.batching import Batch

    rng = np.random.default_rng(0)
    prompt = rng.integers(5, vocabulary, PROMPT).tolist()
    texts = [rng.integers(5, vocabulary, int(n)).tolist() for n in rng.integers(8, 100, 16)]
    call, tables = calls(model), {}

    def decode():
        list(plain(model).tokens(prompt[:8], max_tokens=DECODE, ignore_eos=True))

    def prefill():
        list(plain(model).tokens(prompt, max_tokens=1, ignore_eos=True))

    def batch(most):
        together = Batch(model.runtime, most=most)
        for ids in texts:
            plain(model, tables=tables).submit(together, ids, lambda event: None, max_tokens=EACH, ignore_eos=True)
        together.run()

    named = {f"a call of {k} row{'s' * (k > 1)}": (lambda k=k: call(k)) for k in ROWS}
    named |= {"decoding": decode, f"prefill of {PROMPT}": prefill}
    return named | {f"16 texts, batches of {most}": (lambda most=most: batch(most)) for most in (1, 16)}


def worker(bundle: str, threads: int) -> None:
    import edgedec

    model = edgedec.open(bundle, engine="native", threads=threads)
    if hasattr(model, "prefixes"):  # every round reads its prompts again
        model = edgedec.Model(model.bundle, model.runtime)
    named = work(model, min(4000, model.spec.vocab_size))
    for run in named.values():
        run()
    print("|".join(named), flush=True)
    for line in sys.stdin:
        name, times = line.rstrip("\n").split("|")
        seconds = []
        for _ in range(int(times)):
            began = perf_counter()
            named[name]()
            seconds.append(perf_counter() - began)
        print(sorted(seconds)[len(seconds) // 4], flush=True)


# ---- both ---------------------------------------------------------------------------------------------


def start(python: str, bundle: str, options: argparse.Namespace) -> subprocess.Popen:
    pinned = ["taskset", "-c", options.cpus] if options.cpus else []
    command = [*pinned, python, __file__, "--worker", bundle, "-t", str(options.threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen, name: str, times: int) -> float:
    process.stdin.write(f"{name}|{times}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?")
    parser.add_argument("now", nargs="?")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("--before-model", help="the same weights in the older version's bundle format")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--cpus", help="processors to run on, as taskset takes them")
    parser.add_argument("-r", "--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="only what has this in its name")
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker, options.threads)
    both = [
        start(options.before, options.before_model or options.model, options),
        start(options.now, options.model, options),
    ]
    names = {process.stdout.readline().strip() for process in both}
    assert len(names) == 1, names
    print(f"{'':24}before, ms    now, ms  ratio  (10 % to 90 % of {options.rounds} rounds)")
    for name in filter(lambda name: options.only in name, names.pop().split("|")):
        times, turns = (10 if name.startswith("a call") else 1), []
        for turn in range(options.rounds):
            order = (0, 1) if turn % 2 else (1, 0)
            seconds = {side: ask(both[side], name, times) for side in order}
            turns.append((seconds[0], seconds[1]))
        ratios = [before / now for before, now in turns]
        low, *_, high = statistics.quantiles(ratios, n=10)
        before, now = (statistics.median(column) * 1e3 for column in zip(*turns, strict=True))
        print(f"{name:24}{before:10.2f} {now:10.2f}  {statistics.median(ratios):.2f}  ({low:.2f} to {high:.2f})")
    for process in both:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
