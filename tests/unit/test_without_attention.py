"""Models without attention, whose texts keep a state and no slots: exported, drafted, forked, saved, shared, served.

That of Mamba runs on the CPU engine (or the reference), that of Mamba-2 on ONNX Runtime too.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import zoo_golden
from checkpoints import VOCAB, write_tokenizer
from serving import serving

import edgedec
from edgedec import Sampling
from edgedec.cache.memory import cache_bytes, tokens_that_fit
from edgedec.cli import main
from edgedec.kernels.cpu.loader import why_not

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

ENGINES = ("reference", *([] if why_not() else ["native"]))
PROMPT = [1, 7, 3, 99, 42, 7, 3, 99, 42, 7]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("mamba_tied", "mamba2"):
        of = zoo_golden.golden(name)
        sizes = {"vocab_size": VOCAB, "bos_token_id": VOCAB - 4, "eos_token_id": VOCAB - 3}
        wide = {k: [VOCAB, *v[1:]] if "embed" in k or "lm_head" in k else v for k, v in of.tensors.items()}
        write_tokenizer(zoo_golden.write(folder / name, of.config | sizes, wide))
    return folder


@pytest.fixture(scope="module", params=["mamba_tied-int4", "mamba_tied-int8", "mamba2-int4"])
def bundle(request: pytest.FixtureRequest, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, weights = request.param.split("-")
    folder = tmp_path_factory.mktemp("bundles") / request.param
    export(str(checkpoints / name), folder, ExportOptions(weights=weights, check=False))
    return folder


@pytest.fixture(params=ENGINES)
def model(request: pytest.FixtureRequest, bundle: Path) -> edgedec.Model:
    return edgedec.open(bundle, engine=request.param, threads=1)


def text(model: edgedec.Model, prompt: list[int], n: int = 24, spec: str = "off", seed: int | None = None) -> list[int]:
    sampling = Sampling(temperature=0.8, seed=seed) if seed is not None else Sampling()
    session = model.session(speculate=spec)
    found = list(session.tokens(prompt, max_tokens=n, ignore_eos=True, sampling=sampling))
    assert (session.stats.proposed > 0) == (spec != "off")
    return found


@pytest.mark.parametrize("seed", [None, 3])
def test_drafts_do_not_change_the_text(model: edgedec.Model, seed: int | None) -> None:
    """Trees of drafts too: most of these guesses are wrong, so states go back to where a path was left."""
    assert not model.spec.attention
    expected = text(model, PROMPT, seed=seed)
    assert text(model, PROMPT, spec="copy+recycling:fixed=5", seed=seed) == expected
    assert text(model, PROMPT, spec="copy:fixed=4", seed=seed) == expected


def test_forks_and_saved_sessions_go_on_alike(model: edgedec.Model, tmp_path: Path) -> None:
    session = model.session(speculate="off")
    list(session.tokens(PROMPT, max_tokens=9, ignore_eos=True))
    session.save(tmp_path / "text")
    fork, loaded = session.fork(), model.session(speculate="off")
    loaded.load(tmp_path / "text")
    found = [list(each.tokens([5, 6], max_tokens=9, ignore_eos=True)) for each in (session, fork, loaded)]
    assert found[0] == found[1] == found[2]
    other = model.session(speculate="off")
    other.append([5])
    fork.append([5])
    assert np.abs(other.next_probs() - fork.next_probs()).max() > 1e-4, "the text before is in the state"


def test_a_second_text_goes_on_from_a_common_beginning(model: edgedec.Model) -> None:
    """A state is kept where a call ended, so that is where the second text can go on."""
    common = np.random.default_rng(0).integers(3, 200, 300).tolist()
    sharing = edgedec.Model(model.bundle, model.runtime, 1024)
    alone = edgedec.Model(model.bundle, model.runtime, 0)
    for end in ([5], [6, 7]):
        assert text(sharing, [*common, *end], 8) == text(alone, [*common, *end], 8)


def test_memory_is_the_states_alone(model: edgedec.Model) -> None:
    spec = model.spec
    assert cache_bytes(spec, "f32", 0) == cache_bytes(spec, "f32", 10_000) > 4 * 4 * 48 * 12
    assert tokens_that_fit(spec, "f32", 64) is None  # any number
    session = model.session(speculate="off")
    list(session.tokens(PROMPT, max_tokens=4, ignore_eos=True))
    assert session._context.cache.length == len(PROMPT) + 3


def test_it_is_served_and_run_in_batches(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts = ["the thing", "the thing on", "on an"]
    given.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    assert main(["batch", str(given), "-m", str(bundle), "-o", str(out), "-n", "8", "-t", "1"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    model = edgedec.open(bundle, threads=1)
    expected = [model.session(speculate="off").generate(p, max_tokens=8) for p in prompts]
    assert [row["text"] for row in rows] == ["".join(pieces) for pieces in expected]
    with serving(model) as (place, _):
        body = json.dumps(
            {"model": model.bundle.manifest.name, "prompt": prompts[0], "max_tokens": 8, "temperature": 0}
        ).encode()
        request = urllib.request.Request(f"{place}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["text"] == rows[0]["text"]
    capsys.readouterr()
    assert main(["inspect", str(bundle), "--json"]) == 0
    for cost in json.loads(capsys.readouterr().out)["kv"].values():
        assert cost["bytes_per_token"] == 0
        assert cost["bytes_full"] == cache_bytes(model.spec, "f32", 1)


def test_the_format_is_the_oldest_that_has_the_kind(bundle: Path) -> None:
    manifest = json.loads((bundle / "edgedec.json").read_text())
    assert manifest["version"] == (9 if bundle.name.startswith("mamba_tied") else 4)


def test_an_engine_without_the_kind_says_so(bundle: Path) -> None:
    if "s6" not in edgedec.open(bundle, engine="reference").spec.kinds:
        assert edgedec.open(bundle, engine="ort", threads=1).spec.kinds == ("ssm",)
        return
    with pytest.raises(edgedec.EdgedecError, match="no s6 blocks") as caught:
        edgedec.open(bundle, engine="ort")
    assert "\n" not in str(caught.value)
