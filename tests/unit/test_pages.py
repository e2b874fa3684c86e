"""Pages of the native engine: forks copy tables only, a common beginning is one copy, who writes copies first."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec import Sampling
from edgedec.bench.cache_filled import filled
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.sharing import SharedPrefixes
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, Outputs, Rows, logits_of

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

FORKS, EACH = 64, 32


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native")


def text(model: edgedec.Model, n: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, model.spec.vocab_size, n).tolist()
    return ids


def read(model: edgedec.Model, ids: list[int]) -> edgedec.Session:
    """A session whose text has been read."""
    session = model.session(speculate="off")
    list(session.tokens(ids, max_tokens=1, ignore_eos=True))
    return session


def test_a_fork_shares_every_page_and_takes_little_memory(model: edgedec.Model) -> None:
    session = read(model, text(model, model.spec.context_length - 80))
    cache = session._context.cache
    assert len(cache.page_ids()) * model.runtime.capabilities.page_slots >= cache.length > 900
    session.fork()
    tracemalloc.start()
    forks = [session.fork() for _ in range(8)]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held / len(forks) < 64 << 10
    for fork in forks:
        assert np.array_equal(fork._context.cache.page_ids(), cache.page_ids())


def test_forks_that_go_on_hold_the_prefix_once(model: edgedec.Model) -> None:
    session = read(model, text(model, 600))
    forks = [session.fork() for _ in range(FORKS)]
    texts = [
        list(fork.tokens(max_tokens=EACH, sampling=Sampling(temperature=1.0, seed=i), ignore_eos=True))
        for i, fork in enumerate(forks)
    ]
    assert len({tuple(found) for found in texts}) > FORKS // 2
    slots = model.runtime.capabilities.page_slots
    pages = [fork._context.cache.page_ids() for fork in forks]
    whole = 600 // slots
    assert {tuple(ids[:whole]) for ids in pages} == {tuple(session._context.cache.page_ids()[:whole])}
    own = -(-(600 + EACH) // slots) - whole
    assert len(np.unique(np.concatenate(pages))) <= whole + FORKS * own
    alone = model.session(speculate="off")
    list(alone.tokens(session.ids[:-1], max_tokens=1, ignore_eos=True))
    assert list(alone.tokens(max_tokens=EACH, sampling=Sampling(temperature=1.0, seed=3), ignore_eos=True)) == texts[3]


def test_whoever_writes_copies_the_page_first(model: edgedec.Model) -> None:
    """In the middle of a tree: two forks of one text, both of which go on in the page that they share."""
    runtime = model.runtime
    cache = runtime.new_cache(256)
    prompt = text(model, 70)
    runtime.forward([Call(Rows.chain(prompt, 0), cache)])
    cache.commit(range(70))
    tree = Rows.tree([5, 6, 7, 8], [-1, 0, 0, 2], 70)
    whole = logits_of(runtime, tree, cache)
    cache.commit([0])
    twin = cache.fork()
    assert np.array_equal(twin.page_ids(), cache.page_ids())
    cache.commit([2])  # moves a row down, in a page that both hold
    assert twin.page_ids()[-1] != cache.page_ids()[-1]
    assert twin.page_ids()[0] == cache.page_ids()[0]
    branch = logits_of(runtime, Rows.chain([6], 71), twin)
    assert branch[-1].tobytes() == whole[1].tobytes()
    leaf = logits_of(runtime, Rows.chain([8], 72), cache)
    assert leaf[-1].tobytes() == whole[3].tobytes()


def test_an_ended_sequence_s_prefix_is_not_read_again(model: edgedec.Model) -> None:
    prompt, index = text(model, 900), SharedPrefixes(model.runtime.capabilities)
    found = []
    for _ in range(2):
        session, tokens = model.session(speculate="off"), []
        batch = Batch(model.runtime, prefixes=index)
        session.submit(batch, prompt, tokens.append, max_tokens=8, ignore_eos=True)
        batch.run()
        found.append((session.stats.prompt - session.stats.cached, tokens))
    (cold, first), (warm, second) = found
    assert cold == 900
    assert warm < 0.05 * cold
    assert first == second


def test_idle_prefixes_go_when_a_sequence_needs_their_room(model: edgedec.Model) -> None:
    batch = Batch(model.runtime, tokens=1024)
    for seed in range(6):
        session, tokens = model.session(speculate="off"), []
        session.submit(batch, text(model, 300, seed), tokens.append, max_tokens=4, ignore_eos=True)
        batch.run()
        assert len(tokens) == 5
        assert batch.held() <= 1024
    assert 1 <= len(batch.prefixes) < 6  # some were kept, some evicted
    session, tokens = model.session(speculate="off"), []
    session.submit(batch, text(model, 300, 5), tokens.append, max_tokens=4, ignore_eos=True)
    batch.run()
    assert session.stats.cached >= 256  # the latest one is still there


def test_a_saved_prefix_of_fewer_rows_is_the_same_after_loading(model: edgedec.Model) -> None:
    """Blocks from the middle on see every third row only, through prefill, save, load and fork."""
    runtime, half = model.runtime, model.spec.span(0, model.spec.n_layers // 2)
    rest = range(half.stop, model.spec.n_blocks)
    cache = runtime.new_cache(256)
    rows = Rows.chain(text(model, 96), 0)
    hidden = runtime.forward([Call(rows, cache, half, outputs=Outputs(hidden=(half.stop - 1,)))])[0].hidden[
        half.stop - 1
    ]
    kept = [*range(0, 95, 3), 95]
    runtime.forward([Call(rows.select(kept), cache, rest, hidden[kept])])
    cache.commit(range(96))
    attention = list(model.spec.attention)
    assert (cache.slots(attention[0]), cache.slots(attention[-1])) == (96, len(kept))
    other = runtime.new_cache(256)
    other.load(cache.save())
    step = Rows.chain([9], 96)
    found = [logits_of(runtime, step, each).tobytes() for each in (cache, other, cache.fork())]
    assert len(set(found)) == 1
    full = runtime.new_cache(256)
    logits_of(runtime, rows, full)
    full.commit(range(96))
    assert logits_of(runtime, step, full).tobytes() != found[0]


# Less memory is left than the text needs: some blocks have all of it before another one fails.
_SHORT = """
import re, resource, struct, sys
import numpy as np, edgedec
from edgedec.runtime import Rows, logits_of
runtime = edgedec.open(sys.argv[1], engine="native", kv="f32", threads=1).runtime
cache = runtime.new_cache(1 << 20)
logits_of(runtime, Rows.chain(range(20), 0), cache)
cache.commit(range(20))
before, head, heads = cache.save()["state"].tobytes(), bytearray(cache.save_rest(20)), runtime.spec.attention.values()
tokens = (64 << 20) // sum(8 * block.kv_dim for block in heads)
struct.pack_into("=q", head, 24, 20 + tokens)
rest = np.zeros(len(head) + tokens * sum(8 * block.kv_dim for block in heads), np.uint8)
rest[: len(head)] = head
held = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (held + (40 << 20), resource.RLIM_INFINITY))
try:
    cache.append(rest)
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print("short", {cache.length, *map(cache.slots, runtime.spec.attention)}, cache.save()["state"].tobytes() == before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts a process's memory there")
def test_a_text_that_memory_is_too_short_for_is_not_begun(nano: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _SHORT, str(nano)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("short {20} True\n", "")


def own_memory() -> int:
    """Bytes of this process that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_of_caches_that_are_gone_is_the_system_s_again(model: edgedec.Model) -> None:
    """Caches of different lengths come and go in no order. From an allocator's heap hardly anything came back."""
    before, most = own_memory(), 0
    for _ in range(2):
        caches = [filled(model.runtime, 1000, 900) for _ in range(10)]
        most = max(most, own_memory())
        del caches[::2]
        caches += [filled(model.runtime, 1000, 300) for _ in range(5)]
        caches.clear()
        assert most - before > 55 << 20, "they were in memory"
        assert own_memory() - before < 30 << 20, "16 MiB are kept for the next ones"
