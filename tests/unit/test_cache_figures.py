"""Figures of caches by hand: bytes, formats, saved fields, free memory, states that truncation goes back to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec.cache import HostCache, memory
from edgedec.cache.base import MOST_ATTACHED, checked_drop, kv_bytes_per_token, slotted
from edgedec.cache.formats import load, store
from edgedec.cache.kv_code import Field, _deflated, sources
from edgedec.cache.kv_parts import _HEADER, KVParts, empty, fields
from edgedec.cache.memory import available_memory, cache_bytes, row_bytes, scale_bytes, tokens_that_fit
from edgedec.cache.merging import NoMerging, checked_merge, merged
from edgedec.cache.pending import PendingTree
from edgedec.cache.prefixes import PrefixIndex, common
from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.cache.rows import Rows
from edgedec.cache.slots import SlotMap, check_slots, with_slots
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.spec import Attention, Mlp, ModelSpec, Ssm

HEADS = Attention(6, 3, 40, 0.2, rope=None)
NARROW = Attention(4, 2, 16, 0.2, rope=None)
SSM = Ssm(n_heads=4, head_dim=16, state_size=8, n_groups=2, norm_groups=2, dt_min=0.001, dt_max=0.5)
SPEC = ModelSpec("figures", 50, 32, 600, ((HEADS, Mlp(4)), (NARROW, Mlp(4))), 1e-5, True, ())
HYBRID = ModelSpec("hybrid", 50, 32, 600, ((SSM,), (HEADS, Mlp(4))), 1e-5, True, ())

# ---- bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kv", "each"), [("f32", 4), ("f16", 2), ("int8", 1), ("int4", 0.5)])
def test_bytes_of_a_token(kv: str, each: float) -> None:
    """Keys and values of 3 heads of 40 and 2 of 16: 304 numbers."""
    assert kv_bytes_per_token(SPEC, kv) == 304 * each
    assert cache_bytes(SPEC, kv, 10) == 3040 * each


@pytest.mark.parametrize(
    ("dim", "kv", "size"),
    [
        (64, "f32", 256),
        (64, "f16", 128),
        (63, "f16", 128),
        (64, "int8", 68),
        (65, "int8", 72),
        (64, "int4", 48),
        (40, "int4", 20 + 12),
        (17, "int4", 12 + 8),
        (16, "int4", 20),
        (16, "int8", 20),
    ],
)
def test_bytes_of_a_row(dim: int, kv: str, size: int) -> None:
    assert row_bytes(dim, kv) == size


def test_bytes_of_pages_and_states() -> None:
    """130 tokens take three pages of 64; a recurrent block its inputs and its state, whatever the length."""
    assert cache_bytes(SPEC, "int8", 130, 64) == 192 * 2 * (3 * 44 + 2 * 20)
    assert cache_bytes(SPEC, "int8", 128, 64) == 128 * 2 * (3 * 44 + 2 * 20)
    states = 4 * (SSM.conv_dim * (SSM.conv_size - 1) + SSM.inner_size * SSM.state_size)
    assert cache_bytes(HYBRID, "f32", 0) == states
    assert cache_bytes(HYBRID, "f32", 5) == states + 5 * 2 * 3 * 40 * 4
    assert cache_bytes(HYBRID, "f32", 1, 64) == states + 64 * 2 * 3 * 40 * 4
    assert [scale_bytes(n) for n in (16, 17, 64)] == [4, 8, 16]
    assert (memory.NARROW, MOST_ATTACHED) == (16, 64)


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, free: str, group: dict[str, str]) -> None:
    (folder / "meminfo").write_text(free)
    for name, text in group.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(memory, "_MEMINFO", folder / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", folder)


FREE = "MemTotal:  99 kB\nMemAvailable:   3000 kB\n"


@pytest.mark.parametrize(
    ("free", "group", "found"),
    [
        (FREE, {}, 3000 * 1024),
        (FREE, {"memory.max": "max", "memory.current": "5", "memory.stat": ""}, 3000 * 1024),
        (FREE, {"memory.max": "9000\n", "memory.current": "5000\n", "memory.stat": "inactive_file 700\nx 1\n"}, 4700),
        (FREE, {"memory.max": "9000", "memory.current": "5000", "memory.stat": "x 1\n"}, 4000),
        (FREE, {"memory.max": str(1 << 40), "memory.current": "0", "memory.stat": ""}, 3000 * 1024),
        ("nothing", {"memory.max": "9000", "memory.current": "5000", "memory.stat": ""}, 4000),
        ("nothing", {}, None),
        (FREE, {"memory.max": "x", "memory.current": "5000", "memory.stat": ""}, 3000 * 1024),
    ],
)
def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: str, group: dict[str, str], found) -> None:
    machine(tmp_path, monkeypatch, free, group)
    assert available_memory() == found


def test_tokens_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three quarters of 3,072,000 bytes: of 1,216 bytes a token in plain arrays, of pages of 64 whole ones."""
    machine(tmp_path, monkeypatch, FREE, {})
    assert tokens_that_fit(SPEC, "f32") == 3072000 * 3 // 4 // 1216
    assert tokens_that_fit(SPEC, "f32", 64) == 3072000 * 3 // 4 // (64 * 1216) * 64
    assert tokens_that_fit(ModelSpec("s", 50, 32, 9, ((SSM,),), 1e-5, True, ()), "f32") is None
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert available_memory() is None
    assert tokens_that_fit(SPEC, "f32") is None


# ---- formats ---------------------------------------------------------------------------------


def test_stored_numbers_by_hand() -> None:
    """int8: x over .5, rounded, in -128 to 127; int4: in -8 to 7, plus 8, the first channel in the low nibble."""
    x = np.array([[[0.3, -0.2, 90.0, -90.0]]], np.float32)
    half = np.full((1, 1, 4), 0.5, np.float32)
    assert store(x, "int8", half).tolist() == [[[1, 0, 127, -128]]]
    assert load(store(x, "int8", half), "int8", half).tolist() == [[[0.5, 0, 63.5, -64]]]
    packed = store(x, "int4", half)
    assert packed.tolist() == [[[(1 + 8) | (0 + 8) << 4, (7 + 8) | (-8 + 8) << 4]]]
    assert load(packed, "int4", half).tolist() == [[[0.5, 0, 3.5, -4]]]
    odd = np.array([[[1.0, 1.5, -3.5, 2.5]]], np.float32)  # 2 3 -7 5: every bit of a nibble counts by itself
    assert store(odd, "int4", half).tolist() == [[[10 | 11 << 4, 1 | 13 << 4]]]
    assert load(store(odd, "int4", half), "int4", half).tolist() == odd.tolist()
    assert store(x, "f16", None).dtype == np.float16
    assert store(x, "f32", None).dtype == np.float32
    assert load(store(x, "f16", None), "f16", None).dtype == np.float32


def test_fields_of_saved_rows() -> None:
    """Numbers first, then scales: float32 of an int8 row, float16 of an int4 row's groups; narrow int4 heads are
    int8."""
    assert fields(SPEC, "f32", 0) == (Field(0, 160, 4, True),)
    assert fields(SPEC, "f16", 0) == (Field(0, 80, 2, True),)
    assert fields(SPEC, "int8", 0) == (Field(0, 40, 1, False),)
    assert fields(SPEC, "int4", 0) == (Field(0, 20, 1, False),)
    assert fields(SPEC, "native-f32", 0) == (Field(0, 160, 4, True),)
    assert fields(SPEC, "native-f16", 0) == (Field(0, 80, 2, True),)
    assert fields(SPEC, "native-int8", 0) == (Field(0, 40, 1, False), Field(40, 44, 4, True))
    assert fields(SPEC, "native-int4", 0) == (Field(0, 20, 1, False), Field(20, 32, 2, True))
    assert fields(SPEC, "native-int4", 2) == (Field(0, 16, 1, False), Field(16, 20, 4, True))
    assert {b: rows.shape for b, rows in empty(SPEC, "native-int4", 7).items()} == {0: (2, 3, 7, 32), 2: (2, 2, 7, 20)}


def test_what_can_be_split() -> None:
    assert [KVParts.takes(SPEC, kind) for kind in ("f32", "native-int4", "other", "native-other")] == [
        True,
        True,
        False,
        False,
    ]
    assert KVParts.takes(HYBRID, "f32")
    assert not KVParts.takes(HYBRID, "native-f32")
    assert not KVParts.takes(ModelSpec("s", 50, 32, 9, ((SSM,),), 1e-5, True, ()), "f32")
    cache = HostCache(SPEC, 20)
    assert KVParts.split(SPEC, "f32", cache.save()).rows == {}
    for n in (5, 3):
        cache.write([0, 2], Rows.chain([1] * n, cache.length))
        cache.commit(range(n))
    parts = KVParts.split(SPEC, "f32", cache.save())
    assert parts.length == 8
    assert {b: rows.shape for b, rows in parts.rows.items()} == {0: (2, 3, 8, 160), 2: (2, 2, 8, 64)}
    assert set(parts.rest) == {"length"}
    back = parts.joined()
    assert all(np.array_equal(back[name], array) for name, array in cache.save().items())
    assert back.keys() == cache.save().keys()
    cache.drop(0, [3])
    assert KVParts.split(SPEC, "f32", cache.save()).rows == {}


def test_states_of_the_engine_that_can_be_split() -> None:
    """A header, then for each block its slots, whether they are named, and its rows: any other length stays whole."""
    rows = [np.arange(2 * heads * 4 * width, dtype=np.uint8) for heads, width in ((3, 160), (2, 64))]

    def saved(slots: int = 4, named: int = 0, cut: int = 0, more: int = 0) -> dict[str, np.ndarray]:
        blocks = [np.concatenate([np.array([slots, named], "<i8").view(np.uint8), part]) for part in rows]
        state = np.concatenate([np.arange(_HEADER, dtype=np.uint8), *blocks, np.zeros(more, np.uint8)])
        return {"length": np.array([4]), "state": state[: len(state) - cut]}

    parts = KVParts.split(SPEC, "native-f32", saved())
    assert [part.tobytes() for part in parts.rows.values()] == [part.tobytes() for part in rows]
    assert parts.joined()["state"].tobytes() == saved()["state"].tobytes()
    last = rows[1].nbytes
    for other in (
        saved(5),
        saved(3),
        saved(named=1),
        saved(more=1),
        *(saved(cut=n) for n in (1, last, last + 1, last + 16)),
    ):
        assert KVParts.split(SPEC, "native-f32", other).rows == {}


def test_long_planes_are_packed_if_a_sample_says_so() -> None:
    """A sample of 4,096 bytes of which any is as frequent as any other: what follows is stored as it is, however
    regular; up to four samples, all of it is tried."""
    noise, field = np.random.default_rng(0).bytes(4096), Field(0, 2, 2, True)
    for n in (4 * 4096, 4 * 4096 + 1):
        plane = noise + bytes(n - 4096)
        assert (_deflated(plane, field) == plane) is (n > 4 * 4096)
        assert len(_deflated(bytes(n), field)) < n // 4


def test_slots_that_predict() -> None:
    assert sources([5, 7, 5, 5]).tolist() == [-1, 0, 0, 2]
    assert sources([]).tolist() == []


# ---- merging and dropping --------------------------------------------------------------------


def test_merged_by_hand() -> None:
    values = np.array([[[1.0], [2.0], [4.0], [8.0]], [[1.0], [2.0], [4.0], [8.0]]], np.float32)
    parts = checked_merge([3, 3, 0], [1, 2, 2], [[0.25, 0.5, 0.5], [0, 0, 1]], 2, 4)
    targets, found = merged(values, *parts)
    assert targets.tolist() == [0, 3]
    assert found[0, :, 0].tolist() == [0.5 * 1 + 0.5 * 4, 0.25 * 8 + 0.25 * 2 + 0.5 * 4]
    assert found[1, :, 0].tolist() == [4, 8]
    assert checked_merge([3], [1], [0.5], 2, 4)[2].tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize(
    ("into", "slots", "weights", "said"),
    [
        ([3, 2], [1], [0.5], "give one of each"),
        ([3], [1], [0.5, 0.5], "give one of each"),
        ([3], [4], [0.5], "slots 3 to 4: the block holds 4"),
        ([-1], [1], [0.5], "slots -1 to 1"),
        ([1, 2], [2, 3], [0.5, 0.5], "merge of slot 2"),
        ([1], [2], [np.inf], "finite"),
    ],
)
def test_merges_that_cannot_be(into: list[int], slots: list[int], weights: list[float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        checked_merge(into, slots, weights, 2, 4)
    checked_merge([3], [0], [1.0], 2, 4)
    checked_merge([], [], [], 2, 4)


def test_drops_by_head() -> None:
    assert checked_drop(SPEC, 2, np.array([[0, 3], [1, 2]])).tolist() == [[0, 3], [1, 2]]
    for wrong in ([[0, 3]], [[3, 0], [1, 2]], [[1, 1], [1, 2]], [0, 1]):
        with pytest.raises(UsageError, match="as many of each of 2 kv heads, ascending"):
            checked_drop(SPEC, 2, np.array(wrong))
    windows = ModelSpec("w", 50, 32, 9, ((Attention(2, 2, 16, 1.0, rope=None, window=4),),), 1e-5, True, ())
    with pytest.raises(UsageError, match="has a window"):
        checked_drop(windows, 0, np.array([[0], [1]]))
    with pytest.raises(UsageError, match="block 1 keeps no slots that could be read"):
        slotted(SPEC, 1, "read")
    assert slotted(SPEC, 2, "read") == 2


def test_caches_that_declare_nothing() -> None:
    cache = NoMerging()
    for call, said in (
        (lambda: cache.offload(0, [1], ""), "puts no pages on disk"),
        (lambda: cache.merge(0, [1], [2], [3]), "declares no merge"),
        (lambda: cache.attach(2), "declares no attach"),
        (lambda: cache.keys(3), "gives no keys"),
        (lambda: cache.drop_by_head(0, []), "for all kv heads alike"),
    ):
        with pytest.raises(UsageError, match=said):
            call()


# ---- pending rows, slots ---------------------------------------------------------------------


def test_pending_trees() -> None:
    tree = PendingTree()
    assert not tree.write(Rows.chain([1, 2, 3], 0))
    assert tree.size == 3
    assert not tree.write(Rows.chain([1], 0)), "another block on the same tree"
    assert tree.size == 3
    for rows in ([3], [-1], [1, 1], [1, 0]):
        with pytest.raises(UsageError, match="rows 0 to 2 are pending"):
            PendingTree.commit(tree_of(3), rows)
    tree.commit([0, 2])
    assert tree.done == 3
    with pytest.raises(UsageError, match="cannot be committed"):
        tree.commit([2])
    with pytest.raises(UsageError, match="are committed already"):
        tree.write(Rows.chain([1, 2], 0).extend([3], [1]))
    assert tree.write(Rows.chain([1, 2], 3))
    assert (tree.size, tree.done) == (2, 0)
    tree.reset()
    assert (tree.size, tree.done) == (0, 0)
    assert not tree.write(Rows.chain([], 3))
    assert tree.size == 0


def tree_of(n: int) -> PendingTree:
    tree = PendingTree()
    tree.write(Rows.chain([1] * n, 0))
    return tree


def test_slots_grow_by_doubling() -> None:
    slots = SlotMap(4)
    slots.write(Rows.chain([1] * 5, 0))
    assert len(slots._positions) == len(slots._tokens) == 8
    slots.write(Rows.chain([1] * 20, 0))
    assert len(slots._positions) == 20
    slots.commit(range(20), 0)
    slots.extend(np.array([20, 21]))
    assert (slots.committed, len(slots._positions)) == (22, 40)
    assert slots.positions[-2:].tolist() == slots.tokens[-2:].tolist() == [20, 21]
    with pytest.raises(UsageError, match="rows from 2 on cannot be added to 0 pending ones"):
        slots.write(Rows.chain([1, 2], 22).extend([3], [1]))


def test_slots_of_dropped_heads() -> None:
    slots = SlotMap(8)
    slots.write(Rows.chain([1] * 6, 10))
    slots.commit(range(6), 0)
    assert slots.drop_by_head(np.array([[0, 1], [4, 5]])).tolist() == [[2, 3, 4, 5], [0, 1, 2, 3]]
    assert slots.positions.tolist() == [12, 13, 14, 15], "of the latest that a head has there"
    for wrong in (np.array([[4], [0]]), np.array([[-1], [0]])):
        with pytest.raises(UsageError, match="the block holds 4"):
            slots.drop_by_head(wrong)
    for wrong in ([4], [-1], [-1, 2], [2, 4]):
        with pytest.raises(UsageError, match="the block holds 4"):
            slots.drop(wrong)
    assert slots.drop([0, 3]).tolist() == [1, 2]


def test_slots_that_are_attached() -> None:
    slots = SlotMap(8)
    slots.write(Rows.chain([1] * 3, 0))
    slots.commit(range(3), 0)
    slots.rollback()
    slots.attach(2, 3)
    assert slots.committed == 3, "nothing is pending"
    slots.write(Rows.chain([1] * 3, 3))
    slots.attach(2, 3)
    assert slots.tokens.tolist() == [0, 1, 2, 2, 2]
    slots.truncate(2)
    assert slots.committed == 2
    slots.write(Rows.chain([1] * 2, 2))
    with pytest.raises(UsageError, match="3 rows cannot be attached: 2 are pending"):
        slots.attach(3, 2)


def test_shapes_and_order_of_saved_slots() -> None:
    assert with_slots((2, 3, 0, 8), "kv", 5) == (2, 3, 5, 8)
    assert with_slots((2, 0), "slots", 5) == (2, 5)
    assert with_slots((1,), "length", 5) == (1,)
    check_slots("s", np.array([[0, 9], [0, 0]]), 1)
    for wrong in ([[0, 1], [1, 0]], [[-1, 1], [0, 1]], [[0, 1], [0, 2]], [[0, 1], [-1, 1]]):
        with pytest.raises(SessionError, match="not in order"):
            check_slots("s", np.array(wrong), 2)


def test_attached_slots_of_a_cache() -> None:
    """At most 64 more slots than tokens; more rows than are pending cannot be."""
    cache = HostCache(SPEC, 300)
    cache.write([0, 2], Rows.chain([1] * 10, 0))
    with pytest.raises(UsageError, match="rows cannot be attached"):
        cache.attach(1)
    cache.commit(range(10))
    for n, error in ((65, ContextFull), (71, UsageError), (0, UsageError)):
        cache.write([0, 2], Rows.chain([1] * 70, 10))
        with pytest.raises(error):
            cache.attach(n)
        cache.rollback()
    cache.write([0, 2], Rows.chain([1] * 70, 10))
    cache.attach(64)
    assert (cache.length, cache.slots(0), cache.slots(2)) == (10, 74, 74)


# ---- recurrent states ------------------------------------------------------------------------


def state(x: float) -> Recurrent:
    return Recurrent(np.full((3, 1), x, np.float32), np.full((1, 1, 1), x, np.float32))


def test_states_that_truncation_goes_back_to() -> None:
    """Kept after chunks of 16 rows and more: the empty one and the last four."""
    one, length = RecurrentState(SSM), 0
    for n in (16, 15, 17, 20, 40, 16):
        rows = Rows.chain([1] * n, length)
        one.write(rows, [lambda x=length + i + 1: state(x) for i in range(n)])
        length += n
        one.commit(range(n), length)
    assert length == 124
    kept = [n for n, _ in one._checkpoints]
    assert kept == [0, 48, 68, 108, 124]
    assert [one.reachable(n, 124) for n in (130, 124, 123, 108, 107, 50, 47)] == [130, 124, 108, 108, 68, 48, 0]
    twin = one.copy()
    one.truncate(124, 124)
    assert one.committed.state.item() == 124
    one.truncate(68, 124)
    assert one.committed.state.item() == 68
    assert [n for n, _ in one._checkpoints] == [0, 48, 68]
    assert [n for n, _ in twin._checkpoints] == kept
    assert twin.committed.state.item() == 124
    one.load(state(9), 70)
    assert [n for n, _ in one._checkpoints] == [0, 70]
    one.load(state(0), 0)
    assert [n for n, _ in one._checkpoints] == [0]
    assert one.committed.conv.shape == (3, 1)


def test_states_of_trees() -> None:
    one = RecurrentState(SSM)
    assert one.committed.conv.shape == (SSM.conv_size - 1, SSM.conv_dim)
    assert one.committed.state.shape == (4, 16, 8)
    tree = Rows.tree([1, 2, 3], [-1, 0, 0], 0)
    one.write(tree, [lambda x=x: state(x) for x in (1, 2, 3)])
    assert one.before(tree, 0) is one.committed
    assert one.before(tree, 2).state.item() == 1
    grown = tree.extend([4, 5], [2, -1])
    one.write(grown, [lambda x=x: state(x) for x in (4, 5)])
    assert one.before(grown, 3).state.item() == 3
    assert one.before(grown, 4) is one.start
    one.commit([7], 1)
    assert one.committed is one.start, "the block was not run on it"
    one.commit([0, 2, 3], 3)
    assert one.committed.state.item() == 4
    assert one.before(grown, 4) is one.start is not one.committed
    one.rollback()
    assert one.start is one.committed
    assert len(one.pending) == 0


# ---- prefixes --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 127, 128, 200])
def test_common_beginnings(n: int) -> None:
    a = list(range(200))
    assert common(a, [*a[:n], -1, *a[n + 1 :]]) == min(n, 200)
    assert common(a, a[:n]) == common(a[:n], a) == n
    assert common([], a) == 0


def test_what_is_used_last_stays() -> None:
    index = PrefixIndex[str]()
    index.insert([1, 2, 3], "a")
    index.insert([1, 2, 4], "b")
    index.insert([1, 2], "inside")
    index.insert([5], "c")
    index.insert([5, 6, 7], "longer")
    index.insert([9], "other", "key")
    index.insert([], "nothing")
    assert len(index) == len(list(index.caches())) == 4
    assert index.match([1, 2, 3, 9]) == ("a", 3)
    assert index.match([5, 6]) == ("longer", 2)
    assert index.match([2]) == (None, 0)
    assert index.match([9]) == (None, 0)
    assert index.match([9], "key") == ("other", 1)
    assert index.match([9], "none") == (None, 0)
    left = list[tuple[list[int], str, str]]()
    index.evict(lambda: len(index) <= 2, lambda ids, cache, key: left.append((ids, cache, key)))
    assert left == [([1, 2, 4], "b", ""), ([1, 2, 3], "a", "")]
    assert index.match([1, 2, 3]) == (None, 0)
    index.evict(lambda: True)
    assert len(index) == 2
    index.clear()
    assert (len(index), list(index.caches())) == (0, [])
