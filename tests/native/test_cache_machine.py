"""The native cache and engine beside the reference, through any sequence of what a cache can do.

Trees, groups, grown and resumed rows, blocks run on fewer rows, views, commits in pieces, forks, cuts, dropped and
merged slots and saved content: after each step both hold the same slots at the same positions, and say nearly the same
of the next rows. Float weights, so that only the order of sums differs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import random_weights, write_bundle

from edgedec.kernels.cpu import loader
from edgedec.runtime import PAGE, Call, CallResult, Outputs, Rows, Runtime, View
from edgedec.runtimes.reference import Reference
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

CAPACITY = 330
CLOSE = {"atol": 2e-3, "rtol": 0}
OUTPUTS = Outputs(logits=True, top=3, logsum=True, hidden=(-1, 1), attention=True)


def spec() -> ModelSpec:
    rope = Rope(tuple(1e3 ** (-j / 4) for j in range(4)))
    wide = Attention(4, 2, 8, 0.35)
    layers = (
        (wide, Mlp(16)),
        (replace(wide, window=7, sinks=2), Mlp(24, gated=False, activation="gelu", bias=True, norm="layer")),
        (replace(wide, n_heads=3, n_kv_heads=1, head_dim=10, rope=None, norm="layer"), Mlp(16)),
        (replace(wide, window=40), Mlp(16, activation="relu")),
    )
    return ModelSpec("machine", 53, 24, CAPACITY, layers, 1e-5, True, (rope,), final_norm="layer")


class Pair:
    """One text on both runtimes. `tree`: the pending rows."""

    def __init__(self, runtimes: tuple[Runtime, Runtime], caches: tuple | None = None) -> None:
        self.runtimes = runtimes
        self.caches = caches or tuple(runtime.new_cache(CAPACITY) for runtime in runtimes)
        self.tree: Rows | None = None
        self.grows = True  # all blocks were run on all of its rows

    @property
    def length(self) -> int:
        return self.caches[0].length


class Machine:
    def __init__(self, runtimes: tuple[Runtime, Runtime], seed: int, folder: Path) -> None:
        self.rng, self.runtimes, self.folder = np.random.default_rng(seed), runtimes, str(folder)
        self.spec = runtimes[0].spec
        self.pairs = [Pair(runtimes)]
        self.done: set[str] = set()

    def chance(self, percent: int) -> bool:
        return bool(self.rng.random() * 100 < percent)

    def rows(self, pair: Pair) -> Rows:
        n = int(self.rng.choice([1, 1, 3, 8, 70]))
        n = min(n, CAPACITY - pair.length - 1)
        tokens = self.rng.integers(0, self.spec.vocab_size, n).tolist()
        if self.chance(40):
            return Rows.chain(tokens, pair.length)
        rows = Rows.tree(tokens, [int(self.rng.integers(-1, i)) for i in range(n)], pair.length)
        if self.chance(40):
            groups = np.sort(self.rng.integers(-1, 3, n)).astype(np.int64)
            rows = replace(rows, groups=groups)
            self.done.add("groups")
        return rows

    def call(self) -> None:
        """Some of the texts in one call: whole, selected rows in some blocks, grown, or slices one after another."""
        chosen = [pair for pair in self.pairs if pair.length < CAPACITY - 80 and self.chance(70)]
        calls = []
        for pair in chosen:
            if (
                pair.tree is not None
                and pair.grows
                and self.chance(30)
                and pair.tree.groups is None
                and pair.tree.numbers is None
            ):
                n = int(self.rng.integers(1, 6))
                last = len(pair.tree) - 1
                tokens = self.rng.integers(0, self.spec.vocab_size, n).tolist()
                pair.tree = pair.tree.extend(tokens, [int(self.rng.integers(-1, last + i + 1)) for i in range(n)])
                self.done.add("grown")
            else:
                pair.tree, pair.grows = self.rows(pair), True
            calls.append(pair)
        if not calls:
            return
        if self.chance(35):
            self.slices(calls)
        else:
            self.compare([(pair, pair.tree, None, None) for pair in calls])

    def slices(self, pairs: list[Pair]) -> None:
        """Up to a block; then the others from the hidden states, some texts on fewer rows."""
        cut = int(self.rng.integers(1, self.spec.n_blocks))
        wanted = Outputs(hidden=(cut - 1,))
        first = self.compare([(p, p.tree, range(cut), None) for p in pairs], wanted)
        later = []
        for pair, result in zip(pairs, first, strict=True):
            rows, hidden = pair.tree, result.hidden[cut - 1]
            if self.chance(50) and len(rows) > 2 and rows.first == 0:
                some = sorted(self.rng.choice(len(rows), len(rows) // 2 + 1, replace=False).tolist())
                rows, hidden = rows.select(some), hidden[some]
                pair.grows = False
                self.done.add("selected")
            later.append((pair, rows, range(cut, self.spec.n_blocks), hidden))
        self.compare(later, OUTPUTS._replace(hidden=()))
        self.done.add("slices")

    def compare(self, parts: list, wanted: Outputs = OUTPUTS) -> list[CallResult]:
        """Both runtimes on the same calls, and what they say is the same; the results of the reference."""
        found = []
        views = [self.views(part) if self.chance(50) else None for part in parts]
        for i, runtime in enumerate(self.runtimes):
            calls = [Call(rows, p.caches[i], blocks, hidden, wanted) for p, rows, blocks, hidden in parts]
            found.append(
                runtime.forward([call._replace(views=given) for call, given in zip(calls, views, strict=True)])
            )
        for ours, theirs in zip(*found, strict=True):
            for name in ("logits", "logsum", "scores"):
                a, b = getattr(ours, name), getattr(theirs, name)
                assert (a is None) == (b is None)
                if a is not None:
                    np.testing.assert_allclose(a, b, err_msg=name, **CLOSE)
            for name in ("hidden", "attention"):
                a, b = getattr(ours, name), getattr(theirs, name)
                assert a.keys() == b.keys()
                for block in a:
                    np.testing.assert_allclose(a[block], b[block], err_msg=f"{name} {block}", **CLOSE)
        return found[1]

    def views(self, part: tuple) -> dict[int, View]:
        """Of some of the attention blocks of a call, anything that a view may be."""
        pair, _, blocks, _ = part
        run = range(self.spec.n_blocks) if blocks is None else blocks
        found = {b: self.view(pair, b) for b in self.spec.attention if b in run and self.chance(60)}
        self.done |= {"views"} if found else set()
        return found

    def view(self, pair: Pair, block: int) -> View:
        heads, n = self.spec.attention[block].n_kv_heads, pair.caches[0].slots(block)
        numbers = [int(self.rng.choice([0, 1, 30, 100])) for _ in range(2 * heads)]
        pages = [None if k == 3 else k for k in self.rng.integers(0, 4, heads).tolist()]
        view = View(tuple(numbers[:heads]), tuple(numbers[heads:]), tuple(pages), group=int(self.rng.choice([0, 1, 3])))
        match int(self.rng.integers(4)):
            case 0 if n:
                view = replace(view, slots=[self.rng.choice(n, n // 3, replace=False) for _ in range(heads)])
                return replace(view, runs=self.runs(view, heads, n)) if self.chance(50) else view
            case 1 if n >= PAGE:
                return replace(view, chosen=[self.rng.integers(0, n // PAGE, 1) for _ in range(heads)])
            case 2:
                return replace(view, theta=float(self.rng.choice([0.5, 2.0, 9.0])))
        return view

    def commit(self) -> None:
        for pair in self.pairs:
            if pair.tree is None or self.chance(20):
                continue
            row, path = int(self.rng.integers(-1, len(pair.tree))), []
            while row >= 0:
                path.insert(0, row)
                row = int(pair.tree.parents[row])
            at = int(self.rng.integers(0, len(path) + 1))
            for part in (path[:at], path[at:]):
                if part:
                    for cache in pair.caches:
                        cache.commit(part)
                    self.done.add("commit")
            pair.tree = None
            if self.chance(20):
                for cache in pair.caches:
                    cache.rollback()

    def runs(self, view: View, heads: int, n: int) -> list:
        """How many slots each of those listed stands for."""
        self.done.add("runs")
        found = []
        for head in range(heads):
            first = view.listed("slots", head)
            room = np.minimum(np.append(first[1:], n) - first, PAGE - first % PAGE)
            found.append(np.minimum(room, self.rng.integers(1, 6, len(first))))
        return found

    def change(self) -> None:
        pair = self.pairs[int(self.rng.integers(len(self.pairs)))]
        length = int(self.rng.integers(0, pair.length + 1))
        match int(self.rng.integers(7)):
            case 0 if length > pair.length // 2:
                for cache in pair.caches:
                    cache.truncate(length)
                self.done.add("truncate")
            case 1:
                twins = tuple(cache.fork(length) for cache in pair.caches)
                self.pairs = [*self.pairs[-2:], Pair(self.runtimes, twins)]
                self.done.add("fork")
                return
            case 2:
                block = int(self.rng.choice(list(self.spec.attention)))
                n = pair.caches[1].slots(block)
                slots = sorted(self.rng.choice(n, n // 5, replace=False).tolist())
                for cache in pair.caches:
                    cache.drop(block, slots)
                self.done.add("drop")
            case 4:
                self.merge(pair)
            case 5:
                self.drop_by_head(pair)
            case 6:
                self.offload(pair)
                return  # pending rows stay
            case 3:
                for i, runtime in enumerate(self.runtimes):
                    cache = runtime.new_cache(CAPACITY)
                    cache.load(pair.caches[i].save())
                    pair.caches = (*pair.caches[:i], cache, *pair.caches[i + 1 :])
                self.done.add("load")
        pair.tree = None

    def drop_by_head(self, pair: Pair) -> None:
        block = int(self.rng.choice([b for b, facts in self.spec.attention.items() if facts.window is None]))
        n, heads = pair.caches[1].slots(block), self.spec.attention[block].n_kv_heads
        slots = np.stack([np.sort(self.rng.choice(n, n // 5, replace=False)) for _ in range(heads)])
        for cache in pair.caches:
            cache.drop_by_head(block, slots)
        np.testing.assert_allclose(pair.caches[0].keys(block), pair.caches[1].keys(block), **CLOSE)
        self.done.add("drop by head")

    def offload(self, pair: Pair) -> None:
        """Pages that lie in files are read and written as any other."""
        for block in self.spec.attention:
            full = pair.caches[0].slots(block) // PAGE
            pages = self.rng.choice(full, self.rng.integers(0, full + 1), replace=False)
            pair.caches[0].offload(block, pages, self.folder)
            if len(pages):
                self.done.add("offload")

    def merge(self, pair: Pair) -> None:
        block = int(self.rng.choice(list(self.spec.attention)))
        n = pair.caches[1].slots(block)
        into, slots = np.split(self.rng.permutation(n)[: n // 4 * 2], 2)
        into = into[self.rng.integers(0, max(1, len(into)), len(into))]  # some take several
        weights = self.rng.random((self.spec.attention[block].n_kv_heads, len(slots)), np.float32) / 4
        for cache in pair.caches:
            cache.merge(block, into, slots, weights)
        np.testing.assert_allclose(pair.caches[0].keys(block), pair.caches[1].keys(block), **CLOSE)
        self.done.add("merge")

    def check(self) -> None:
        for pair in self.pairs:
            ours, theirs = pair.caches
            assert ours.length == theirs.length
            for block in self.spec.attention:
                assert ours.slots(block) == theirs.slots(block)
                np.testing.assert_array_equal(ours.positions(block), theirs.positions(block))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.call()
            self.check()
            self.commit()
            if self.chance(60):
                self.change()
            self.check()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_caches_agree(tmp_path: Path, threads: int) -> None:
    bundle = write_bundle(tmp_path / "b", spec(), random_weights(spec(), 2))
    runtime = native.NativeRuntime(bundle, "f32", threads)
    reference = Reference(bundle.spec, lambda name, a, b: bundle.rows(name, a, b), "f32")
    done: set[str] = set()
    for seed in range(12):
        machine = Machine((runtime, reference), 100 * threads + seed, tmp_path)
        machine.run(25)
        done |= machine.done
        del machine
    kinds = {"groups", "grown", "selected", "slices", "commit", "truncate", "fork", "drop", "load", "views", "merge"}
    kinds |= {"drop by head", "offload", "runs"}
    assert done == kinds
    assert runtime.pages == 0
