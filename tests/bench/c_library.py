"""libedgedec beside the Python package on the same bundle, in turns: start of the process to the first token, tokens/s, memory.

    python tests/bench/c_library.py -m BUNDLE -n 200 -r 7
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))
from clibrary import HEADER, library_file

PROGRAM = r"""
#include <edgedec.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
static int first(void* user, const edgedec_token* token) {
  (void)token;
  if (!*(int*)user) putchar('.'), fflush(stdout);
  *(int*)user = 1;
  return 0;
}
int main(int argc, char** argv) {
  const int32_t prompt[] = {12, 375, 278, 259};
  edgedec_model* model; edgedec_session* session; edgedec_generate_options options;
  edgedec_result result = {.size = sizeof result};
  edgedec_open_options open;
  struct rusage use;
  int seen = 0;
  (void)argc;
  edgedec_open_options_init(&open, sizeof open);
  open.threads = atoi(argv[3]);
  edgedec_generate_options_init(&options, sizeof options);
  options.max_tokens = atoi(argv[2]), options.on_token = first, options.token_user = &seen, options.ignore_eos = 1;
  if (edgedec_open(argv[1], &open, &model) || edgedec_session_new(model, NULL, &session) ||
      edgedec_generate(session, prompt, 4, &options, &result)) return fprintf(stderr, "%s\n", edgedec_last_error()), 1;
  getrusage(RUSAGE_SELF, &use);
  printf("%f %ld\n", (result.generated - 1) / (result.seconds - result.prompt_seconds), use.ru_maxrss);
  return 0;
}
"""
PYTHON = """
import sys, resource, edgedec
from time import perf_counter
model = edgedec.open(sys.argv[1], engine="native", threads=int(sys.argv[3]))
tokens = model.session(speculate="off").tokens([12, 375, 278, 259], max_tokens=int(sys.argv[2]), ignore_eos=True)
next(tokens)
print(".", end="", flush=True)
began, n = perf_counter(), len(list(tokens))
print(n / (perf_counter() - began), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measured(command: list[str]) -> tuple[float, float, float]:
    """Milliseconds to the first token, tokens/s, MB at most."""
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == ".", "no token came"
        first = perf_counter() - began
        rate, memory = map(float, process.stdout.read().split())
    return first * 1e3, rate, memory / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", default=str(Path(__file__).parents[2] / "models" / "nano" / "bundle"))
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("-r", type=int, default=7)
    parser.add_argument("-t", type=int, default=0, help="threads")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, program, lib = Path(folder, "bench.c"), Path(folder, "bench"), library_file()
        source.write_text(PROGRAM)
        flags = ["-O2", f"-I{HEADER.parent}", str(lib), f"-Wl,-rpath,{lib.parent}"]
        subprocess.run(["cc", source, "-o", program, *flags], check=True)
        rest = [asked.m, str(asked.n), str(asked.t)]
        ways = {"libedgedec": [str(program), *rest], "Python": [sys.executable, "-c", PYTHON, *rest]}
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
        for _ in range(asked.r):
            for name, command in ways.items():
                found[name].append(measured(command))
        for name, runs in found.items():
            first, rate, memory = ([run[i] for run in runs] for i in range(3))
            print(
                json.dumps(
                    {
                        "engine": name,
                        "first_token_ms": [round(statistics.median(first), 1), round(min(first), 1), round(max(first), 1)],
                        "tokens_per_second": [round(statistics.median(rate)), round(min(rate)), round(max(rate))],
                        "peak_mb": round(statistics.median(memory), 1),
                        "load": round(os.getloadavg()[0], 1),
                    }
                )
            )
        print(json.dumps({"library_bytes": lib.stat().st_size}))


if __name__ == "__main__":
    main()
