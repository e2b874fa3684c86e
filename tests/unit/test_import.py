"""`edgedec import`: graphs that are taken, graphs that are refused by name, and the cache that a graph has."""

from __future__ import annotations

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, write_llama, write_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.bundle import Bundle
from edgedec.cache import Cache
from edgedec.cli import main
from edgedec.errors import BundleCorrupt, CheckpointError, ContextFull, EdgedecError, SessionError, UsageError
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, Runtime, forward_one, logits_of, open_runtime

onnx = pytest.importorskip("onnx", reason="importing graphs needs onnx")

from decoder_graphs import write_decoder  # noqa: E402

from edgedec.export import checkpoint_logits, decoder_graph  # noqa: E402
from edgedec.export.decoder_graph import ImportOptions, import_graph  # noqa: E402
from edgedec.runtimes.graph import GraphCache  # noqa: E402


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("graph") / "onnx-folder")


@pytest.fixture(scope="module")
def bundle(source: Path) -> Path:
    found = import_graph(source, source.parent / "bundle")
    assert found.off < 1e-5
    return found.bundle.path


@pytest.fixture(scope="module")
def runtime(bundle: Path) -> Runtime:
    return open_runtime("graph", Bundle.open(bundle))


def fresh(runtime: Runtime, ids: list[int]) -> np.ndarray:
    """Logits of a text that is read anew."""
    cache = runtime.new_cache(320)
    return logits_of(runtime, Rows.chain(ids, 0), cache)


def test_a_bundle_is_the_graph_and_says_so(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = edgedec.open(bundle, verify=True)
    assert (model.runtime.name, model.spec.kinds, model.spec.n_layers) == ("graph", ("opaque",), 2)
    assert model.spec.tensors() == {}
    assert main(["inspect", str(bundle)]) == 0
    shown = capsys.readouterr().out
    assert "inside an ONNX graph" in shown
    assert "opaque x 2" in shown


def test_what_a_bundle_generates_is_the_same_plain_drafted_and_saved(bundle: Path, tmp_path: Path) -> None:
    model = edgedec.open(bundle)
    ids = model.tokenizer.encode("the thing on the thing on the thing")
    expected = [int(t) for t in model.session().tokens(ids, max_tokens=40, ignore_eos=True)]
    session = model.session(speculate="copy+recycling:fixed=3")
    assert [int(t) for t in session.tokens(ids, max_tokens=40, ignore_eos=True)] == expected
    assert session.stats.proposed > 0
    half = model.session()
    assert [int(t) for t in half.tokens(ids, max_tokens=20, ignore_eos=True)] == expected[:20]
    half.save(tmp_path / "s")
    loaded, fork = model.session(), half.fork()
    loaded.load(tmp_path / "s")
    for each in (loaded, fork, half):
        assert [int(t) for t in each.tokens(None, max_tokens=20, ignore_eos=True)] == expected[20:]


def test_text_sampling_and_a_constraint(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-m", str(bundle), "-p", "the", "-n", "8", "--temp", "0.9", "--seed", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["text"]) > 0
    pytest.importorskip("llguidance", reason="constraints need llguidance")
    arguments = ["run", "-m", str(bundle), "-p", "the", "--temp", "0", "--regex", "[0-9]{5}", "--no-echo", "--json"]
    assert main(arguments) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert len(text) == 5
    assert text.isdigit()


def test_offline_batch(bundle: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": prompt, "max_tokens": 6}) for prompt in ("the", "on", "an in", "ing")]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert main(["batch", str(tmp_path / "in.jsonl"), "-m", str(bundle), "-o", str(tmp_path / "out.jsonl")]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "draft", "grow", "truncate", "fork", "save", "rollback"]),
        st.integers(0, 40),
        st.integers(0, 1 << 30),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_cache_is_its_text_whatever_happened_before(runtime: Runtime, steps: list[tuple[str, int, int]]) -> None:
    cache, ids, others = runtime.new_cache(320), list[int](), list[tuple[Cache, list[int]]]()
    for what, n, seed in steps:
        rng = np.random.default_rng(seed)
        tokens = rng.integers(0, VOCAB, max(n, 1)).tolist()
        if what == "read" and len(ids) + n < 300:
            logits_of(runtime, Rows.chain(tokens, len(ids)), cache)
            cache.commit(range(len(tokens)))
            ids += tokens
        elif what in ("draft", "grow"):
            rows = Rows.chain(tokens[:8], len(ids))
            forward_one(runtime, Call(rows, cache))
            if what == "grow":
                more = rows.extend([3, 4], [len(rows) - 1, len(rows)])
                found = forward_one(runtime, Call(more, cache, outputs=ALL_LOGITS)).logits
                assert found is not None
                assert np.allclose(found, fresh(runtime, [*ids, *tokens[:8], 3, 4])[-2:], atol=1e-4)
            kept = int(rng.integers(0, len(rows) + 1))
            for row in range(kept):  # in pieces
                cache.commit([row])
            ids += tokens[:kept]
        elif what == "truncate":
            length = min(n, len(ids))
            cache.truncate(length)
            del ids[length:]
        elif what == "fork":
            others.append((cache.fork(), list(ids)))
        elif what == "save":
            arrays, cache = cache.save(), runtime.new_cache(320)
            cache.load(arrays)
        else:
            cache.rollback()
    for each, text in [*others, (cache, ids)]:
        assert each.length == len(text)
        found = logits_of(runtime, Rows.chain([5, 6], len(text)), each)
        assert np.allclose(found, fresh(runtime, [*text, 5, 6])[-2:], atol=1e-3)


def test_rows_may_be_left_out_of_a_commit(runtime: Runtime) -> None:
    """What is kept stays in order, and later rows can still be committed."""
    cache = runtime.new_cache(16)
    forward_one(runtime, Call(Rows.chain([1, 2, 3, 4, 5], 0), cache))
    cache.commit([0, 2])
    cache.commit([4])
    assert cache.length == 3
    found = logits_of(runtime, Rows.chain([9], 3), cache)
    assert np.allclose(
        found, fresh(runtime, [1, 3, 5, 9])[-1:], atol=1e-4
    )  # this graph's slots do not depend on others


def test_calls_beyond_what_it_declares(runtime: Runtime) -> None:
    cache = runtime.new_cache(8)
    with pytest.raises(UsageError, match="no trees"):
        forward_one(runtime, Call(Rows.tree([1, 2, 3], [-1, 0, 0], 0), cache))
    with pytest.raises(UsageError, match="no hidden"):
        forward_one(runtime, Call(Rows.chain([1], 0), cache, outputs=Outputs(hidden=(0,))))
    with pytest.raises(UsageError, match="positions from 3 on"):
        forward_one(runtime, Call(Rows.chain([1], 3), cache))
    with pytest.raises(UsageError, match="declares no drop"):
        cache.drop(0, [0])
    with pytest.raises(ContextFull):
        forward_one(runtime, Call(Rows.chain(range(9), 0), cache))
    with pytest.raises(SessionError):
        cache.load(GraphCache(runtime.spec, 8, "f16").save())


def test_a_graph_of_halves(tmp_path: Path) -> None:
    found = import_graph(write_decoder(tmp_path / "half", kv="f16"), tmp_path / "bundle")
    assert found.bundle.manifest.kv_formats == ("f16",)
    assert len(list(edgedec.open(found.bundle.path).session().tokens([1, 2], max_tokens=5, ignore_eos=True))) == 5


def test_data_beside_the_graph_comes_along(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "apart")
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=256)
    found = import_graph(folder, tmp_path / "bundle")
    assert found.bundle.manifest.artifacts["graph"].files == ("model.onnx", "model.onnx_data")
    assert found.bundle.manifest.weights == "model.onnx_data"
    (folder / "model.onnx_data").unlink()
    with pytest.raises(CheckpointError, match=r"model\.onnx_data: missing"):
        import_graph(folder, tmp_path / "again")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../secret" if entry.key == "location" else entry.value
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointError, match=r"\.\./secret.*not a plain file name"):
        import_graph(folder, tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apart", "bundle"]


def test_one_of_several_graphs(source: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(source, tmp_path / "several")
    (folder / "onnx").mkdir()
    for name in ("a.onnx", "b.onnx"):
        shutil.copyfile(folder / "model.onnx", folder / "onnx" / name)
    (folder / "model.onnx").unlink()
    with pytest.raises(UsageError, match=r"choose one with --file: onnx/a.onnx, onnx/b.onnx"):
        import_graph(folder, tmp_path / "x")
    assert import_graph(folder, tmp_path / "x", ImportOptions(file="onnx/b.onnx")).bundle.manifest.text.tokenizer
    with pytest.raises(UsageError, match=r"--file c\.onnx: not in"):
        import_graph(folder, tmp_path / "y", ImportOptions(file="c.onnx"))


def refused(tmp_path: Path, folder: Path) -> str:
    """The one line that says why a folder is not imported; nothing is left behind."""
    with pytest.raises(EdgedecError) as raised:
        import_graph(folder, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_refused_by_name(source: Path, tmp_path: Path) -> None:
    assert "without past_key_values" in refused(tmp_path, write_decoder(tmp_path / "a", drop="past"))
    assert "no ONNX graph there" in refused(tmp_path, write_llama(tmp_path / "b"))
    assert "no such folder" in refused(tmp_path, tmp_path / "nothing")
    changes: dict[str, Any] = {
        "needs the input 'use_cache_branch'": lambda g: g.input.append(
            onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
        ),
        "no decoder of text": lambda g: setattr(g.output[0], "name", "hidden"),
    }
    for message, change in changes.items():
        folder = shutil.copytree(source, tmp_path / "changed")
        model = onnx.load(folder / "model.onnx")
        change(model.graph)
        if "text" in message:
            model.graph.node[-1].output[0] = "hidden"
        onnx.save(model, folder / "model.onnx")
        assert message in refused(tmp_path, folder)
        shutil.rmtree(folder)
    folder = shutil.copytree(source, tmp_path / "domain")
    model = onnx.load(folder / "model.onnx")
    model.opset_import.append(onnx.helper.make_opsetid("my.company", 1))
    onnx.save(model, folder / "model.onnx")
    assert "operators of 'my.company'" in refused(tmp_path, folder)
    (folder / "encoder_model.onnx").write_bytes(b"")
    assert "encoder-decoder" in refused(tmp_path, folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_graphs_are_one_line(source: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    raw = bytearray((source / "model.onnx").read_bytes())
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copyfile(source / "config.json", folder / "config.json")
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    for _ in range(data.draw(st.integers(0, 8))):
        if raw:
            # Most of the file is weights; what stands around them is at its ends.
            at = data.draw(st.integers(0, min(len(raw), 4096) - 1)) * data.draw(st.sampled_from([1, -1]))
            raw[at] = data.draw(st.integers(0, 255))
    (folder / "model.onnx").write_bytes(raw)
    try:
        found = import_graph(folder, folder / "out", ImportOptions(context=8))
        list(edgedec.open(found.bundle.path).session().tokens([1, 2], max_tokens=2, ignore_eos=True))
    except EdgedecError as error:
        lines = str(error).splitlines()
        assert len(lines) == 1
        assert "partial" not in str(sorted(folder.iterdir()))


@pytest.mark.parametrize("name", [b"input_ids", b"logits", b"past_key_values.0.key"])
def test_names_that_are_not_text(source: Path, tmp_path: Path, name: bytes) -> None:
    """ONNX Runtime opens such a graph and fails when it is asked for the names."""
    folder = shutil.copytree(source, tmp_path / "damaged")
    raw = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(raw.replace(name, b"\x80" + name[1:]))
    with pytest.raises(CheckpointError, match=r"model\.onnx: .*(UTF-8|utf-8)") as caught:
        import_graph(folder, tmp_path / "out", ImportOptions(context=8))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_other_runtimes_and_tools_say_why_not(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for engine in ("native", "ort", "reference"):
        assert main(["run", "-m", str(bundle), "-p", "x", "--engine", engine]) == 1
        assert "opaque" in capsys.readouterr().err
    assert main(["run", "-m", str(bundle), "-p", "x", "--kv", "int8"]) == 1
    assert "its graph keeps f32" in capsys.readouterr().err
    assert main(["run", "-m", str(bundle), "-p", "x", "--spec", "skip"]) == 1
    assert "runs only the whole stack" in capsys.readouterr().err
    assert main(["add", "ort", str(bundle)]) == 1
    assert "one ONNX graph" in capsys.readouterr().err


def test_a_manifest_that_does_not_fit_its_graph(bundle: Path, tmp_path: Path) -> None:
    for change, message in (
        (lambda m: m["spec"]["layers"][0][0].update(head_dim=8), "is not the one of the manifest"),
        (lambda m: m["spec"].update(vocab_size=5), "logits of shape"),
        (lambda m: m["spec"]["layers"].append(m["spec"]["layers"][0] + [{"kind": "mlp", "inner_size": 4}]), "opaque"),
    ):
        folder = shutil.copytree(bundle, tmp_path / "changed")
        manifest = json.loads((folder / "edgedec.json").read_text())
        change(manifest)
        (folder / "edgedec.json").write_text(json.dumps(manifest))
        with pytest.raises(BundleCorrupt, match=message):
            list(edgedec.open(folder).session().tokens([1], max_tokens=2))
        shutil.rmtree(folder)


STUB = """#!{python}
import json, shutil, sys
wanted = ["export", "onnx", "--model"]
assert sys.argv[1:4] == wanted and sys.argv[5:7] == ["--task", "text-generation-with-past"], sys.argv
import os
assert os.environ["HF_HUB_OFFLINE"] == "1" and "--trust-remote-code" not in sys.argv
if "bad" in sys.argv[4]:
    sys.exit("Traceback\\nValueError: Trying to export a bad model\\n")
shutil.copytree({graph!r}, sys.argv[7])
"""


@pytest.fixture
def optimum(source: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that takes optimum-cli's arguments and writes the tests' own graph, which every checkpoint agrees
    with."""
    own = open_runtime("graph", Bundle.open(bundle))

    def agrees(folder: Path, config: Any, ids: Any) -> checkpoint_logits.Expected:
        return checkpoint_logits.Expected(logits_of(own, Rows.chain(ids, 0), own.new_cache(len(ids))), "these tests")

    monkeypatch.setattr(decoder_graph, "checkpoint_logits", agrees)
    program = tmp_path / "optimum-cli"
    program.write_text(STUB.format(python=sys.executable, graph=str(source)))
    program.chmod(0o755)
    monkeypatch.setenv("EDGEDEC_OPTIMUM_CLI", str(program))
    return program


@pytest.mark.skipif(os.name == "nt", reason="a script as a program")
def test_export_via_optimum(optimum: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_llama(tmp_path / "unknown", model_type="xglm")
    out = str(tmp_path / "out")
    assert main(["export", str(folder), "-o", out]) == 1
    proposed = f"edgedec export {folder} --via optimum -o {out}"
    assert f"`{proposed}`" in capsys.readouterr().err
    assert main([*proposed.split()[1:], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["layers"], shown["parity"], shown["parity_with"]) == (2, 0.0, "these tests")
    assert edgedec.open(out).runtime.name == "graph"
    assert main([*proposed.split()[1:], "--force"]) == 0
    assert "logits differ from those of these tests by 0.0e+00 of their spread" in capsys.readouterr().out
    assert main(proposed.split()[1:]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([*proposed.split()[1:], "--force", "--weights", "int8"]) == 2
    assert "--weights: not with --via optimum" in capsys.readouterr().err
    bad = write_llama(tmp_path / "bad")
    assert main(["export", str(bad), "--via", "optimum", "-o", out + "2"]) == 1
    assert "optimum-cli cannot export it: ValueError: Trying to export a bad model" in capsys.readouterr().err
    (bad / "model.safetensors").rename(bad / "pytorch_model.bin")
    assert main(["export", str(bad), "--via", "optimum", "-o", out + "2"]) == 1
    assert "no safetensors there" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad", "optimum-cli", "out", "unknown"]


@pytest.mark.skipif(os.name == "nt", reason="a script as a program")
def test_what_does_not_agree_is_not_written(
    optimum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graph of another model, as a rope that was not understood gives it; by transformers, and by edgedec."""
    monkeypatch.setattr(decoder_graph, "checkpoint_logits", checkpoint_logits.checkpoint_logits)
    folder, out = write_llama(tmp_path / "model"), tmp_path / "out"
    for torch_here in (True, False):
        if torch_here and find_spec("torch") is None:
            continue
        monkeypatch.setattr(checkpoint_logits, "_has_transformers", lambda here=torch_here: here)
        assert main(["export", str(folder), "--via", "optimum", "-o", str(out)]) == 1
        said = capsys.readouterr().err
        by = "transformers 5" if torch_here else "edgedec's float model"
        assert f"computes something else than its checkpoint: logits differ from those of {by}" in said
        assert "`edgedec export` without --via runs this architecture itself" in said
        assert not out.exists()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": {"rope_type": "from next year"}}))
    assert main(["export", str(folder), "--via", "optimum", "-o", str(out)]) == 1
    assert "rope_type 'from next year' is newer than what optimum reads" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "optimum-cli"]


@pytest.mark.skipif(os.name == "nt", reason="a script as a program")
def test_tokenizer_template_and_generation_config_travel(
    optimum: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = write_llama(tmp_path / "model", model_type="xglm"), tmp_path / "out"
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }} own")
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.3, "eos_token_id": 5}')
    command = ["export", str(folder), "--via", "optimum", "-o", str(out), "--force"]
    assert main(command) == 0
    text = Bundle.open(out).manifest.text
    assert (text.chat_template, text.eos) == ("{{ messages[0].content }} own", (5,))
    assert text.sampling == {"temperature": 0.3}
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("a\nb\n")
    assert main(command) == 0, "optimum converted one"
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    (source / "tokenizer.json").rename(tmp_path / "away")
    try:
        assert main(command) == 1
    finally:
        (tmp_path / "away").rename(source / "tokenizer.json")
    assert "has vocab.txt and no tokenizer.json, and optimum made none" in capsys.readouterr().err


def test_a_cache_that_does_not_work_is_refused(source: Path, tmp_path: Path) -> None:
    """Right for a text in one call; token by token all that came before is forgotten."""
    broken = write_decoder(tmp_path / "broken")
    model = onnx.load(str(broken / "model.onnx"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "nothing"))
    concats = [node for node in model.graph.node if node.op_type == "Concat"]
    for i, node in enumerate(concats):
        model.graph.node.insert(0, onnx.helper.make_node("Mul", [node.input[0], "nothing"], [f"lost.{i}"]))
        node.input[0] = f"lost.{i}"
    onnx.save(model, str(broken / "model.onnx"))
    with pytest.raises(CheckpointError, match=r"^model\.onnx: token by token .* its cache does not work"):
        import_graph(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_graph_has_the_short_factors_of_longrope_only(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "long"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_scaling"] = {"rope_type": "longrope", "original_max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    assert import_graph(folder, tmp_path / "out").bundle.spec.context_length == 64
    with pytest.raises(UsageError, match="must be from 1 to 64"):
        import_graph(folder, tmp_path / "more", ImportOptions(context=65))


def test_without_optimum_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EDGEDEC_OPTIMUM_CLI", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    arguments = ["export", str(write_llama(tmp_path / "x")), "--via", "optimum", "-o", str(tmp_path / "y")]
    assert main(arguments) == 1
    assert "pip install optimum-onnx" in capsys.readouterr().err
    monkeypatch.setenv("EDGEDEC_OPTIMUM_CLI", "/nowhere")
    assert main(arguments) == 1
    assert "EDGEDEC_OPTIMUM_CLI=/nowhere: no program there" in capsys.readouterr().err


def test_a_server_answers_with_it(bundle: Path) -> None:
    for package in ("starlette", "uvicorn", "httpx"):
        pytest.importorskip(package, reason=f"needs {package}")
    import httpx
    from serving import serving

    model = edgedec.open(bundle)
    prompts = ["the thing", "on", "singing in the", "other an"]
    with serving(model, context=128) as (place, _), ThreadPoolExecutor() as threads:

        def ask(prompt: str) -> Any:
            body = {"model": model.bundle.manifest.name, "prompt": prompt, "max_tokens": 12, "temperature": 0}
            return httpx.post(f"{place}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]

        found = list(threads.map(ask, prompts))
        embedding = {"model": model.bundle.manifest.name, "input": "the"}
        assert httpx.post(f"{place}/v1/embeddings", json=embedding, timeout=60).status_code >= 400
        assert ask(prompts[0]) == found[0]  # it still runs
    expected = ["".join(model.session().generate(prompt, max_tokens=12)) for prompt in prompts]
    assert found == expected
