"""Published diffusion models: their configs and tensors as the authors write them, to the logits of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from diffusion.families import FAMILIES, GOLDEN, IDLE, MASK, State, drawn, states, write
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import Context, DiffusionHost
from edgedec.diffusion.words import parse_diffusion
from edgedec.errors import BadTensor, CheckpointError, EdgedecError, UsageError
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.diffusion import diffusion_facts
from edgedec.runtime import ALL_LOGITS, Call, Runtime, open_runtime
from edgedec.runtimes.reference import Reference
from edgedec.spec import ModelSpec

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Read:
    """A checkpoint that was read."""

    checkpoint: Checkpoint
    spec: ModelSpec
    facts: DiffusionFacts

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Read:
        spec = checkpoint.spec()
        facts = checkpoint.diffusion(spec)
        assert facts is not None
        return cls(checkpoint, spec, facts)

    def runtime(self) -> Reference:
        weights = self.checkpoint.weights(self.spec)
        read: dict[str, Floats] = {}

        def get(name: str, start: int, stop: int) -> Floats:
            if name not in read:
                read[name] = self.checkpoint.read(weights[name], 0, self.checkpoint.shape(weights[name])[0])
            return read[name][start:stop]

        return Reference(self.spec, get)


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp(name) / "checkpoint", name)


def golden(name: str) -> list[Floats]:
    with np.load(GOLDEN) as arrays:
        return [arrays[f"{name}.{i}"] for i in range(4)]


def predictions(runtime: Runtime, facts: DiffusionFacts, texts: list[State]) -> Iterator[Floats]:
    """What the default methods see of each state's masked positions [n, vocab], with one cache for all."""
    host = DiffusionHost(facts, runtime.capabilities)
    keep = parse_diffusion("", facts.context, facts.shift).make(host).keep
    cache = runtime.new_cache(256)
    for state in texts:
        canvas = Canvas(list(state.tokens), facts.mask, 11, state.start, state.end, state.step)
        shown: dict[int, Floats] = {}
        while not shown:
            plan = keep.plan(canvas, cache)
            outputs = ALL_LOGITS._replace(logits_from=plan.logits_from)
            logits = runtime.forward([Call(plan.rows, cache, outputs=outputs)])[0].logits
            assert logits is not None
            shown = {position: logits[at] for at, position in enumerate(plan.shown) if position >= 0}
            cache.commit(plan.commit) if len(plan.commit) else cache.rollback()
        yield np.array([shown.get(i, np.zeros(logits.shape[1], np.float32)) for i in state.masked])


def worst(found: Iterator[Floats], wanted: list[Floats]) -> list[float]:
    return [float(np.abs(mine - theirs).max()) for mine, theirs in zip(found, wanted, strict=True)]


def test_the_manifest_says_what_the_authors_do(name: str, folder: Path) -> None:
    assert Read.of(open_checkpoint(folder)).facts == FAMILIES[name].facts


def test_predictions_are_those_of_transformers(name: str, folder: Path) -> None:
    """In the pass after the prompt, in the middle of a block, and in the second block, kept keys and all."""
    read = Read.of(open_checkpoint(folder))
    wanted = golden(name)
    assert min(float(each.std()) for each in wanted) > 0.5
    assert max(worst(predictions(read.runtime(), read.facts, states(read.facts)), wanted)) < 1e-4


def test_the_native_engine_predicts_the_same(name: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="exporting needs onnx")
    from edgedec.export.exporter import ExportOptions, export

    if (reason := _no_native()) is not None:
        pytest.skip(reason)
    export(str(folder), tmp_path / "bundle", ExportOptions(weights="f32", check=False, runtimes=("native",)))
    bundle = Bundle.open(tmp_path / "bundle", verify=True)
    facts = bundle.manifest.diffusion
    assert facts == FAMILIES[name].facts
    found = predictions(open_runtime("native", bundle), facts, states(facts))
    assert max(worst(found, golden(name))) < 1e-4


def _no_native() -> str | None:
    from edgedec.kernels.cpu import loader

    return loader.why_not()


def test_another_way_to_decode_shows(name: str, folder: Path) -> None:
    """A wrong shift, a wrong context or a wrong block cannot pass the comparison above."""
    read = Read.of(open_checkpoint(folder))
    runtime, wanted = read.runtime(), golden(name)
    others = [replace(read.facts, context=context) for context in get_args(Context) if context != read.facts.context]
    others.append(replace(read.facts, shift=not read.facts.shift))
    if read.facts.context == "block":
        others.append(replace(read.facts, block=read.facts.block // 2))
    shown = 0
    for facts in others:
        with suppress(UsageError):  # a block that begins where no block can
            assert max(worst(predictions(runtime, facts, states(read.facts)), wanted)) > 0.01, facts
            shown += 1
    assert shown >= 2


CHANGED: dict[type, Callable[[Any], Any]] = {
    int: lambda x: x + 1,
    float: lambda x: x * 3,
    bool: lambda x: not x,
    list: lambda x: [1 - i if type(i) is int else "other" for i in x],
}
# What an entry that is off is set to.
SET = {
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    "sliding_window": None,
    "clip_qkv": 8.0,
    "mlp_only_layers": [0],
    "embedding_size": None,
}


def _other(key: str, value: Any) -> Any:
    if key == "hidden_act" or key == "activation_type":
        return "gelu"
    if value is None or key == "mlp_only_layers":
        return SET.get(key, 3)
    if isinstance(value, str):
        return f"not {value}"
    if key == "partial_rotary_factor":
        return 0.25
    return CHANGED[type(value)](value)


def _seen(read: Read) -> list[Floats]:
    return list(predictions(read.runtime(), read.facts, states(FAMILIES["a2d"].facts)[:2]))


def _same(checkpoint: Checkpoint, as_read: Read, before: list[Floats]) -> bool:
    """Whether a checkpoint is read, and neither what is predicted nor how it is decoded is another."""
    with suppress(EdgedecError):
        other = Read.of(checkpoint)
        if other.facts != as_read.facts or other.spec.context_length != as_read.spec.context_length:
            return False
        return other.spec == as_read.spec or np.array_equal(_seen(other), before)
    return False


def test_every_entry_of_the_config_counts(name: str, folder: Path) -> None:
    """Changed or removed, it is refused, or changes what is predicted or how it is decoded."""
    family, checkpoint = FAMILIES[name], open_checkpoint(folder)
    read = Read.of(checkpoint)
    before, idle = _seen(read), []
    for key, value in family.config.items():
        for change, entries in (
            ("changed", {**family.config, key: _other(key, value)}),
            ("removed", {k: v for k, v in family.config.items() if k != key}),
        ):
            if _same(replace(checkpoint, config=entries), read, before) and not (
                change == "removed" and (value is None or key in family.usual)
            ):
                idle.append(key)
    assert set(idle) <= {*family.harmless, *IDLE}


@pytest.mark.parametrize("part", ["norm", "proj", "embed", "wte", "ff_out", "router", "expert_bias"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path, part: str) -> None:
    tensors = drawn(FAMILIES[name].tensors)
    gone = next((tensor for tensor in tensors if part in tensor), None)
    if gone is None:
        return
    del tensors[gone]
    checkpoint = open_checkpoint(write(tmp_path / "c", name, tensors))
    with pytest.raises(BadTensor, match=": missing from") as found:
        checkpoint.weights(checkpoint.spec())
    assert str(found.value).startswith(gone)


def test_a_tensor_too_many_or_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    tensors = drawn(FAMILIES[name].tensors)
    checkpoint = open_checkpoint(
        write(tmp_path / "more", name, {**tensors, "model.extra": tensors[next(iter(tensors))]})
    )
    with pytest.raises(BadTensor, match=r"^model\.extra: .* is not part of a"):
        checkpoint.weights(checkpoint.spec())
    few = [n for n in tensors if (".0." in n or ".1." in n) and (".experts." not in n or ".experts.2." in n)]
    for i, tensor in enumerate(few):
        other = {**tensors, tensor: tensors[tensor][:-1]}
        checkpoint = open_checkpoint(write(tmp_path / str(i), name, other))
        with pytest.raises(BadTensor, match=r"has shape|does not stack"):
            checkpoint.weights(checkpoint.spec())


def _facts(name: str, folder: Path | None = None, vocab: int = 104, **config: Any) -> DiffusionFacts:
    """The facts for a config of another vocabulary and with other entries."""
    entries = {k: v for k, v in ({**FAMILIES[name].config, **config}).items() if v != "none"}
    spec = open_spec(entries)
    found = diffusion_facts(entries, replace(spec, vocab_size=vocab), folder)
    assert found is not None
    return found


def open_spec(config: dict[str, Any]) -> ModelSpec:
    from edgedec.models import architecture

    return architecture(config).spec(config)


# By the code of the authors; of A2D the tokenizer has to say it.
MASKS = {
    **{"llada": 126336, "llada_biased": 126336, "dream": 151666, "fast_dllm": 151665, "sdar": 151669},
    **{"sdar_moe": 151669, "wedlm": 151665, "wedlm_qwen2": 151665, "llada_moe": 156895, "llada2_moe": 156895},
}


def test_the_mask_is_that_of_the_config_the_tokenizer_or_the_code(name: str, tmp_path: Path) -> None:
    assert _facts(name, mask_token_id=50).mask == 50
    for vocab in (104, MASKS.get(name, 1 << 20)):
        with pytest.raises(CheckpointError, match="mask_token_id is missing") as found:
            _facts(name, vocab=vocab, mask_token_id="none")
        assert "\n" not in str(found.value)
    if name in MASKS:
        assert _facts(name, vocab=MASKS[name] + 1, mask_token_id="none").mask == MASKS[name]
    (tmp_path / "special_tokens_map.json").write_text('{"mask_token": {"content": "<|M|>"}}')
    (tmp_path / "tokenizer.json").write_text(
        '{"added_tokens": [{"id": 9, "content": "<|x|>"}, {"id": 77, "content": "<|M|>"}]}'
    )
    assert _facts(name, tmp_path, vocab=1 << 20, mask_token_id="none").mask == 77
    (tmp_path / "tokenizer_config.json").write_text(
        '{"mask_token": "<|N|>", "added_tokens_decoder": {"78": {"content": "<|N|>"}}}'
    )
    assert _facts(name, tmp_path, vocab=1 << 20, mask_token_id="none").mask == 78
    assert _facts(name, tmp_path, mask_token_id=50).mask == 50
    for wrong in (104, -1, "97", 3.5):
        with pytest.raises(CheckpointError, match="mask"):
            _facts(name, mask_token_id=wrong)


def test_entries_of_the_key_diffusion_go_first(name: str) -> None:
    assert _facts(name, diffusion={"block": 2, "mask": 5}) == replace(FAMILIES[name].facts, block=2, mask=5)
    assert _facts(name, diffusion={"context": "full"}).context == "full"
    for wrong in ({"block": 0}, {"block": 257}, {"block": "4"}, {"context": "none"}, {"steps": 4}, [], 4):
        with pytest.raises(CheckpointError):
            _facts(name, diffusion=wrong)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("sdar", "block_size"),
        ("sdar_moe", "block_size"),
        ("fast_dllm", "bd_size"),
        ("wedlm", "wedlm_window_size"),
    ],
)
def test_the_config_gives_the_block(name: str, key: str) -> None:
    assert _facts(name, **{key: 16}).block == 16
    assert _facts(name, **{key: "none"}).block == {"sdar": 4, "sdar_moe": 4, "fast_dllm": 32, "wedlm": 16}[name]
    for wrong in (0, -4, 257, 4.0, None, True):
        with pytest.raises(CheckpointError, match=f"{key}|block"):
            _facts(name, **{key: wrong})


def test_transformers_still_predicts_the_goldens(name: str) -> None:
    pytest.importorskip("torch", reason="the models compared with need torch")
    pytest.importorskip("transformers", reason="the models compared with are those of transformers")
    from diffusion.families_golden import made

    for found, wanted in zip(made(name).values(), golden(name), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_the_masks_of_the_golden_states_are_not_all_of_a_block() -> None:
    for family in FAMILIES.values():
        first, middle, second, last = states(family.facts)
        assert first.end <= second.start
        assert set(middle.masked) < set(first.masked)
        assert set(last.masked) < set(second.masked)
        assert MASK not in first.tokens[: first.masked[0]]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("llada", "rope", 1), ("llada", "block_group_size", True), ("llada2_moe", "use_qk_norm", 1)],
)
def test_an_entry_of_another_type_is_refused(name: str, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is {value!r}; supported is"):
        _facts(name, **{key: value})
