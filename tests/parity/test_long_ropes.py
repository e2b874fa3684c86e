"""LongRoPE: texts on both sides of the original length, and one that crosses it, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo
from clibrary import needs_compiler
from clibrary import opened as opened_in_c

import edgedec
from edgedec import Sampling
from edgedec.bundle import Bundle
from edgedec.decoding.scheduler.batch import Batch
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.model import Model
from edgedec.models import FAMILY
from edgedec.runtime import unavailable_reason

torch = pytest.importorskip("torch", reason="needs torch to build the models compared with")
transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")

ORIGINAL = 32
# Log-probabilities reach down to -30; with the other set of factors they are off by more than 5 times as much.
WITHIN = 0.02
ENGINES = ("reference", "native", "ort", "opencl:0", "cuda:emulated")
# Half of a head of 32 is turned: ONNX Runtime takes whole sixteens.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.2, 1.25, 1.4, 1.5, 1.75, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0],
}
GREEDY: dict[str, Any] = {"sampling": Sampling(temperature=0), "ignore_eos": True}
TOKENS = np.random.default_rng(5).integers(3, 101, 80).tolist()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bundle]:
    """A tiny Phi-3 of 32 original tokens that goes on well past them, and its bundle."""
    folder = tmp_path_factory.mktemp("phi3")
    sizes = {"hidden_size": 128, "original_max_position_embeddings": ORIGINAL, "rope_parameters": LONGROPE}
    model = zoo._causal("Phi3", 1, **sizes)()
    with torch.no_grad():  # positions count for more than by the usual small weights
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4.0)
    model.config._attn_implementation = "eager"
    model.eval().save_pretrained(folder / "hf")
    bundle = export(str(folder / "hf"), folder / "bundle", ExportOptions(weights="f32"))
    assert bundle.manifest.parity is not None
    assert bundle.manifest.parity.tokens > ORIGINAL, "an export's own comparison is of a long text"
    assert bundle.manifest.parity.kl["f32"] < 1e-6
    return model, bundle


def opened(bundle: Bundle, engine: str) -> Model:
    name, _, detail = engine.partition(":")
    device = engine if detail else ""
    if reason := why_not() if engine == "native" else unavailable_reason(name, bundle, device):
        pytest.skip(f"{engine}: {reason}")
    return edgedec.open(bundle.path, engine=name, device=device)


def likeliest(model: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    """Log-probabilities of the token after a text that transformers reads at once."""
    with torch.no_grad():
        return np.asarray(torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1))


def generated(model: Any, ids: list[int], n: int) -> list[int]:
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0)
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 70])
def test_a_text_has_the_factors_of_its_length(made: tuple[Any, Bundle], engine: str, n: int) -> None:
    model, bundle = made
    session = opened(bundle, engine).session()
    session.append(TOKENS[:n])
    np.testing.assert_allclose(np.log(session.next_probs()), likeliest(model, TOKENS[:n]), atol=WITHIN)


def test_the_factors_make_a_difference(made: tuple[Any, Bundle]) -> None:
    model, _ = made
    rope = model.model.rotary_emb
    short = likeliest(model, TOKENS[:70])
    rope.original_inv_freq, kept = rope.original_inv_freq * 0.5, rope.original_inv_freq
    longer = likeliest(model, TOKENS[:ORIGINAL])
    rope.original_inv_freq = kept
    assert np.abs(longer - likeliest(model, TOKENS[:ORIGINAL])).max() > 5 * WITHIN
    np.testing.assert_array_equal(short, likeliest(model, TOKENS[:70]))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("speculate", ["off", "copy+recycling:fixed=4"])
def test_a_text_that_crosses_the_length_is_that_of_transformers(
    made: tuple[Any, Bundle], engine: str, speculate: str
) -> None:
    model, bundle = made
    prompt = TOKENS[:6] * 4  # repeats, so that drafts are made
    wanted = generated(model, prompt, 40)
    session = opened(bundle, engine).session(speculate=speculate)
    for _ in range(2):  # the second time drafters know what follows, up to the length and beyond
        found = [int(token) for token in session.tokens(prompt, max_tokens=40, **GREEDY)]
        assert found == wanted
    assert len(prompt) < ORIGINAL < len(prompt) + len(found)
    if speculate != "off":
        assert session.stats.accepted > 10, "nothing was drafted"


def test_a_session_goes_back_to_a_short_text(made: tuple[Any, Bundle]) -> None:
    model, bundle = made
    session = opened(bundle, "native").session()
    greedy = GREEDY | {"max_tokens": 3}
    assert [*map(int, session.tokens(TOKENS[:60], **greedy))] == generated(model, TOKENS[:60], 3)
    assert [*map(int, session.tokens(TOKENS[:20], **greedy))] == generated(model, TOKENS[:20], 3)
    assert [*map(int, session.fork().tokens(TOKENS[:33], **greedy))] == generated(model, TOKENS[:33], 3)


def test_texts_of_both_kinds_share_a_batch_and_no_prefix(made: tuple[Any, Bundle]) -> None:
    model, bundle = made
    opened_ = opened(bundle, "native")
    for n in (24, 60, 28, 64, 40, 20):  # each begins as the others do
        found = list[int]()
        batch = Batch(opened_.runtime)
        sessions = [opened_.session() for _ in range(2)]
        for session, length in zip(sessions, (n, 84 - n), strict=True):
            took = list[int]() if session is not sessions[0] else found
            session.submit(batch, TOKENS[:length], lambda t, took=took: t is not None and took.append(int(t)),
                           max_tokens=12, **GREEDY)  # fmt: skip
        batch.run()
        assert found == generated(model, TOKENS[:n], 12)
        alone = opened_.session().tokens(TOKENS[:n], max_tokens=12, **GREEDY)
        assert [*map(int, alone)] == found


@pytest.mark.parametrize("reread", [False, True])
def test_a_saved_session_goes_on_with_its_factors(made: tuple[Any, Bundle], tmp_path: Path, reread: bool) -> None:
    model, bundle = made
    opened_ = opened(bundle, "native")
    for n in (20, 29, 50):  # 29: only the last token makes it long
        session, other = opened_.session(), opened_.session()
        first = [*map(int, session.tokens(TOKENS[:n], max_tokens=4, **GREEDY))]
        session.save(tmp_path / f"{n}.session", reread=reread)
        other.load(tmp_path / f"{n}.session")
        then = [*map(int, other.tokens(max_tokens=20, **GREEDY))]
        assert first + then == generated(model, TOKENS[:n], 24)


def test_scores_of_a_text_are_of_its_whole_length(made: tuple[Any, Bundle]) -> None:
    model, bundle = made
    session = opened(bundle, "native").session()
    session.append(TOKENS[:20])
    with torch.no_grad():
        logits = torch.log_softmax(model(torch.tensor([TOKENS[:61]])).logits[0].double(), -1)
    wanted = [float(logits[i - 1, TOKENS[i]]) for i in range(20, 61)]
    found = session.score(TOKENS[20:62])
    np.testing.assert_allclose(found[:-1], wanted, atol=WITHIN)


@needs_compiler
class TestLibedgedec:
    @pytest.mark.parametrize("drafts", [b"off", b"auto"])
    def test_every_length(self, made: tuple[Any, Bundle], drafts: bytes) -> None:
        model, bundle = made
        c, drafted = opened_in_c(bundle.path, prefix_tokens=512), 0
        for n in (31, 32, 33, 60, 24, 60, 20):
            session = c.session(speculate=drafts, draft=5 if drafts == b"auto" else 0)
            prompt = (TOKENS[:6] * 10)[:n]
            wanted = generated(model, prompt, 30)
            for _ in range(2):
                assert session.generate(prompt, max_tokens=30, temperature=0.0, ignore_eos=1) == wanted
            drafted += session.result.accepted
        assert drafted or drafts == b"off"

    def test_step_by_step_across_the_length(self, made: tuple[Any, Bundle]) -> None:
        model, bundle = made
        session, wanted = opened_in_c(bundle.path).session(), generated(model, TOKENS[:28], 12)
        session.prefill(TOKENS[:28])
        for token in wanted:
            assert int(np.argmax(session.logits())) == token
            session.step(token)

    def test_scores(self, made: tuple[Any, Bundle]) -> None:
        _, bundle = made
        session, other = opened_in_c(bundle.path).session(), opened(bundle, "native").session()
        session.prefill(TOKENS[:20])
        other.append(TOKENS[:20])
        np.testing.assert_allclose(session.score(TOKENS[20:62]), other.score(TOKENS[20:62]), rtol=1e-12)

    def test_saved_sessions_of_python_and_c(self, made: tuple[Any, Bundle], tmp_path: Path) -> None:
        model, bundle = made
        for n in (
            20,
            29,
            50,
        ):  # 29: only the last token makes it long
            session, path = opened(bundle, "native").session(), str(tmp_path / f"{n}.session")
            first = [*map(int, session.tokens(TOKENS[:n], max_tokens=4, **GREEDY))]
            session.save(path)
            other = opened_in_c(bundle.path).session()
            other.load(path)
            then = other.generate(None, max_tokens=20, temperature=0.0, ignore_eos=1)
            assert first + then == generated(model, TOKENS[:n], 24)


CONFIGS: dict[str, dict[str, Any]] = {
    "outside": {"original_max_position_embeddings": 24},
    "absent": {},
    "both": {"original_max_position_embeddings": 24, "inside": 40},
    "inside": {"inside": 40},
}


@pytest.mark.parametrize("kind", ["Phi3", "Llama"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_original_length_is_read_where_transformers_reads_it(kind: str, name: str, tmp_path: Path) -> None:
    changes = dict(CONFIGS[name])
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_theta": 1e4}
    if inside := changes.pop("inside", None):
        rope["original_max_position_embeddings"] = inside
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 8192, "rope_parameters": rope}
    config = getattr(transformers, f"{kind}Config")(**zoo.SIZES | sizes | {"head_dim": 16} | changes)
    written = config.to_dict() | {"rope_parameters": rope}
    for key in () if "original_max_position_embeddings" in changes else ("original_max_position_embeddings",):
        written.pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps(written))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    wanted = model.config.rope_parameters["original_max_position_embeddings"]
    found = FAMILY.file(kind.lower()).spec(written)
    assert (found.original_length or found.context_length) == wanted
