"""MiMo end to end, from one folder in the published layout: the model, and the layer beside it as its drafter."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch and transformers for the models compared with")
import mimo
import torch
import transformers
from safetensors.torch import load_file
from typer.testing import CliRunner

import edgedec
from edgedec.bundle import Bundle
from edgedec.cli._app import app
from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.drafters import DrafterContext
from edgedec.drafters._heads.reader import HeadReader, facts_of
from edgedec.drafters._heads.states import Seen
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import CallResult, Outputs, Rows, Runtime, RuntimeOptions, logits_of, open_runtime

ENGINES = ("reference", "ort", *(["native"] if why_not() is None else []))
PROMPT = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77]


def exported(model: Any, folder: Path) -> Bundle:
    """By the command line, the head out of the very checkpoint of the model."""
    checkpoint = str(mimo.save(model, folder / "checkpoint"))
    run(["export", checkpoint, "-o", str(folder / "bundle"), "--weights", "f32"])
    run(["add-draft", checkpoint, str(folder / "bundle")])
    return Bundle.open(folder / "bundle", verify=True)


def run(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bundle]:
    """Every weight random: the head says something else than the model."""
    model = mimo.random(1)
    return model, exported(model, tmp_path_factory.mktemp("drawn"))


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bundle]:
    """A model whose layers change little, and a head that reads mostly the embedding: they say much the same."""
    model = mimo.random(2)
    head, width = model.model.mtp_layers[0], mimo.SIZES["hidden_size"]
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20.0)
        for layer in (*model.model.layers, head):
            layer.self_attn.o_proj.weight.mul_(0.03)
            layer.mlp.down_proj.weight.mul_(0.03)
        head.token_layernorm.weight.fill_(1.0)
        head.input_proj.weight[:, :width].mul_(0.02)
        head.input_proj.weight[:, width:].copy_(torch.eye(width))
        head.final_layernorm.weight.copy_(model.model.norm.weight)
    return model, exported(model, tmp_path_factory.mktemp("agreeing"))


def opened(bundle: Bundle, engine: str) -> Runtime:
    return open_runtime(engine, bundle, RuntimeOptions(threads=1))


def driven(runtime: Runtime, reading: Generator[Request, Completed, CallResult]) -> CallResult:
    """What a reading gives, its calls run one after another."""
    try:
        item = next(reading)
        while True:
            owner, call = item if isinstance(item, ForwardOn) else (runtime, item)
            item = reading.send(Completed(owner.forward((call,))[0], call.rows.count, 0.0))
    except StopIteration as done:
        found: CallResult = done.value
        return found


def test_the_model_is_qwen2(drawn: tuple[Any, Bundle], tmp_path: Path) -> None:
    """Logits of transformers' own Qwen2 with the weights of the folder, less those of the layer beside it."""
    folder = mimo.save(drawn[0], tmp_path / "checkpoint")
    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    own = {name: tensor for name, tensor in tensors.items() if "mtp_layers" not in name}
    assert len(tensors) - len(own) == 16
    ropes = {"rope_type": "default", "rope_theta": float(mimo.PUBLISHED["rope_theta"])}
    config = transformers.Qwen2Config(**mimo.SIZES, rms_norm_eps=1e-5, rope_parameters=ropes, tie_word_embeddings=False)
    qwen = transformers.Qwen2ForCausalLM(config)
    qwen.load_state_dict(own, strict=True)
    with torch.no_grad():
        expected = qwen.eval()(torch.tensor([PROMPT])).logits[0].numpy()
    for engine in ENGINES:
        runtime = opened(drawn[1], engine)
        found = logits_of(runtime, Rows.chain(PROMPT, 0), runtime.new_cache(32))
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_heads_states_and_logits_are_those_of_torch(drawn: tuple[Any, Bundle], engine: str) -> None:
    """Of all rows of a text, and of a row that was drafted after it."""
    model, bundle = drawn
    head, target = model.model.mtp_layers[0], list[Any]()
    hook = model.model.norm.register_forward_pre_hook(lambda _, given: target.append(given[0][0]))
    with torch.no_grad():
        model(torch.tensor([PROMPT]))
        hook.remove()
        embed, states = model.get_input_embeddings(), target[0][:-1]
        after = head.state(embed(torch.tensor(PROMPT[1:])), states)
        logits = model.lm_head(head.final_layernorm(after))
        drafted = int(logits[-1].argmax())
        grown = head(embed(torch.tensor([*PROMPT[1:], drafted])), torch.cat([states, after[-1:]]))
        more = model.lm_head(grown)[-1:]
    runtime = opened(bundle, engine)
    host = DrafterContext(runtime, bundle, lambda: None)  # type: ignore[arg-type, return-value]
    reader = HeadReader(host, facts_of(host, "mtp"))
    wanted = Outputs(logits=True, hidden=(reader.last,))
    seen = states.numpy()[:, None]
    for n in (4, len(PROMPT) - 1):  # in two parts; after each the last row is shown
        start = 0 if n == 4 else 4
        part = Seen(start, seen[start:n], PROMPT[start + 1 : n + 1])
        result = driven(runtime, reader.read([part], PROMPT[: n + 1], wanted, 4))
        assert result.logits is not None
        np.testing.assert_allclose(result.hidden[reader.last], after[n - 1 : n].numpy(), atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(result.logits, logits[n - 1 : n].numpy(), atol=1e-4, rtol=1e-4)
    result = driven(runtime, reader.grow([drafted], [-1], reader.state(result), wanted))
    assert result.logits is not None
    np.testing.assert_allclose(result.logits, more.numpy(), atol=1e-4, rtol=1e-4)


def test_what_the_model_shows_is_not_normed(drawn: tuple[Any, Bundle]) -> None:
    facts = drawn[1].manifest.drafts["mtp"]
    assert (facts.normed, facts.feeds, facts.features) == (False, "state", (drawn[1].spec.n_blocks - 1,))


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_stay_and_drafts_are_accepted(
    drawn: tuple[Any, Bundle], agreeing: tuple[Any, Bundle], engine: str
) -> None:
    """Greedy and sampled; the greedy text is that of transformers."""
    for model, bundle in (drawn, agreeing):
        opened_model = edgedec.open(bundle.path, engine=engine)
        for options in ({}, {"temperature": 0.8, "seed": 5}):
            plain = opened_model.session(speculate="off").tokens(PROMPT, max_tokens=48, **options)
            session = opened_model.session(speculate="mtp:fixed=4")
            expected = [int(token) for token in plain]
            assert [int(token) for token in session.tokens(PROMPT, max_tokens=48, **options)] == expected
            counts = session.report()["drafters"]["mtp"]
            assert counts["proposed"] > 20
            if bundle is agreeing[1]:
                assert counts["accepted"] > 12, (options, counts)
            if not options:
                with torch.no_grad():
                    best = model(torch.tensor([[*PROMPT, *expected]])).logits[0, len(PROMPT) - 1 : -1].argmax(-1)
                assert best.tolist() == expected


def test_export_takes_the_head_along(agreeing: tuple[Any, Bundle], tmp_path: Path) -> None:
    """`export FOLDER --draft FOLDER`: the same files; four bits too."""
    checkpoint = str(mimo.save(agreeing[0], tmp_path / "checkpoint"))
    common = ["export", checkpoint, "--draft", checkpoint, "-o"]
    run([*common, str(tmp_path / "bundle"), "--weights", "f32"])
    found, other = Bundle.open(tmp_path / "bundle"), agreeing[1]
    for name in (name for name in other.manifest.files if name.startswith("draft_mtp.")):
        assert found.manifest.files[name].sha256 == other.manifest.files[name].sha256, name
    run([*common, str(tmp_path / "int4"), "--weights", "int4"])
    opened_model = edgedec.open(tmp_path / "int4", engine=ENGINES[-1])
    texts = [
        [int(token) for token in opened_model.session(speculate=spec).tokens(PROMPT, max_tokens=30)]
        for spec in ("off", "mtp:fixed=4")
    ]
    assert texts[0] == texts[1]
