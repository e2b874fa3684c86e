"""Every drafter on one bench: heads trained on nano for the same number of tokens, and drafters without training.

    python tests/bench/trained_drafters.py build/table --jobs 8 --minutes 8.5       # 16 cores
    python tests/bench/trained_drafters.py build/table --tokens 20000 --kinds falcon,chimera,eagle3 --limit 1 --jobs 1

Tokens of training: rows of text from which a kind learned, with repetition; all read the same texts (which nano wrote
itself, unless --texts names a file), in rows of 128, without a trimmed vocabulary. Each training runs in a process of
its own with --threads threads, --jobs of them at once, and goes on where it stopped if the command is given again. When
--minutes are over what still trains is stopped, and the table says what is missing.

Columns: tokens a call with seven guesses in each call (`fixed=7`), and with as many as the governor finds to pay; the
share of a plain call that the drafting of those seven took; speed over plain decoding at the cost of 135 M and 1.24 B,
both ways; bytes in the bundle. Costs are charged as by tests/bench/charged.py, and small networks by their
multiply-adds too: a layer of the draft costs what a layer of that model costs, a readout that of 8,192 tokens.

Left out: drafters that need another model (`model`, `pearl`, `hierarchy`, `nested`, `rapid`, `ead`, `block`), a long
text (`sparse`), a constraint (`forced`) or a head that comes with a checkpoint (`eagle`, `mtp`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

ROWS, BATCH, GUESSES = 128, 512, 7
GEOMETRIES = {"smollm-135m": 0.004, "llama-1b": 0.035}  # seconds of a call of one row
# The name of each kind in train-heads: what drafts with it, and its own options of training.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chimera": ("chimera", ()),
    "eagle3": ("eagle3", ()),
    "exit": ("exit:layer=4,adapter=exit", ("--layer", "4")),
    "falcon": ("falcon", ()),
    "hidden-transfer": ("hiddentransfer", ("--layer", "4")),
    "hydra": ("hydra", ()),
    "hydra++": ("hydrapp", ()),
    "kangaroo": ("kangaroo", ("--layer", "4")),
    "longspec": ("longspec", ()),
    "lud": ("lud", ()),
    "m2r2": ("m2r2", ("--layer", "4")),
    "medusa": ("medusa", ()),
    "prompt": ("prompt", ()),
    "sec": ("sec", ()),
}
# Of the untrained: what drafts, with the options that it needs.
UNTRAINED = {
    "copy": "copy",
    "datastore": "datastore",
    "jacobi": "jacobi",
    "recycling": "recycling",
    "skip": "skip",
    "stand": "stand",
    "suffix": "suffix",
    "trigram": "trigram",
}
SLOW = ("prompt", "lud", "chimera", "hidden-transfer", "falcon", "sec")  # begun first
OPENINGS = (
    "Once upon a time",
    "One day",
    "The little",
    "Tom and",
    "Lily had a",
    "There was a",
    "Mom said",
    "A big dog",
)


# ---- one process: what a kind's drafts are worth -----------------------------------------------------------


def measure(bundle: str, drafter: str, geometry: str, n: int, limit: int, categories: str) -> dict[str, Any]:
    """Tokens a call, share and speed of a drafter, with calls charged as at a geometry."""
    from dataclasses import replace

    from charged import SIZES

    import edgedec
    from edgedec.bench.prompts import choose_prompts, read_prompts
    from edgedec.bench.speculation import PLAIN, Bench, tasks_of
    from edgedec.bench.speculation_results import results
    from edgedec.drafters import FAMILY
    from edgedec.sampling import Sampling

    os.environ["EDGEDEC_CACHE"] = tempfile.mkdtemp()
    chosen = choose_prompts(read_prompts(None), categories.split(",") if categories else [], limit)
    bench = Bench(edgedec.open(bundle, engine="native", threads=1), tasks_of(chosen, Sampling(), 0), n)
    runtime: Any = bench.model.runtime
    runtime.capabilities = replace(runtime.capabilities, steps=None)  # every call is a forward
    lossy = FAMILY.facts(drafter.partition(":")[0]).lossy  # these go as far as they find sure
    names = [drafter if lossy else f"{drafter}{',' if ':' in drafter else ':'}fixed={GUESSES}", drafter]
    for name in (*names, PLAIN):
        bench.model.session(speculate=name)
    clock = head_clock(SIZES[geometry], GEOMETRIES[geometry], bench.model.spec.vocab_size)
    clock.set()
    found: dict[str, Any] = {}
    for key, name in zip(("fixed", "governed"), names, strict=True):
        clock.verified = clock.drafted = 0.0
        clock.calls, clock.target = 0, bench.model.spec.n_layers
        report = results(bench.measure([name], 1), bench.tasks)["drafters"][name]
        found[key] = {
            "tokens_per_call": report["tokens_per_call"],
            "speed": report["speed_ratio_geometric"],
            "accepted": report["accepted"] / max(report["proposed"], 1),
            "share": report["between_calls"],
            "drafted_calls": clock.drafted / max(clock.calls, 1) / GEOMETRIES[geometry],
            "identical": report["identical"],
        }
    return found


def head_clock(geometry: Any, call: float, vocab: int) -> Any:
    """A clock of charged.py that charges the small networks of heads as well."""
    from charged import SMALL, Clock

    from edgedec.drafters._networks.graphs import Network
    from edgedec.drafters._networks.heads import DraftHead

    class HeadClock(Clock):
        """verified, drafted: seconds charged for calls of the target to its end, and for all others; calls: of the
        former."""

        verified = drafted = 0.0
        calls = target = 0

        def charge(self, n_layers: int, calls: Sequence[Any]) -> float:
            seconds = super().charge(n_layers, calls)
            whole = n_layers == self.target and all(c.blocks is None or 2 * n_layers - 1 in c.blocks for c in calls)
            self.calls += whole
            self.verified, self.drafted = self.verified + whole * seconds, self.drafted + (not whole) * seconds
            return seconds

        def network(self, run: Callable[..., Any]) -> Callable[..., Any]:
            shapes: dict[str, list[tuple[int, ...]]] = {}

            def charged(network: Any, *inputs: Any) -> Any:
                path = str(network._path)
                if path not in shapes:
                    shapes[path] = matrices(path)
                began = thread_time()
                found = run(network, *inputs)
                self._hidden += thread_time() - began
                rows = inputs[0].size // inputs[0].shape[-1]
                cost = call * sum(self.share_of(shape) for shape in shapes[path]) * (1 + 0.025 * (rows - 1))
                self._charged += cost
                self.drafted += cost
                return found

            return charged

        def share_of(self, shape: tuple[int, ...]) -> float:
            """Of a call: a matrix with a row a token by the head's, others by the layers'."""
            if vocab in shape:
                width = shape[1] if shape[0] == vocab else shape[0]
                return self.head * min(1.0, SMALL / self.vocab) * width / HIDDEN
            return self.layer * shape[0] * shape[1] / LAYER

        def set(self) -> None:
            super().set()
            Network.run = self.network(Network.run)  # type: ignore[method-assign]
            DraftHead.run = self.network(DraftHead.run)  # type: ignore[method-assign]

    return HeadClock(geometry, call, 0.025, 1.0)


HIDDEN = 128
LAYER = 128 * ((2 * 4 + 2 * 2) * 32 + 3 * 384)  # multiply-adds of a layer of nano


def matrices(path: str) -> list[tuple[int, ...]]:
    """The shapes (out, in) of a graph's matrices; quantized ones have them in their nodes."""
    import onnx

    graph, found = onnx.load(path).graph, []
    dims = {init.name: tuple(init.dims) for init in graph.initializer}
    for node in graph.node:
        attributes = {a.name: a.i for a in node.attribute}
        if node.op_type == "MatMulNBits":
            found.append((attributes["N"], attributes["K"]))
        elif node.op_type == "Gemm":
            found.append(dims[node.input[1]])
        elif node.op_type == "LSTM":
            found += [dims[name][1:] for name in node.input[1:3]]
    return found


# ---- all of them -----------------------------------------------------------------------------------------


def write_texts(file: Path, count: int = 400) -> None:
    """What nano writes itself."""
    import edgedec
    from edgedec import Sampling

    session, found = edgedec.open("nano", engine="native", threads=1).session(speculate="off"), list[str]()
    for seed in range(count):
        start = OPENINGS[seed % len(OPENINGS)]
        how = Sampling(temperature=0.8, seed=seed)
        found.append(start + "".join(session.generate(start, max_tokens=160, sampling=how)))
    file.write_text("<|endoftext|>".join(found), encoding="utf-8")


class Table:
    """Trainings and measurements as processes; `rows`: what is done, by kind."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rows = args, dict[str, dict[str, Any]]()
        self.end = monotonic() + 60 * args.minutes if args.minutes else float("inf")

    def run(self, kind: str) -> str:
        """Train a kind and measure it -> "" or what is missing."""
        args, out = self.args, self.args.folder / kind
        row: dict[str, Any] = self.rows.setdefault(kind, {})
        kept = args.folder / f"{kind}.row.json"
        if kept.exists() and (found := json.loads(kept.read_text()))["asked"] == self.asked():
            row |= found["row"]
            return ""
        try:
            if kind in UNTRAINED:
                bundle, drafter = "nano", self.untrained(kind)
                row |= {"bytes": 0, "seconds": 0.0}
            else:
                bundle, drafter = str(out), KINDS[kind][0]
                row |= self.trained(kind, out)
                row["bytes"] = _bytes(json.loads((out / "edgedec.json").read_text()), kind)
            for geometry in GEOMETRIES:
                options = [bundle, drafter, geometry, str(args.n), str(args.limit), args.categories]
                row[geometry] = json.loads(self.process([sys.executable, __file__, "--measure", *options]))
        except subprocess.TimeoutExpired:
            return "the time was over"
        except subprocess.CalledProcessError as error:
            return f"failed: {str(error.stderr).strip().splitlines()[-1:]}"
        kept.write_text(json.dumps({"asked": self.asked(), "row": row}))
        return ""

    def asked(self) -> list[Any]:
        """What a row that is kept must have been measured with."""
        return [self.args.tokens, self.args.n, self.args.limit, self.args.categories]

    def untrained(self, kind: str) -> str:
        """The drafter's name with its options; a datastore is built from the texts that heads are trained on."""
        if kind != "datastore":
            return UNTRAINED[kind]
        store = self.args.folder / "texts.store"
        if not store.exists():
            self.process(
                [sys.executable, "-m", "edgedec", "datastore", "build", str(self.args.texts), "-o", str(store)]
            )
        return f"datastore:path={store}"

    def trained(self, kind: str, out: Path) -> dict[str, Any]:
        """The report of a training, which is kept beside its bundle."""
        kept, args = self.args.folder / f"{kind}.json", self.args
        if kept.exists() and out.exists():
            found: dict[str, Any] = json.loads(kept.read_text())
            if found["tokens_trained"] == args.tokens:
                return found
        steps = max(1, args.tokens // (BATCH if kind in ("hydra", "medusa", "exit") else ROWS))
        command = [
            "-m",
            "edgedec",
            "train-heads",
            "nano",
            str(args.texts),
            "--kind",
            kind,
            "--out",
            str(out),
            "--force",
        ]
        command += ["--work", str(self.args.folder / "work" / kind), "--threads", str(args.threads), "--minutes", "1e6"]
        command += ["--steps", str(steps), "--vocab-trim", "0", "--length", str(ROWS), "--json", *KINDS[kind][1]]
        began = monotonic()
        found = json.loads(self.process([sys.executable, *command]))
        found |= {"tokens_trained": args.tokens, "seconds": monotonic() - began}
        kept.write_text(json.dumps(found))
        return found

    def process(self, command: Sequence[str]) -> str:
        """What a process prints, in the time that is left; it ends with that time."""
        left = None if self.end == float("inf") else max(1.0, self.end - monotonic())
        done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=True)
        return done.stdout


def _bytes(manifest: dict[str, Any], kind: str) -> int:
    """Of the files that the kind's head consists of."""
    name = KINDS[kind][0].partition(":")[0]
    files = [
        file["size"] for path, file in manifest["files"].items() if path.startswith((f"draft_{name}.", f"head_{name}."))
    ]
    return sum(files)


def line(kind: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    small, large = (row[geometry] for geometry in GEOMETRIES)
    fixed, free = large["fixed"], large["governed"]
    lossless = all(part["identical"] for part in (fixed, free))
    speeds = " | ".join(f"{one[key]['speed']:.2f}" for one in (small, large) for key in ("fixed", "governed"))
    first = f"{row['accuracy'][0]:.0%} | {row['seconds']:.0f}" if row.get("accuracy") else "| "
    return (
        f"| `{kind}`{'' if lossless else ' (another text)'} | {fixed['tokens_per_call']:.2f} | "
        f"{free['tokens_per_call']:.2f} | {fixed['drafted_calls']:.0%} | {speeds} | {row['bytes'] / 1024:.0f} | "
        f"{first} |"
    )


HEADER = (
    "| kind | tokens a call, 7 guesses | as they pay | share of a call | 135 M, 7 | 135 M, as they pay | 1.24 B, 7 | "
    "1.24 B, as they pay | KiB | first guess right | s of training |\n" + "| --- " * 11 + "|"
)


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        bundle, drafter, geometry, n, limit, categories = sys.argv[2:8]
        print(json.dumps(measure(bundle, drafter, geometry, int(n), int(limit), categories)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where texts, bundles and checkpoints are kept")
    parser.add_argument("--tokens", type=int, default=128_000, help="tokens that each kind is trained on")
    parser.add_argument("--texts", type=Path, help="a file of texts; by default nano writes some")
    parser.add_argument("--kinds", default=",".join((*KINDS, *UNTRAINED)), help="names of KINDS and UNTRAINED")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--threads", type=int, default=2, help="of each training")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop what still trains after so many; 0: never")
    parser.add_argument("-n", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--limit", type=int, default=2, help="prompts of each category; 0: all")
    parser.add_argument("--categories", default="story,dialogue,chat")
    args = parser.parse_args()
    kinds = [kind for kind in args.kinds.split(",") if kind]
    if unknown := set(kinds) - {*KINDS, *UNTRAINED}:
        parser.error(f"--kinds: no {', '.join(sorted(unknown))}; there are: {', '.join((*KINDS, *UNTRAINED))}")
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.texts is None:
        args.texts = args.folder / "texts.txt"
        if not args.texts.exists():
            write_texts(args.texts)
    table, missing = Table(args), dict[str, str]()
    with ThreadPoolExecutor(args.jobs) as pool:
        order = sorted(kinds, key=lambda kind: (kind not in SLOW, SLOW.index(kind) if kind in SLOW else 0))
        waiting = {pool.submit(table.run, kind): kind for kind in order}
        for done in as_completed(waiting):
            if why := done.result():
                missing[waiting[done]] = why
            print(f"{waiting[done]}: {why or 'done'}", file=sys.stderr, flush=True)
    rows = {kind: table.rows[kind] for kind in kinds if kind not in missing}
    print(f"{args.tokens} tokens each\n\n{HEADER}")
    for kind in sorted(rows, key=lambda kind: -rows[kind]["llama-1b"]["fixed"]["tokens_per_call"]):
        print(line(kind, rows[kind]))
    for kind, why in missing.items():
        print(f"\n`{kind}` is missing: {why}")
    (args.folder / "table.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
