"""Decoders that optimum-onnx exported: here they give the tokens of its own ORTModelForCausalLM and of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, write_tokenizer
from decoder_graphs import optimum_models, optimum_python

import edgedec
from edgedec.bundle import Bundle
from edgedec.decoding.scheduler.batch import Batch
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.testing.conformance import run_suite

pytest.importorskip("onnx", reason="importing graphs needs onnx")
pytestmark = pytest.mark.skipif(
    optimum_python() is None,
    reason="needs optimum-onnx in an environment of its own: EDGEDEC_OPTIMUM_CLI, or `make .venv-optimum`",
)

ENDS = {"bos_token_id": VOCAB - 4, "eos_token_id": VOCAB - 3, "pad_token_id": 0, "vocab_size": VOCAB}
LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    **ENDS,
}
PLAIN = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
HEADS = {**LLAMA, "num_key_value_heads": 4}
MODELS: dict[str, Any] = {
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, **ENDS}),
    "gpt_neox": ("GPTNeoXConfig", PLAIN),
    "bloom": ("BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, **ENDS}),
    "llama": ("LlamaConfig", LLAMA),
    "qwen2": ("Qwen2Config", LLAMA),
    "opt": ("OPTConfig", {**PLAIN, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    "phi": ("PhiConfig", PLAIN),
    # optimum's own model gives graphs of some of these caches of all heads: they are without groups.
    # Mixtral it does not export.
    "phi3": ("Phi3Config", HEADS),
    "qwen3": ("Qwen3Config", {**HEADS, "head_dim": 16}),
    "gemma3": ("Gemma3TextConfig", {**HEADS, "head_dim": 16, "sliding_window": 256}),
}
TOKENS = 64
PROMPTS = [[7], list(range(20, 31)), np.random.default_rng(1).integers(0, VOCAB, 150).tolist()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    from edgedec.export.decoder_graph import ImportOptions, import_graph

    folder = tmp_path_factory.mktemp("optimum")
    expected = optimum_models(folder, MODELS, PROMPTS, TOKENS)
    for kind in MODELS:
        write_tokenizer(folder / f"{kind}-onnx")
        found = import_graph(folder / f"{kind}-onnx", folder / f"{kind}-bundle", ImportOptions(threads=1))
        assert found.off < 1e-4
    return folder, expected


def opened(made: tuple[Path, dict[str, Any]], kind: str) -> edgedec.Model:
    return edgedec.open(made[0] / f"{kind}-bundle", threads=1)


def greedy(model: edgedec.Model, ids: list[int], speculate: str) -> list[int]:
    session = model.session(speculate=speculate)
    return [int(token) for token in session.tokens(ids, max_tokens=TOKENS, ignore_eos=True)]


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_tokens_are_those_of_optimum_and_of_transformers(made: Any, kind: str) -> None:
    model, expected = opened(made, kind), made[1][kind]
    assert model.runtime.name == "graph"
    assert len({tuple(tokens) for tokens in expected["torch"]}) == len(PROMPTS)  # the prompt is read at all
    for i, prompt in enumerate(PROMPTS):
        assert greedy(model, prompt, "off") == expected["ort"][i] == expected["torch"][i]


def test_drafts_are_chains_and_change_nothing(made: Any) -> None:
    accepted = 0
    for kind in ("gpt2", "llama", "bloom"):
        model = opened(made, kind)
        for i, prompt in enumerate(PROMPTS):
            session = model.session(speculate="copy+recycling:fixed=4")
            tokens = list(session.tokens(prompt, max_tokens=TOKENS, ignore_eos=True))
            assert [int(token) for token in tokens] == made[1][kind]["torch"][i]
            assert session.stats.proposed > 0
            accepted += session.stats.accepted
    assert accepted > 100


def test_a_batch_gives_each_text_its_own_tokens(made: Any) -> None:
    model = opened(made, "gpt2")
    batch, found = Batch(model.runtime), [list[int]() for _ in PROMPTS]
    for prompt, tokens in zip(PROMPTS, found, strict=True):

        def take(token: Any, tokens: list[int] = tokens) -> None:
            if token is not None:
                tokens.append(int(token))

        model.session(speculate="off").submit(batch, prompt, take, max_tokens=TOKENS, ignore_eos=True)
    while batch.step():
        pass
    assert found == made[1]["gpt2"]["torch"]


def test_scores_are_those_of_transformers(made: Any) -> None:
    for kind in MODELS:
        model, prompt = opened(made, kind), PROMPTS[-1]
        logits = np.array(made[1][kind]["logits"])
        logprobs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
        session = model.session()
        session.append(prompt[:1])
        expected = logprobs[np.arange(len(prompt) - 1), prompt[1:]]
        assert np.abs(np.array(session.score(prompt[1:])) - expected).max() < 2e-3


def test_the_runtime_conforms(made: Any) -> None:
    """Beside our own export of the same checkpoint on the reference."""
    from edgedec.export.exporter import ExportOptions, export

    folder = made[0]
    own = export(str(folder / "llama"), folder / "own", ExportOptions(weights="f32", check=False, runtimes=()))

    def graph(bundle: Bundle, options: RuntimeOptions) -> Any:
        return open_runtime("graph", bundle, options)

    report = run_suite("graph", graph, Bundle.open(folder / "llama-bundle"), expected=own)
    assert [f"{f.check}: {f.message}" for f in report.failed] == []
    states = {finding.check: finding.state for finding in report.findings}
    assert states["parity: a text in one call"] == states["save and load"] == "passed"
    assert states["trees: a row is the end of its chain"] == states["slices: blocks left out"] == "not declared"


def test_export_via_optimum_itself(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real program, on an architecture that has no file here."""
    from edgedec.cli import main

    python = optimum_python()
    assert python is not None
    monkeypatch.setenv("EDGEDEC_OPTIMUM_CLI", str(python.parent / "optimum-cli"))
    assert main(["export", str(made[0] / "gpt_neox"), "--via", "optimum", "-o", str(tmp_path / "b"), "-c", "200"]) == 0
    model = edgedec.open(tmp_path / "b", threads=1)
    assert model.spec.context_length == 200
    assert greedy(model, PROMPTS[1], "off") == made[1]["gpt_neox"]["torch"][1]
