"""Bundles of published diffusion models decode without any flag, and never say the mask."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, write_tokenizer
from diffusion.families import FAMILIES, wider, write
from diffusion.texts import decode
from typer.testing import CliRunner

import edgedec
from edgedec.cli._app import app
from edgedec.errors import UsageError
from edgedec.runtime import Call, Outputs, Rows, logits_of

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

MASK = VOCAB + 2
WIDE = VOCAB + 4
DEFAULTS = {
    "full": "schedule=threshold,blocks=fixed,keep=none,ends=first,verify=none,fits=front",
    "block": "schedule=threshold,blocks=fixed,keep=block,ends=first,verify=none,fits=front",
    "causal": "schedule=entropy,blocks=sliding,keep=reorder,ends=first,verify=none,fits=front",
}


def exported(folder: Path, name: str, loud: bool = True) -> Path:
    """A bundle whose head gives the mask, if it is loud, more than any other token in about half of the rows."""
    tensors = wider(name, WIDE)
    head = next(
        n for n in ("lm_head.weight", "model.transformer.ff_out.weight", "model.embed_tokens.weight") if n in tensors
    )
    tensors[head][MASK] *= 20 if loud else 1
    size = {"embedding_size": WIDE} if FAMILIES[name].config.get("embedding_size") else {}
    ends = {"bos_token_id": VOCAB - 4, "eos_token_id": VOCAB - 3}
    write(folder / "c", name, tensors, vocab_size=WIDE, mask_token_id=MASK, **size, **ends)
    write_tokenizer(folder / "c")
    export(str(folder / "c"), folder / name, ExportOptions(weights="f32", check=False, runtimes=()))
    return folder / name


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def model(bundle: Path) -> edgedec.Model:
    return edgedec.open(bundle, threads=1)


def tokens(session: edgedec.Session, text: str, **options: Any) -> list[int]:
    ids = session.model.tokenizer.encode(text)
    return list(map(int, session.tokens(ids, ignore_eos=True, **{"temperature": 0.0, "max_tokens": 24, **options})))


def test_run_and_chat_need_no_flags(bundle: Path) -> None:
    context = FAMILIES[bundle.name].facts.context
    done = CliRunner().invoke(app, ["run", "-m", str(bundle), "-p", "the thing", "-n", "10", "--temp", "0", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["stats"]["diffusion"]["methods"] == DEFAULTS[context]
    assert said["stats"]["diffusion"]["passes"] > 0
    assert MASK not in said["tokens"]
    done = CliRunner().invoke(app, ["chat", "-m", str(bundle), "-n", "10", "--temp", "0"], input="the\n")
    assert done.exit_code == 0, done.output


def test_the_mask_is_never_said(model: edgedec.Model) -> None:
    """Though it is the likeliest token of many rows, drawn or not."""
    ids = model.tokenizer.encode("the thing")
    runtime = model.runtime
    rows = logits_of(runtime, Rows.chain([*ids, *[MASK] * 8], 0), runtime.new_cache(64))
    assert (rows.argmax(axis=1) == MASK).any(), "the mask is nowhere the likeliest"
    for options in ({}, {"temperature": 1.5, "seed": 1}, {"temperature": 0.7, "top_k": 2, "seed": 2}, {"logprobs": 3}):
        found = tokens(model.session(), "the thing", **options)
        assert len(found) == 24
        assert MASK not in found


def test_a_cache_gives_the_text_without_one(model: edgedec.Model) -> None:
    facts = FAMILIES[model.bundle.manifest.name].facts
    if facts.context != "block":
        return
    for text in ("the thing", "in on the an then they thing " * 4):
        kept = tokens(model.session(), text, max_tokens=2 * facts.block + 3)
        assert kept == tokens(model.session(diffusion="keep=none"), text, max_tokens=2 * facts.block + 3)


def test_blocks_that_no_model_was_trained_for_are_refused(model: edgedec.Model) -> None:
    facts = FAMILIES[model.bundle.manifest.name].facts
    if facts.context == "full":
        return
    more = "" if facts.context == "block" else ",schedule=threshold,keep=block"
    with pytest.raises(UsageError, match=f"trained for blocks of .*{facts.block}"):
        model.session(diffusion=f"blocks=fixed:size={2 * facts.block}{more}")


def test_off_is_for_models_that_were_trained_so(model: edgedec.Model) -> None:
    with pytest.raises(UsageError, match="trained to fill blocks only"):
        model.session(diffusion="off")


def test_reordering_may_be_left_out(tmp_path: Path) -> None:
    """A causal model that is asked for the block cache has that cache's defaults."""
    opened = edgedec.open(exported(tmp_path, "wedlm"), threads=1)
    session = opened.session(diffusion="keep=block")
    tokens(session, "the thing")
    assert str(session.diffusion_report()["methods"]).startswith("schedule=threshold,blocks=fixed,keep=block")
    one = opened.session(diffusion="schedule=static")
    tokens(one, "the thing")
    assert str(one.diffusion_report()["methods"]).startswith("schedule=static,blocks=sliding,keep=reorder")


@pytest.mark.parametrize("chunk", [5, 7, 8, 20])
def test_a_prompt_is_read_in_whole_blocks(tmp_path: Path, chunk: int) -> None:
    """However long a chunk of the engine is: a block that is read in two calls does not see itself whole."""
    opened = edgedec.open(exported(tmp_path, "fast_dllm", loud=False), threads=1)
    ids = [5 + i % 200 for i in range(45)]
    expected = list(map(int, opened.session().tokens(ids, temperature=0.0, max_tokens=20, ignore_eos=True)))
    runtime = opened.runtime
    can = replace(runtime.capabilities, prefill_chunk=chunk)
    calls: list[Call] = []

    class Small:
        """The runtime, of which calls are noted."""

        capabilities = can

        def __getattr__(self, name: str) -> Any:
            return getattr(runtime, name)

        def forward(self, batch: list[Call]) -> Any:
            calls.extend(batch)
            return runtime.forward(batch)

    facts = opened.bundle.manifest.diffusion
    assert facts is not None
    found, _, _ = decode(Small(), facts, ids, capacity=256, max_tokens=20)
    assert list(map(int, found)) == expected
    reads = [call for call in calls if call.outputs == Outputs()]
    assert reads, "the prompt was read at once"
    assert {int(call.rows.positions[-1] + 1) % 8 for call in reads} == {0}
    assert {int(call.rows.positions[0]) % 8 for call in calls} == {0}


def test_rows_of_the_expert_groups_are_used(tmp_path: Path) -> None:
    """LLaDA2's router takes experts of the best groups, and other groups would give other logits."""
    opened = edgedec.open(exported(tmp_path, "llada2_moe", loud=False), threads=1, engine="reference")
    block = opened.bundle.spec.blocks[3]
    assert (block.groups, block.top_groups) == (4, 2)
    runtime = opened.runtime
    ids = Rows.chain(list(range(5, 40)), 0)
    grouped = logits_of(runtime, ids, runtime.new_cache(64))
    plain = replace(runtime.spec, layers=tuple(tuple(_ungrouped(b) for b in layer) for layer in runtime.spec.layers))
    other = type(runtime)(plain, opened.bundle.rows)
    assert np.abs(logits_of(other, ids, other.new_cache(64)) - grouped).max() > 0.1


def _ungrouped(block: Any) -> Any:
    return replace(block, groups=1, top_groups=1) if block.kind == "moe" else block
