"""Text encoders against transformers: every engine, formats, facts of configs, a text alone as among others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import encoders_golden
import numpy as np
import pytest
from encoders_golden import MODELS, OWN, TOKENS, TYPES, golden
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.encoding.entry import EntryTables
from edgedec.encoding.results import Results
from edgedec.encoding.runner import TextRunner
from edgedec.encoding.texts import EncodedText
from edgedec.errors import BadTensor, CheckpointError, EdgedecError, RuntimeUnavailable, UsageError
from edgedec.export.checkpoint import open_checkpoint
from edgedec.export.exporter import ExportOptions, export
from edgedec.runtime import Call, Outputs, Rows, open_runtime

TEXT = EncodedText(TOKENS, TYPES)
NAMES = sorted(name for name in (*MODELS, *OWN) if not name.endswith("-terms"))
NOTHING = Outputs()
# Keys that change no arithmetic of a text: what says how to read the rest, training, and what other heads need.
SILENT = {
    *(
        "architectures",
        "model_type",
        "tie_word_embeddings",
        "transformers_version",
        "dtype",
        "use_cache",
        "pad_token_id",
    ),
    *(
        "max_window_layers",
        "use_sliding_window",  # without a window's length
        "bos_token_id",
        "eos_token_id",
        "cls_token_id",
        "sep_token_id",
        "mask_token_id",
        "initializer_range",
    ),
    *("initializer_cutoff_factor", "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index"),
    *("decoder_bias", "label2id", "id2label", "is_decoder", "add_cross_attention", "position_embedding_type"),
    *("_sliding_window_pattern", "pretraining_tp", "sinusoidal_pos_embds", "problem_type", "output_past"),
    *("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj", "chunk_size_feed_forward"),
    "legacy",  # of DeBERTa's head over the vocabulary
    *("emb_pooler", "router_aux_loss_coef", "model_max_length"),
}


# One of each arithmetic.
FEW = [
    *("bert", "mpnet", "modernbert", "electra", "embedding-gemma", "deberta"),
    *("jina2", "jina2-code", "neobert", "nomic-moe"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Bundles by model and weight format, each exported once."""
    folder, known = tmp_path_factory.mktemp("encoders"), dict[tuple[str, str], Bundle]()

    def bundle(name: str, weights: str = "f32") -> Bundle:
        if (name, weights) not in known:
            of = golden(name)
            checkpoint = folder / f"{name}-checkpoint"
            if not checkpoint.exists():
                encoders_golden.write(checkpoint, of.config, of.tensors)
            options = ExportOptions(weights=weights)
            known[name, weights] = export(str(checkpoint), folder / f"{name}-{weights}", options)
        return known[name, weights]

    return bundle


def states(bundle: Bundle, engine: str, texts: list[EncodedText]) -> list[NDArray[np.float32]]:
    """What a bundle makes of texts: states after the last norm, or logits."""
    runtime, output = open_runtime(engine, bundle), bundle.spec.output
    assert output is not None
    results = Results(bundle, output)
    how = results.of if output.kind == "score" else results._normed
    return [how(hidden) for hidden in TextRunner(bundle, runtime).hidden(texts)]


@pytest.mark.parametrize("engine", ["reference", "native", "ort"])
@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_computes_what_transformers_does(made: Any, name: str, engine: str) -> None:
    bundle = made(name)
    if engine == "ort" and any(block.distances or block.relative for block in bundle.spec.attention.values()):
        with pytest.raises(RuntimeUnavailable, match="no files for it"):
            open_runtime(engine, bundle)
        return
    found = states(bundle, engine, [TEXT])[0]
    np.testing.assert_allclose(found, golden(name).found, atol=1e-4)
    assert np.abs(golden(name).found).mean() > 0.1


@pytest.mark.parametrize("weights", ["f16", "int8", "int4"])
@pytest.mark.parametrize("name", FEW)
def test_fewer_bits_stay_near(made: Any, name: str, weights: str) -> None:
    bundle, expected = made(name, weights), golden(name).found.mean(axis=0)
    for engine in ("reference", "native"):
        found = states(bundle, engine, [TEXT])[0].mean(axis=0)
        cosine = float(found @ expected / np.linalg.norm(found) / np.linalg.norm(expected))
        least = {"f16": 0.99999, "int8": 0.995, "int4": 0.9}[weights]
        assert least < cosine < (1 - 1e-9 if weights != "f16" else 2), (engine, cosine)


@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, "native") for name in (*FEW, "qwen3-score", "deberta-plain", "deberta-conv")]
    + [(name, "reference") for name in ("bert", "deberta", "jina2")],
)
def test_a_text_has_the_same_bytes_alone_and_among_others(made: Any, name: str, engine: str) -> None:
    bundle = made(name, "int8")
    rng = np.random.default_rng(3)
    lengths = [1, 42, 2, 17, 40, 1, 3, 33]
    texts = [EncodedText(rng.integers(0, 101, n).tolist(), rng.integers(0, 2, n).tolist()) for n in lengths]
    together = states(bundle, engine, texts)
    for text, found in zip(texts, together, strict=True):
        assert states(bundle, engine, [text])[0].tobytes() == found.tobytes()
    assert states(bundle, engine, texts[::-1])[0].tobytes() == together[-1].tobytes()


@pytest.mark.parametrize("weights", ["f32", "int8"])
@pytest.mark.parametrize("name", ["bert", "xlm-roberta-score", "mpnet", "nomic", "electra", "deberta-conv"])
def test_what_enters_is_computed_by_the_engine(
    made: Any, name: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = made(name, weights)
    entry, asked, rows = bundle.spec.entry, list[list[int]](), EntryTables.rows
    assert entry is not None
    assert entry.by_token == (name not in ("electra", "deberta-conv"))

    def noted(self: EntryTables, ids: list[int], types: list[int]) -> Any:
        asked.append(types)
        return rows(self, ids, types)

    monkeypatch.setattr(EntryTables, "rows", noted)
    texts = [EncodedText([5, 7, 100, 0, 7], types) for types in ([0] * 5, [0, 0, 0, 1, 0])]
    runner = TextRunner(bundle, open_runtime("native", bundle))
    found = list(runner.hidden(texts))
    by_host = [] if entry.by_token else [text.types for text in texts]
    assert asked == by_host
    runner._enters = False
    expected = list(runner.hidden(texts))
    assert len(asked) == len(by_host) + 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 if weights == "f32" else 2e-2)
    if entry.types > 1:
        assert np.abs(found[0] - found[1]).max() > 0.05


def test_a_type_that_the_model_does_not_have_is_refused(made: Any) -> None:
    entry = made("bert").spec.entry
    runner = TextRunner(made("bert"), open_runtime("native", made("bert")))
    for kind in (-1, entry.types):
        with pytest.raises(UsageError, match="a type of token that the model does not have"):
            list(runner.hidden([EncodedText([5, 7], [0, kind])]))
    assert len(list(runner.hidden([EncodedText([5, 7], [0, entry.types - 1])]))) == 1


def test_types_of_tokens_are_refused_where_the_host_computes_what_enters(made: Any) -> None:
    runtime = open_runtime("reference", made("bert"))
    rows = Rows.text(np.array([5, 7]), types=np.array([0, 1]))
    with pytest.raises(UsageError, match="declares no types of tokens"):
        runtime.forward([Call(rows, runtime.new_cache(2))])


def test_instruction_sets_give_the_same_bytes(made: Any) -> None:
    from edgedec.kernels import cpu
    from edgedec.runtimes.native import NativeRuntime

    for name in ("mpnet", "modernbert", "deberta", "jina2-code", "nomic-moe"):
        bundle = made(name, "int8")
        isas = [isa for isa, runs in cpu.loader.isas().items() if runs]
        found = {}
        for isa in isas:
            runtime = NativeRuntime(bundle, "f32", 2, isa)
            found[isa] = next(TextRunner(bundle, runtime).hidden([TEXT])).tobytes()
        assert len(isas) > 1
        assert len(set(found.values())) == 1, name


@pytest.mark.parametrize("name", NAMES)
def test_every_fact_of_a_config_counts(tmp_path: Path, name: str) -> None:
    of = golden(name)
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config, of.tensors)
    whole = _facts(folder, of.config)
    tried = []
    for key in sorted(set(of.config) - SILENT):
        of_scores = key.startswith(("classifier_", "pooler_")) and not name.endswith("-score")
        if "dropout" in key or of.config[key] is None or of_scores:
            continue
        tried.append(key)
        without = {other: value for other, value in of.config.items() if other != key}
        # Where its value is the usual one, another is given instead.
        counts = _facts(folder, without) != whole or _facts(folder, without | {key: _other(of.config[key])}) != whole
        assert counts, f"{key} {of.config[key]!r} is not read"
    assert len(tried) > 4


@pytest.mark.parametrize(("name", "gated"), [("jina2-plain", False), ("jina2-code", True)])
def test_the_feed_forward_that_jina_s_configs_leave_out(tmp_path: Path, name: str, gated: bool) -> None:
    """Each of the two implementations has its own usual one."""
    of = golden(name)
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config, of.tensors)
    without = {key: value for key, value in of.config.items() if key != "feed_forward_type"}
    assert _facts(folder, without) == _facts(folder, of.config)
    assert _facts(folder, of.config)[0].layers[0][1].gated is gated


def _other(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return {"mean": "cls", "silu": "relu"}.get(value, "silu")
        case list():
            return value[:-1]
        case _:
            return {key: _other(item) for key, item in value.items()}


def _facts(folder: Path, config: dict[str, Any]) -> Any:
    """Everything that follows from a config, but for the texts' own numbers."""
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(folder)
    try:
        spec = checkpoint.spec()
        return spec, checkpoint.weights(spec)
    except (CheckpointError, BadTensor) as error:
        return str(error)


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "vocabulary"])
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, change: str) -> None:
    of, bad = golden("bert"), "encoder.layer.1.output.LayerNorm.bias"
    tensors = {name: list(shape) for name, shape in of.tensors.items()}
    match change:
        case "missing":
            del tensors[bad]
        case "extra":
            tensors["encoder.layer.7.output.LayerNorm.bias"] = [48]
        case "shape":
            tensors[bad] = [47]
        case _:
            tensors["embeddings.word_embeddings.weight"] = [100, 48]
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config, tensors)
    with pytest.raises(BadTensor) as error:
        export(str(folder), tmp_path / "bundle")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"num_attention_heads": 5}, "5 do not share 48 values evenly"),
        ({"is_decoder": True}, "is_decoder is set"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be absolute"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"max_position_embeddings": 45}, "has 44 rows, not 0 to 45"),
        ({"rotary": True}, "rotary is not known"),
    ],
)
def test_configs_that_do_not_fit_are_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    of = golden("bert")
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config | config, of.tensors)
    with pytest.raises(EdgedecError, match=says):
        export(str(folder), tmp_path / "bundle")


def test_an_encoder_keeps_no_cache(made: Any, tmp_path: Path) -> None:
    of = golden("bert")
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config, of.tensors)
    with pytest.raises(UsageError, match="--kv int8: bert encodes texts, it keeps no cache"):
        export(str(folder), tmp_path / "bundle", ExportOptions(kv=("int8",)))


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_calls_that_no_encoder_can_run_are_refused(made: Any, engine: str) -> None:
    bundle = made("bert")
    runtime = open_runtime(engine, bundle)
    x = np.zeros((3, 48), np.float32)

    def refused(rows: Rows, says: str, outputs: Outputs = NOTHING) -> None:
        with pytest.raises(UsageError, match=says):
            runtime.forward([Call(rows, runtime.new_cache(9), outputs=outputs)])

    refused(Rows.chain([1, 2, 3], 0), "one whole text" if engine == "native" else "rows are given by embeddings")
    if engine != "native":
        refused(Rows.text(np.array([1, 2, 3])), "rows are given by embeddings")
    refused(Rows.embedded(x, 0), "one whole text, in one group")
    refused(Rows.text(None, x), "has no head", Outputs(logits=True))
    refused(Rows.text(None, x), "attention sums", Outputs(attention=True))
    cache = runtime.new_cache(9)
    call = Call(Rows.text(None, x), cache, outputs=Outputs(hidden=(5,)))
    assert runtime.forward([call])[0].hidden[5].shape == (3, 48)
    cache.commit(range(3))
    with pytest.raises(UsageError, match="an empty cache"):
        runtime.forward([call])


@pytest.mark.parametrize("name", ["bert", "deberta"])
@pytest.mark.parametrize("engine", ["tvm", "graph", "opencl", "cuda"])
def test_other_engines_refuse_encoders_by_name(made: Any, engine: str, name: str) -> None:
    with pytest.raises(RuntimeUnavailable) as error:
        open_runtime(engine, made(name))
    assert "\n" not in str(error.value)


def test_the_table_of_encoders_is_that_of_the_files() -> None:
    import runpy
    from pathlib import Path

    page = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "site" / "encoders.py"))
    assert page["main"](["--check"]) == 0
    assert page["table"]().count("\n") > 13


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_decoder_with_modules_embeds_by_its_last_token(tmp_path: Path, prefix: str) -> None:
    import zoo_golden

    of = zoo_golden.golden("qwen3")
    folder = zoo_golden.write(tmp_path / "checkpoint", of.config, of.tensors)
    _without_prefix(folder / "model.safetensors", prefix)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules_of = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(modules_of))
    bundle = export(str(folder), tmp_path / "bundle", ExportOptions(weights="f32", runtimes=()))
    assert bundle.spec.causal
    output = bundle.spec.output
    assert output is not None
    head = bundle.rows("embed")
    if not of.config["tie_word_embeddings"]:
        head = open_checkpoint(folder).tensors["lm_head.weight"].values("lm_head.weight", 0, head.shape)
    for engine in ("reference", "native"):
        texts = [EncodedText(zoo_golden.TOKENS, []), EncodedText(zoo_golden.TOKENS[:9], [])]
        hidden = TextRunner(bundle, open_runtime(engine, bundle)).hidden(texts)
        found = [head @ Results(bundle, output).of(rows) for rows in hidden]
        np.testing.assert_allclose(found[0], of.logits[-1], atol=1e-3)
        np.testing.assert_allclose(found[1], of.logits[8], atol=1e-3)


def _without_prefix(file: Path, prefix: str) -> None:
    """Names as a model without a head is saved."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(file)
    save_file(
        {prefix + name.removeprefix("model.") if name != "lm_head.weight" else name: t for name, t in tensors.items()},
        file,
    )


@pytest.mark.parametrize("name", ["bert-terms", "distilbert-terms"])
def test_terms_are_the_largest_weights_of_the_rows(tmp_path: Path, name: str) -> None:
    of = golden(name)
    folder = encoders_golden.write(tmp_path / "checkpoint", of.config, of.tensors)
    modules = [{"type": "sentence_transformers.sparse_encoder.models.MLMTransformer", "path": ""}]
    modules.append({"type": "sentence_transformers.sparse_encoder.models.SpladePooling", "path": "1_SpladePooling"})
    (folder / "modules.json").write_text(json.dumps(modules))
    bundle = export(str(folder), tmp_path / "bundle", ExportOptions(weights="f32", runtimes=()))
    expected = np.log1p(np.maximum(of.found, 0)).max(axis=0)
    assert expected.shape == (101,)
    assert 5 < (expected > 0).sum() <= 101
    output = bundle.spec.output
    assert output is not None
    for engine in ("reference", "native"):
        hidden = next(TextRunner(bundle, open_runtime(engine, bundle)).hidden([TEXT]))
        np.testing.assert_allclose(Results(bundle, output).of(hidden), expected, atol=1e-4)
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps({"pooling_strategy": "sum"}))
    with pytest.raises(CheckpointError, match="pooling_strategy must be 'max', found 'sum'"):
        open_checkpoint(folder)


@pytest.mark.parametrize("rows", [8, 9, 1024])
def test_a_decoder_s_texts_go_in_chunks_of_any_size(made: Any, rows: int) -> None:
    bundle = made("qwen3-score", "int8")
    texts = [EncodedText(list(range(3, 3 + n)), []) for n in (4, 16, 5, 32, 1)]
    runner = TextRunner(bundle, open_runtime("native", bundle))
    whole = [hidden.tobytes() for hidden in runner.hidden(texts)]
    runner._rows = rows
    assert [hidden.tobytes() for hidden in runner.hidden(texts)] == whole
