"""The native runtime at its edges: what it answers besides logits, what it refuses, forks and threads."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.errors import ContextFull, RuntimeUnavailable, SessionError, UsageError
from edgedec.kernels import cpu
from edgedec.kernels.cpu import loader
from edgedec.runtime.core import RuntimeOptions, Want, forward, open_runtime
from edgedec.runtime.rows import Rows
from edgedec.spec import KV_FORMATS, Layer

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

HEADER = Path(__file__).parents[2] / "kernels" / "cpu" / "api.h"
PROMPT = "the ring and one"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A vocabulary of several strips."""
    spec = ODD["large"]
    return write_bundle(tmp_path_factory.mktemp("large") / "b", spec, random_weights(spec), "int4")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec = ODD["plain"]
    return write_bundle(tmp_path_factory.mktemp("plain") / "b", spec, random_weights(spec))


def hidden_of(bundle: Bundle, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, bundle.spec.hidden_size)).astype(np.float32)


# -- the best tokens


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_best_are_those_of_all_logits(large: Bundle, threads: int) -> None:
    runtime, hidden = native.NativeRuntime(large, "f32", threads), hidden_of(large, 9)
    logits = runtime.head(hidden)
    order = np.argsort(-logits, axis=1, kind="stable")  # the lowest id of equals first
    for k in (1, 2, 5, 100, 1201, 5000):
        ids, values = runtime.best(hidden, k)
        assert ids.shape == (9, min(k, 1201))
        np.testing.assert_array_equal(ids, order[:, :k])
        np.testing.assert_array_equal(values, np.take_along_axis(logits, order[:, :k], 1))
    rows = Rows.chain(range(9), 0)
    logits = runtime.logits(rows, runtime.new_cache(9), 2)
    found = runtime.call(rows, runtime.new_cache(9), 2, Want(logits=False, top=1)).ids
    np.testing.assert_array_equal(found[:, 0], logits.argmax(axis=1))


def test_of_equals_the_lowest_wins(tmp_path: Path) -> None:
    """A vocabulary of rows that come back every 7 tokens: whichever thread sees them first."""
    spec = ODD["large"]
    read = random_weights(spec)
    table = np.tile(read("embed")[:7], (172, 1))[: spec.vocab_size]
    bundle = write_bundle(tmp_path / "b", spec, lambda name: table if name == "embed" else read(name), "int8")
    for threads in (1, 2):
        runtime = native.NativeRuntime(bundle, "f32", threads)
        for _ in range(20):
            ids, logits = runtime.best(hidden_of(bundle, 5), 10)
            first = runtime.head(hidden_of(bundle, 5))[:, :7].argmax(axis=1)
            np.testing.assert_array_equal(ids, first[:, None] + 7 * np.arange(10))
            assert (logits == logits[:, :1]).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("weights", ["f32", "int8", "int4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_has_no_best(tmp_path: Path, weights: str, threads: int, bad: float) -> None:
    """A token whose embedding is not finite: the rows after it are lost, those before it are not."""
    spec = ODD["plain"]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), weights)
    runtime = native.NativeRuntime(bundle, "f32", threads)
    hidden = hidden_of(bundle, 3)
    hidden[1, 3] = bad
    ids, values = runtime.best(hidden)
    assert ids[[0, 2], 0].tolist() == runtime.head(hidden)[[0, 2]].argmax(axis=1).tolist()
    assert not np.isfinite(values[1, 0])


def test_there_is_no_best_token_for_a_row_that_is_not_finite(tmp_path: Path) -> None:
    spec = ODD["plain"]
    read = random_weights(spec)
    embed = read("embed").copy()
    embed[5, 2] = np.inf
    bundle = write_bundle(tmp_path / "b", spec, lambda name: embed if name == "embed" else read(name))
    runtime = native.NativeRuntime(bundle, "f32", 2)
    rows = Rows.tree([1, 5, 2, 3], [-1, 0, 0, 1], 0)
    found = runtime.call(rows, runtime.new_cache(4), 0, Want(logits=False, top=1)).ids[:, 0].tolist()
    logits = runtime.logits(rows, runtime.new_cache(4), 0)
    assert found == [int(logits[0].argmax()), -1, int(logits[2].argmax()), -1]
    with pytest.raises(UsageError, match="not finite"):
        list(edgedec.Model(bundle, runtime).session().tokens([1, 5], max_tokens=1))


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_greedy_text_is_that_of_all_logits(tiny: Path, kv: str) -> None:
    model = edgedec.open(tiny, engine="native", kv=kv)
    ids = model.tokenizer.encode(PROMPT)
    best = list(map(int, model.session().tokens(ids, max_tokens=60, ignore_eos=True)))
    logits = list(map(int, model.session().tokens(ids, max_tokens=60, ignore_eos=True, logprobs=0)))
    assert best == logits
    assert len(set(best)) > 5


# -- attention mass


def numpy_mass(runtime, rows: Rows, before: list[int]) -> list[np.ndarray]:
    """Softmax by hand, layer by layer, of queries and keys taken from a reference run in float64."""
    spec, bundle = runtime.spec, runtime.bundle
    reference = open_runtime("reference", bundle)
    cache = reference.new_cache(64)
    forward(reference, Rows.chain(before, 0), cache)
    cache.keep(range(len(before)))
    hidden, found = reference.embed(rows.tokens), []
    for i, layer in enumerate(spec.layers):
        x = reference._norm(hidden, f"layers.{i}.attn_norm")
        q = reference._rotate(i, reference._qkv(i, x)[0], rows.positions).astype(np.float64)
        hidden = reference.run(hidden, rows, cache, [2 * i])
        keys = cache.keys(i)[:, : cache.length + len(rows)].astype(np.float64)
        keys = np.repeat(keys, spec.n_heads // spec.n_kv_heads, axis=0)
        scores = q @ keys.transpose(0, 2, 1) * spec.attn_scale
        scores = np.where(rows.mask(cache.length, layer.window), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        found.append(weights.sum(axis=1).reshape(spec.n_kv_heads, -1, weights.shape[-1]).sum(axis=1))
        hidden = reference.run(hidden, rows, cache, [2 * i + 1])
    return found


def mass_of(bundle: Bundle, rows: Rows, before: list[int], threads: int, kv: str = "f32") -> np.ndarray:
    spec, runtime = bundle.spec, native.NativeRuntime(bundle, kv, threads)
    cache = runtime.new_cache(len(before) + len(rows))
    if before:
        forward(runtime, Rows.chain(before, 0), cache)
        cache.keep(range(len(before)))
    mass = np.zeros((spec.n_layers, spec.n_kv_heads, len(before) + len(rows)), np.float32)
    hidden = runtime.embed(rows.tokens)
    plainly = runtime.run(hidden, rows, cache, spec.blocks())
    assert runtime.run_batch(hidden, [(rows, cache)], spec.blocks(), mass).tobytes() == plainly.tobytes()
    return mass


def test_mass_is_the_softmax(plain: Bundle) -> None:
    before, tree = [3, 1, 4, 1, 5, 9, 2, 6], Rows.tree([5, 3, 5, 8, 9], [-1, 0, 0, 2, -1], 8)

    class Runtime:
        spec, bundle = plain.spec, plain

    found = mass_of(plain, tree, before, 1)
    np.testing.assert_allclose(found, numpy_mass(Runtime, tree, before), atol=1e-5)
    assert (found[1, :, 0] == 0).all(), "the second layer's window hides the first token"


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_mass_adds_up_and_knows_no_threads(plain: Bundle, kv: str) -> None:
    ids = np.random.default_rng(0).integers(0, plain.spec.vocab_size, 450).tolist()
    group = plain.spec.n_heads // plain.spec.n_kv_heads
    for n in (1, 7, 150):
        rows = Rows.chain(ids[:n], 300)
        found = mass_of(plain, rows, ids[:300], 1, kv)
        np.testing.assert_allclose(found.sum(axis=2), n * group, rtol=1e-4)
        for threads in (2, 3):
            assert mass_of(plain, rows, ids[:300], threads, kv).tobytes() == found.tobytes()


def test_mass_of_a_wrong_shape_is_refused(plain: Bundle) -> None:
    runtime = native.NativeRuntime(plain, "f32", 1)
    rows, cache = Rows.chain([1, 2], 0), runtime.new_cache(4)
    hidden = runtime.embed(rows.tokens)
    for mass in (np.zeros((3, 2, 3), np.float32), np.zeros((3, 2, 2)), np.zeros((3, 2, 4), np.float32)[..., ::2]):
        with pytest.raises(UsageError, match=re.escape("mass: expected float32 [3, 2, 2] for one sequence")):
            runtime.run_batch(hidden, [(rows, cache)], [0], mass)


# -- what is refused


def test_calls_that_cannot_be_are_refused(plain: Bundle, large: Bundle) -> None:
    runtime, spec = native.NativeRuntime(plain, "f32", 2), plain.spec
    rows, cache = Rows.chain([1, 2], 0), runtime.new_cache(8)
    hidden = runtime.embed(rows.tokens)
    other = native.NativeRuntime(large, "f32", 1).new_cache(8)
    for call, says in (
        (lambda: runtime.embed(np.array([1, spec.vocab_size])), "a token outside the vocabulary"),
        (lambda: runtime.embed(np.array([-1])), "a token outside the vocabulary"),
        (lambda: runtime.run(hidden, rows, cache, [6]), "a block that the model does not have"),
        (lambda: runtime.run(hidden, rows, cache, [0, -1]), "a block that the model does not have"),
        (lambda: runtime.run(hidden[:1], rows, cache, [0]), "1 hidden states for 2 rows"),
        (lambda: runtime.run(hidden[:, :-1], rows, cache, [0]), "hidden"),
        (lambda: runtime.run(hidden[0], rows, cache, [0]), "hidden"),
        (lambda: runtime.head(hidden[:, :5]), "hidden"),
        (lambda: runtime.best(np.zeros((1, 34), np.float32)), "hidden"),
        (lambda: runtime.logits(Rows.chain([1], 600), cache, 0), "a position outside the model's context"),
        (lambda: runtime.logits(Rows.chain([1], -1), cache, 0), "a position outside the model's context"),
        (lambda: runtime.logits(rows, other, 0), "a f32 cache of another engine or model"),
        (lambda: runtime.new_cache(0), "capacity 0"),
    ):
        with pytest.raises(UsageError, match=says):
            call()
    with pytest.raises(UsageError, match="two runs of rows for one cache"):
        runtime.logits_batch([(rows, cache), (rows, cache)])
    loop = Rows(np.array([1, 2]), np.array([0, 1]), np.array([1, 0]))
    with pytest.raises(UsageError, match="a parent that does not come before its row"):
        runtime.logits(loop, cache, 0)
    assert cache.length == 0
    with pytest.raises(ContextFull, match="9 rows do not fit a cache of 8"):
        runtime.logits(Rows.chain(range(9), 0), cache, 0)


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_a_cache_of_another_engine_is_refused(tiny: Path, kv: str) -> None:
    ort, ours = (edgedec.open(tiny, engine=engine, kv=kv).runtime for engine in ("ort", "native"))
    with pytest.raises(UsageError, match=f"a {kv} cache of another engine or model"):
        forward(ours, Rows.chain([1, 2], 0), ort.new_cache(8))


def test_an_unknown_instruction_set_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_ISA", "mmx")
    with pytest.raises(RuntimeUnavailable, match="engine native: instruction set mmx: not for this CPU"):
        edgedec.open(tiny, engine="native")
    monkeypatch.setenv("EDGEDEC_ISA", "scalar")
    assert edgedec.open(tiny, engine="native").runtime.isa == "scalar"  # type: ignore[attr-defined]
    monkeypatch.setenv("EDGEDEC_ISA", "")
    assert edgedec.open(tiny, engine="native").runtime.isa == loader.isa()  # type: ignore[attr-defined]


def test_an_unknown_cache_format_is_refused(tiny: Path) -> None:
    with pytest.raises(UsageError, match="no KV format 'f64'; there are: f32, f16, int8, int4"):
        edgedec.open(tiny, engine="native", kv="f64")


# -- forks, threads, memory given back

FORK = """
import os, sys
import edgedec
model = edgedec.open({path!r}, engine="native", threads=2)
ids = list(range(40))
tell = lambda: list(map(int, model.session().tokens(ids, max_tokens=30, ignore_eos=True)))
expected = tell()
for uses in (True, False):
    child = os.fork()
    if child == 0:
        # Ends as programs end: what is left is cleaned up.
        sys.exit(0 if not uses or tell() == expected == tell() else 1)
    assert os.waitpid(child, 0)[1] == 0
assert tell() == expected
print("same")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_process_works_and_ends(tiny: Path) -> None:
    code = FORK.format(path=str(tiny))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "same\n", done.stderr


def test_sessions_in_threads_say_what_they_say_alone(tiny: Path) -> None:
    model = edgedec.open(tiny, engine="native", threads=2)
    prompts = [[1, 2, 3], [7, 8, 9, 10], list(range(100))]

    def tell(ids: list[int]) -> list[int]:
        return list(map(int, model.session().tokens(ids, max_tokens=40, ignore_eos=True)))

    alone = [tell(ids) for ids in prompts]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            assert list(pool.map(tell, prompts)) == alone


def test_released_and_used_again(tiny: Path) -> None:
    runtime = edgedec.open(tiny, engine="native", threads=2).runtime
    rows, cache = Rows.chain(range(50), 0), runtime.new_cache(60)
    expected = forward(runtime, rows, cache)
    cache.keep(range(50))
    following = forward(runtime, Rows.chain([3], 50), cache)
    runtime.release()
    runtime.load()
    assert forward(runtime, rows, runtime.new_cache(50)).tobytes() == expected.tobytes()
    runtime.release()
    assert forward(runtime, Rows.chain([3], 50), cache).tobytes() == following.tobytes()
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(forward, runtime, rows, runtime.new_cache(50)) for _ in range(20)]
        for _ in range(10):
            runtime.release()
        assert {call.result().tobytes() for call in calls} == {expected.tobytes()}


# -- saved sessions


def saved(tiny: Path, path: Path, engine: str, kv: str) -> list[int]:
    """A session saved after five tokens, and the eight that follow."""
    session = edgedec.open(tiny, engine=engine, kv=kv).session()
    list(session.tokens([5, 6, 7, 8], max_tokens=5, ignore_eos=True))
    session.save(path)
    return list(map(int, session.tokens(max_tokens=8, ignore_eos=True)))


@pytest.mark.parametrize(
    ("kv", "engine", "into"),
    [*((kv, "native", "native") for kv in KV_FORMATS), ("f32", "ort", "native"), ("f32", "native", "ort")],
)
def test_a_saved_session_goes_on(tiny: Path, tmp_path: Path, kv: str, engine: str, into: str) -> None:
    rest = saved(tiny, tmp_path / "saved", engine, kv)
    other = edgedec.open(tiny, engine=into, kv=kv).session()
    other.load(tmp_path / "saved")
    assert list(map(int, other.tokens(max_tokens=8, ignore_eos=True))) == rest


@pytest.mark.parametrize("kv", ["int8", "int4"])
@pytest.mark.parametrize(("engine", "into"), [("native", "ort"), ("ort", "native")])
def test_a_quantized_cache_stays_with_its_engine(tiny: Path, tmp_path: Path, kv: str, engine: str, into: str) -> None:
    saved(tiny, tmp_path / "saved", engine, kv)
    kinds = {"native": "int8-by-token", "ort": kv}  # so narrow heads have no int4 cache of the engine's
    with pytest.raises(SessionError) as refused:
        edgedec.open(tiny, engine=into, kv=kv).session().load(tmp_path / "saved")
    assert f"saved with a {kinds[engine]} cache, this session has {kinds[into]}; open the model with" in str(
        refused.value
    )


# -- the C interface

MIRROR = {
    "ed_tensor": cpu.Tensor,
    "ed_layer": cpu.Layer,
    "ed_rope": cpu.Rope,
    "ed_model": cpu.Model,
    "ed_sequence": cpu.Sequence,
    "ed_call": cpu.Call,
}


def declared() -> dict[str, list[str]]:
    """The structures of the header and their fields' names in order."""
    text = re.sub(r"//.*", "", HEADER.read_text("utf-8"))
    found = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.M | re.S):
        members = [part.strip() for part in body.split(";") if part.strip()]
        found[name] = [re.findall(r"\w+", item)[-1] for member in members for item in member.split(",")]
    return found


def test_structures_are_those_of_the_header() -> None:
    assert declared() == {name: [field for field, _ in mirror._fields_] for name, mirror in MIRROR.items()}
    assert re.search(r"#define ED_ABI (\d+)", HEADER.read_text("utf-8"))[1] == str(loader.ABI)  # type: ignore[index]


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")
def test_structures_lie_in_memory_as_the_compilers_do(tmp_path: Path) -> None:
    lines = []
    for name, fields in declared().items():
        lines.append(f'std::printf("{name} %zu\\n", sizeof({name}));')
        for field in fields:
            where = f"offsetof({name}, {field}), sizeof({name}::{field})"
            lines.append(f'std::printf("{name}.{field} %zu %zu\\n", {where});')
    source = "\n".join(["#include <cstddef>", "#include <cstdio>", f'#include "{HEADER}"', "int main() {", *lines, "}"])
    (tmp_path / "sizes.cpp").write_text(source)
    subprocess.run(["c++", "-std=c++17", tmp_path / "sizes.cpp", "-o", tmp_path / "sizes"], check=True)
    expected = subprocess.check_output([tmp_path / "sizes"], text=True).split("\n")[:-1]
    found = []
    for name, mirror in MIRROR.items():
        found.append(f"{name} {ctypes.sizeof(mirror)}")
        for field, _ in mirror._fields_:
            part = getattr(mirror, field)
            found.append(f"{name}.{field} {part.offset} {part.size}")
    assert found == expected


def test_every_refusal_has_words() -> None:
    engine = HEADER.with_name("engine.cpp").read_text("utf-8")
    check = engine[engine.index("int Engine::check") : engine.index("void Engine::prepare")]
    assert {int(n) for n in re.findall(r"return (\d)(?:;| *$)", check)} | {5} == {0, *(n for n in cpu.ERRORS if n > 0)}


def test_threads_are_as_many_as_asked(tiny: Path, large: Bundle) -> None:
    assert [edgedec.open(tiny, engine="native", threads=n).runtime.threads for n in (1, 2, 5)] == [1, 2, 5]  # type: ignore[attr-defined]
    assert edgedec.open(tiny, engine="native").runtime.threads == 1, "so small a model is not worth a second"  # type: ignore[attr-defined]
    assert open_runtime("native", large, RuntimeOptions(threads=2)).threads == 2  # type: ignore[attr-defined]


def test_a_model_of_one_layer_and_no_rope(tmp_path: Path) -> None:
    spec = replace(ODD["plain"], layers=(Layer(None, None),), ropes=())
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), "int8")
    reference, ours = (open_runtime(name, bundle, RuntimeOptions(kv="f32")) for name in ("reference", "native"))
    rows = Rows.chain([1, 2, 3, 4], 0)
    expected, found = (forward(runtime, rows, runtime.new_cache(4)) for runtime in (reference, ours))
    np.testing.assert_allclose(found, expected, atol=0.2)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's map of a process")
def test_the_weights_are_used_where_they_lie(nano: Path) -> None:
    """Mapped, read, and never written: every process that opens the bundle shares the pages."""
    bundle = Bundle.open(nano)
    runtime = open_runtime("native", bundle, RuntimeOptions(threads=1))
    forward(runtime, Rows.chain([1, 2, 3], 0), runtime.new_cache(8))
    sizes, inside = dict.fromkeys(("Rss:", "Private_Dirty:", "Anonymous:"), 0), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if first in sizes:
            sizes[first] += int(rest[0]) if inside else 0
        elif not first.endswith(":"):
            inside = line.endswith(str(bundle.file(bundle.manifest.weights).resolve()))
    assert sizes["Rss:"] > 1000
    assert sizes["Private_Dirty:"] == sizes["Anonymous:"] == 0
