"""Published draft checkpoints: what is refused and how, `add-draft`, `export --draft`, batches, texts of all sorts."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch and transformers to write checkpoints")
import torch
from draft_checkpoints import PUBLISHED, eagle, eagle3, hydra, kangaroo, longspec, m2r2, medusa, mtp, prompt, target
from loops import decode
from typer.testing import CliRunner

import edgedec
from edgedec import Sampling
from edgedec.bundle import MANIFEST, Bundle
from edgedec.cli._app import app
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace, decode_loop
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, make_drafter
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.errors import BundleCorrupt, EdgedecError, UsageError
from edgedec.export.drafts import DraftOptions, add_draft
from edgedec.export.exporter import ExportOptions, export, put_draft
from edgedec.export.geometry import Geometry
from edgedec.export.padding import pad_to_geometry
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Call, CallResult, Outputs

PROMPT = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77]
KINDS = {
    "eagle3": eagle3,
    "eagle": eagle,
    "mtp": lambda: mtp("deepseek"),
    "hydrapp": lambda: hydra(True),
    "medusa": medusa,
    "kangaroo": kangaroo,
    "m2r2": m2r2,
    "longspec": longspec,
    "prompt": prompt,
}
ENGINE = "native" if why_not() is None else "reference"


@pytest.fixture(autouse=True)
def proportional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost what their multiply-adds say: how long a draft gets does not depend on the machine."""
    monkeypatch.setattr(SliceCosts, "add", lambda *args: None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target") / "checkpoint"
    target().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Path:
    options = ExportOptions(weights="int8", check=False, runtimes=())
    return export(str(checkpoint), checkpoint.parent / "bundle", options).path


@pytest.fixture(scope="module")
def drafted(plain: Path) -> Path:
    """A bundle with a draft of every kind."""
    folder = shutil.copytree(plain, plain.parent / "drafted")
    for kind, make in KINDS.items():
        torch.manual_seed(5)
        made = make().save(plain.parent / kind)
        assert add_draft(Bundle.open(folder), made)[1] == kind
    return Path(folder)


@pytest.fixture
def bundle(plain: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(plain, tmp_path / "bundle"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- what is refused ----


def without(name: str) -> Callable[[Any], None]:
    return lambda oracle: oracle.tensors.pop(name)


def reshaped(name: str, *shape: int) -> Callable[[Any], None]:
    return lambda oracle: oracle.tensors.update({name: torch.randn(shape)})


def config(**changes: Any) -> Callable[[Any], None]:
    return lambda oracle: oracle.config.update(changes)


REFUSED: dict[str, tuple[Callable[[], Any], Callable[[Any], None], str]] = {
    "a tensor missing": (eagle3, without("midlayer.mlp.up_proj.weight"), "up_proj.weight: missing"),
    "a tensor of another shape": (eagle3, reshaped("midlayer.self_attn.o_proj.weight", 64, 32), "expected"),
    "a tensor too many": (eagle3, reshaped("midlayer.spare.weight", 4, 4), "midlayer.spare.weight"),
    "another hidden size": (eagle3, config(hidden_size=32, head_dim=16), "hidden_size is 32, the target's 64"),
    "a larger vocabulary": (eagle3, config(draft_vocab_size=4096), "the target 131"),
    "tokens outside": (
        eagle3,
        lambda oracle: oracle.tensors.update(d2t=oracle.tensors["d2t"] + 200),
        "d2t: leads outside",
    ),
    "too few tokens": (eagle3, lambda oracle: oracle.tensors.update(d2t=oracle.tensors["d2t"][:5]), "5 numbers for 67"),
    "another fusion": (eagle3, reshaped("fc.weight", 64, 128), "fc.weight: (64, 128), expected (64, 192)"),
    "a norm that is no flag": (eagle3, config(norm_before_residual="yes"), "norm_before_residual"),
    "states of layers that are not there": (
        eagle3,
        config(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 90]}),
        "a target that has 8",
    ),
    "values that are not finite": (
        eagle,
        lambda oracle: oracle.tensors["fc.weight"].fill_(float("inf")),
        "fc.weight: holds values that are not finite",
    ),
    "latent attention": (
        lambda: mtp("deepseek"),
        reshaped("model.layers.8.self_attn.kv_b_proj.weight", 4, 4),
        "latent attention",
    ),
    "gated attention": (lambda: mtp("qwen3_next"), config(model_type="qwen3_next"), "gated attention"),
    "experts": (lambda: mtp("deepseek"), reshaped("model.layers.8.mlp.gate.weight", 4, 64), "experts"),
    "an exit that is not said": (kangaroo, lambda oracle: oracle.config.pop("exit_layer"), "exit_layer is missing"),
    "adapters of two ranks": (m2r2, reshaped("accelerators.1.state_proj.weight", 8, 64), "(8, 64), expected (20, 64)"),
    "an adapter too few": (m2r2, without("accelerators.2.residual_norm.weight"), "residual_norm.weight: missing"),
    "adapters behind the last layer": (m2r2, config(exit_layer=8), "exit_layer is 8, the target has 8 layers"),
    "prompts of another size": (prompt, reshaped("prompts.weight", 3, 32), "expected (3, 64)"),
    "prompts that are not there": (prompt, config(num_prompt_tokens=4), "expected (4, 64)"),
    "an exit behind the last layer": (kangaroo, config(exit_layer=8), "exit_layer is 8, the target has 8 layers"),
    "an adapter without a matrix": (kangaroo, without("layers.0.self_attn.k_proj.weight"), "k_proj.weight: missing"),
    "an adapter of another size": (kangaroo, reshaped("norm.weight", 32), "norm.weight"),
    "a readout for another target": (medusa, reshaped("0.2.weight", 131, 32), "(131, 32)"),
    "a head missing": (lambda: hydra(True), without("hydra_lm_head.1.1.weight"), "hydra_lm_head.1.1.weight: missing"),
    "heads that are not grounded": (lambda: hydra(True), config(grounded_heads=False), "not grounded"),
    "no draft at all": (eagle3, lambda oracle: oracle.tensors.pop("fc.weight"), "no draft checkpoint of a known kind"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str, bundle: Bundle, tmp_path: Path) -> None:
    """In one line that names it; the bundle stays byte for byte."""
    make, damage, said = REFUSED[case]
    oracle, before = make(), content(bundle.path)
    add_draft_ok = oracle.save(tmp_path / "whole")
    damage(oracle)
    with pytest.raises(EdgedecError) as refused:
        add_draft(bundle, oracle.save(tmp_path / "draft"))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert content(bundle.path) == before
    assert add_draft(bundle, add_draft_ok)[0].manifest.drafts, "the undamaged one is accepted"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("/tmp/edgedec-was-here"),)


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04", pickle.dumps({"fc.weight": Evil()}), pickle.dumps([1, 2])])
def test_a_pickle_runs_nothing(raw: bytes, bundle: Bundle, tmp_path: Path) -> None:
    folder = eagle().save(tmp_path / "draft", "pytorch_model.bin")
    (folder / "pytorch_model.bin").write_bytes(raw)
    with pytest.raises(EdgedecError, match="not a file of tensors"):
        add_draft(bundle, folder)
    assert not Path("/tmp/edgedec-was-here").exists()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_by_name(
    data: st.DataObject, plain: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever a byte of the checkpoint becomes: an error with a name, or a bundle that opens."""
    folder = eagle3().save(tmp_path_factory.mktemp("draft"))
    file = folder / data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    raw = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, min(len(raw), 3000) - 1))
    raw[at : at + data.draw(st.integers(1, 4))] = data.draw(st.binary(max_size=4))
    file.write_bytes(bytes(raw))
    copy = Path(shutil.copytree(plain, tmp_path_factory.mktemp("copy") / "bundle"))
    try:
        found, _ = add_draft(Bundle.open(copy), folder)
    except EdgedecError:
        assert Bundle.open(copy).digest == Bundle.open(plain).digest
    else:
        found.verify()


@pytest.mark.parametrize("damage", ["exit", "stack", "files", "features", "tokens"])
def test_damaged_bundles_are_refused(damage: str, drafted: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(drafted, tmp_path / "bundle"))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    kind = "kangaroo" if damage == "exit" else "eagle3"
    draft = manifest["drafts"][kind]
    if damage == "exit":
        draft["features"] = [2]  # in the middle of a layer
    if damage == "stack":
        draft["stack"] = "nowhere.json"
    if damage == "features":
        draft["features"] = [1, 2, 400]
    if damage == "files":
        (folder / draft["stack"]).write_text("{}")
        manifest["files"][draft["stack"]]["size"] = 2
    if damage == "tokens":
        (folder / draft["tokens"]).write_bytes(np.full(67, 1 << 20, "<i4").tobytes())
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleCorrupt):
        list(edgedec.open(folder, engine=ENGINE).session(speculate=kind).tokens(PROMPT, max_tokens=2))


def test_a_bundle_without_one_says_what_to_do(plain: Path) -> None:
    for kind in ("eagle3", "eagle", "mtp", "hydrapp", "kangaroo", "m2r2", "prompt"):
        with pytest.raises(UsageError, match="add-draft"):
            edgedec.open(plain, engine=ENGINE).session(speculate=kind)


# ---- the commands ----


def test_export_takes_drafts_and_leaves_nothing_behind(checkpoint: Path, tmp_path: Path) -> None:
    run = CliRunner()
    first, second = eagle3().save(tmp_path / "one"), medusa().save(tmp_path / "two", "medusa_lm_head.pt")
    args = [
        "export",
        str(checkpoint),
        "-o",
        str(tmp_path / "b"),
        "--no-check",
        "--for",
        "native",
        "--draft",
        str(first),
    ]
    done = run.invoke(app, [*args, "--draft", str(second), "--draft-weights", "int4", "--json"])
    assert done.exit_code == 0, done.stderr
    found = Bundle.open(tmp_path / "b", verify=True)
    assert set(found.manifest.drafts) == {"eagle3", "medusa"}
    assert found.part(found.manifest.drafts["eagle3"].stack).manifest.quantization["body"] == "int4"
    (second / "medusa_lm_head.pt").write_bytes(b"")
    failed = run.invoke(app, [*args[:3], str(tmp_path / "c"), *args[4:], "--draft", str(second)])
    assert failed.exit_code != 0
    assert not (tmp_path / "c").exists()


def test_add_draft_reports(bundle: Bundle, tmp_path: Path) -> None:
    made = eagle3().save(tmp_path / "one")
    done = CliRunner().invoke(app, ["add-draft", str(made), str(bundle.path), "--json"])
    report = json.loads(done.stdout)
    assert report["kind"] == "eagle3"
    assert report["bytes"] == sum((bundle.path / name).stat().st_size for name in report["files"])
    again = CliRunner().invoke(app, ["add-draft", str(made), str(bundle.path)])
    assert "--spec eagle3" in again.stdout
    missing = CliRunner().invoke(app, ["add-draft", str(tmp_path / "nothing"), str(bundle.path)])
    assert missing.exit_code != 0


def test_multi_token_prediction_comes_out_of_the_models_own_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder, module = Path(shutil.copytree(checkpoint, tmp_path / "whole")), mtp("deepseek")
    save_file(
        {**load_file(folder / "model.safetensors"), **{n: t.contiguous() for n, t in module.tensors.items()}},
        folder / "model.safetensors",
    )
    settings = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(settings | {"num_nextn_predict_layers": 1}))
    options = ExportOptions(check=False, runtimes=(), drafts=(str(folder),))
    found = export(str(folder), tmp_path / "bundle", options)
    assert set(found.manifest.drafts) == {"mtp"}


# ---- texts ----


def tokens(session: Any, prompt: Sequence[int] | None, n: int, **options: Any) -> list[int]:
    return [int(token) for token in session.tokens(prompt, max_tokens=n, **options)]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_all_sorts_stay(kind: str, drafted: Path) -> None:
    """A text that goes on, another that shares its beginning, one that slides, a fork, a seed."""
    model = edgedec.open(drafted, engine=ENGINE)

    def story(speculate: str) -> tuple[list[list[int]], Any]:
        session, found = model.session(speculate=speculate, context=64, on_full="slide"), list[list[int]]()
        found.append(tokens(session, PROMPT, 11))
        found.append(tokens(session, None, 7))
        found.append(tokens(session, [*PROMPT[:9], 4, 4], 9))
        found.append(tokens(session, [5, *PROMPT], 9, sampling=Sampling(temperature=0.8, seed=4)))
        found.append(tokens(session.fork(), None, 9))
        found.append(tokens(session, None, 70))
        return found, session.report()

    expected, _ = story("off")
    found, report = story(f"{kind}:fixed=5")
    assert found == expected
    assert report["drafters"][kind]["proposed"] > (20 if kind in ("kangaroo", "m2r2") else 60)


def test_auto_takes_the_best_head(drafted: Path) -> None:
    if ENGINE != "native":
        pytest.skip("auto drafts on batch-invariant runtimes only")
    used = edgedec.open(drafted, engine=ENGINE).session(speculate="auto").report()["drafters"]
    assert "eagle3" in used
    assert not {"eagle", "mtp", "medusa", "hydrapp"} & set(used)


@pytest.mark.parametrize(("kind", "options"), [("eagle3", {"beam": "2"}), ("kangaroo", {})])
def test_forwards_of_a_batch_are_shared(
    kind: str, options: dict[str, str], drafted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's layers run for four texts in half as many forwards as calls, and each text is what it is alone."""
    model = edgedec.open(drafted, engine=ENGINE)
    host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
    forwards: list[int] = []

    def run(n: int) -> list[list[int]]:
        batch, found = Batch(model.runtime), [list[int]() for _ in range(n)]
        for i in range(n):
            context = Context([*PROMPT[: 8 + i], i], 9 + i, model.runtime.new_cache(64))
            drafter: Any = make_drafter(kind, host, options)
            if i == 0:
                runtime, whole = drafter._reader._runtime, type(drafter._reader._runtime).forward

                def counted(calls: Sequence[Call], whole: Any = whole, runtime: Any = runtime) -> list[CallResult]:
                    forwards.append(len(calls))
                    result: list[CallResult] = whole(runtime, calls)
                    return result

                monkeypatch.setattr(runtime, "forward", counted)
            loop = decode_loop(
                context, GenerationConfig(max_tokens=12), drafter, capabilities=model.runtime.capabilities
            )
            batch.add(context, loop, lambda token, i=i: token is None or found[i].append(int(token)), 30)  # type: ignore[misc]
        batch.run()
        return found

    alone = run(1)
    forwards.clear()
    four = run(4)
    assert four[0] == alone[0]
    assert max(forwards) == 4
    assert sum(forwards) >= 2 * len(forwards)
    for i, text in enumerate(four):
        assert text == tokens(model.session(speculate="off"), [*PROMPT[: 8 + i], i], 12)


def test_every_published_kind_has_a_drafter() -> None:
    from edgedec.drafters import FAMILY as DRAFTERS
    from edgedec.models.drafts import FAMILY

    assert {kind for kind, _, _ in PUBLISHED.values()} == set(FAMILY.names())
    assert set(FAMILY.names()) <= set(DRAFTERS.names())
    assert DraftOptions().weights is None


def test_the_state_of_longspec_stays_of_one_size(drafted: Path) -> None:
    """However long the text, also where its window was read anew; a head that reads all of the text reports its own."""
    model, sizes = edgedec.open(drafted, engine=ENGINE), list[int]()
    session = model.session(speculate="longspec:fixed=4")
    for _ in range(3):
        list(session.tokens(PROMPT, max_tokens=40, ignore_eos=True))
        sizes.append(session.report()["drafters"]["longspec"]["state_bytes"])
    assert len(set(sizes)) == 1
    session = model.session(speculate="eagle3:fixed=4")
    list(session.tokens(PROMPT, max_tokens=40, ignore_eos=True))
    found = session.report()["drafters"]["eagle3"]["state_bytes"]
    assert found >= len(session.ids) * 2 * 4 * 4, "keys and values of a head at least"


def test_choices_of_medusa(drafted: Path, tmp_path: Path) -> None:
    """A fixed tree of ranks, as far as there is room; what is no tree is refused."""
    (tmp_path / "tree.json").write_text("[[0], [1], [0, 0], [0, 1], [0, 0, 0], [5]]")
    model = edgedec.open(drafted, engine=ENGINE)
    expected = tokens(model.session(speculate="off"), PROMPT, 20)
    session = model.session(speculate=f"medusa:choices={tmp_path / 'tree.json'},fixed=6")
    assert tokens(session, PROMPT, 20) == expected
    assert session.report()["drafters"]["medusa"]["proposed"] >= 80
    for wrong in ("[[0, 0]]", "{}", "[[-1]]", "[", "[[]]"):
        (tmp_path / "tree.json").write_text(wrong)
        with pytest.raises(UsageError, match="choices"):
            model.session(speculate=f"medusa:choices={tmp_path / 'tree.json'}")


def test_a_padded_bundle_drafts_the_same(checkpoint: Path, tmp_path: Path) -> None:
    """At another geometry EAGLE-3 proposes what it proposes at its own."""
    options = ExportOptions(weights="f32", check=False, runtimes=(), drafts=(str(eagle3().save(tmp_path / "one")),))
    small = export(str(checkpoint), tmp_path / "small", options)
    geometry = Geometry(262, 160, 128, 10, 12, 3, 32)
    large = pad_to_geometry(small, geometry, tmp_path / "large", "large", "f32")
    assert large.part(large.manifest.drafts["eagle3"].stack).spec.hidden_size == 160

    def drafts(bundle: Bundle) -> list[tuple[list[int], list[int]]]:
        model = edgedec.open(bundle.path, engine=ENGINE)
        host, trace = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), list[StepTrace]()
        context = Context(list(PROMPT), len(PROMPT), model.runtime.new_cache(64))
        drafter = make_drafter("eagle3", host, {"beam": "3"})
        list(decode(model.runtime, context, GenerationConfig(max_tokens=20), drafter, trace=trace))
        return [(list(step.draft.tokens[:8]), list(step.draft.parents[:8])) for step in trace]

    found = drafts(large)
    assert sum(len(tokens) for tokens, _ in found) > 80
    assert found == drafts(small)


@pytest.mark.parametrize("form", ["checkpoint", "bundle"])
def test_a_small_model_drafts_from_inside_the_bundle(
    form: str, checkpoint: Path, bundle: Bundle, tmp_path: Path
) -> None:
    """The target itself is the best draft: nearly all is accepted, and `model` needs no path."""
    place = str(checkpoint)
    if form == "bundle":
        place = str(export(place, tmp_path / "small", ExportOptions(weights="int8", check=False, runtimes=())).path)
    found, kind = put_draft(bundle, place)
    assert kind == "model"
    found.verify()
    model = edgedec.open(found.path, engine=ENGINE)
    session = model.session(speculate="model:fixed=4")
    assert tokens(session, PROMPT, 30) == tokens(model.session(speculate="off"), PROMPT, 30)
    report = session.report()["drafters"]["model"]
    assert report["proposed"] > 20
    assert report["accepted"] >= 20, "of 30 tokens"
    shutil.rmtree(tmp_path / "small", ignore_errors=True)
    assert not list(bundle.path.parent.glob(".draft-*"))


def test_what_is_neither_draft_nor_model_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    oracle = eagle3()
    oracle.tensors.pop("fc.weight")
    oracle.config["model_type"] = "llama"
    with pytest.raises(EdgedecError, match="no draft checkpoint of a known kind"):
        put_draft(bundle, str(oracle.save(tmp_path / "draft")))


class Blind(BaseDrafter):
    """A drafter that is not shown some calls."""

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.calls, self.sizes = drafter, 0, list[int]()

    @property
    def outputs(self) -> Outputs:  # type: ignore[override]
        return Outputs() if 5 <= self.calls < 9 else self.drafter.outputs  # type: ignore[no-any-return]

    def observe(self, step: StepResult) -> None:
        self.drafter.observe(step)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        self.calls += 1
        proposal = self.drafter.propose(context, min(nodes, 4), min_path_prob)
        draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
        self.sizes.append(len(draft.tokens))
        return draft


@pytest.mark.parametrize("kind", ["eagle3", "hydrapp"])
def test_after_calls_that_were_not_shown_a_head_begins_anew(kind: str, drafted: Path) -> None:
    model = edgedec.open(drafted, engine=ENGINE)
    host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
    context, blind = Context(list(PROMPT), len(PROMPT), model.runtime.new_cache(96)), Blind(make_drafter(kind, host))
    found = [int(t) for t in decode(model.runtime, context, GenerationConfig(max_tokens=40), blind)]
    assert found == tokens(model.session(speculate="off"), PROMPT, 40)
    assert blind.sizes[5:9] == [0, 0, 0, 0], "nothing is known of the last token"
    assert min(blind.sizes[1:5]) > 0
    assert min(blind.sizes[9:-4]) > 0
    assert blind.drafter._reader._base > len(PROMPT)


def test_inspect_names_drafts(drafted: Path) -> None:
    report = json.loads(CliRunner().invoke(app, ["inspect", str(drafted), "--json"]).stdout)
    assert set(report["drafts"]) == set(KINDS)
    assert min(size for kind, size in report["drafts"].items() if kind != "prompt") > 1000
    assert report["drafts"]["prompt"] == 3 * 64 * 4, "three embeddings and nothing else"
    assert "eagle3" in CliRunner().invoke(app, ["inspect", str(drafted)]).stdout


@pytest.mark.parametrize("kind", ["eagle3", "hydrapp", "kangaroo"])
def test_the_head_of_a_fork_goes_on(kind: str, drafted: Path) -> None:
    """It drafts at once, and what it drafts is what the other one would."""
    session = edgedec.open(drafted, engine=ENGINE).session(speculate=f"{kind}:fixed=4")
    tokens(session, PROMPT, 12)
    twin = session.fork()
    first, second = (s._drafter.drafter.members[0].drafter._reader for s in (session, twin))
    assert second is not first
    assert (second._base, second._text) == (first._base, first._text)
    assert second._cache.length == first._cache.length > 20
    assert tokens(twin, None, 20) == tokens(session, None, 20)
    reports = [s.report()["drafters"][kind]["proposed"] for s in (session, twin)]
    assert reports[1] > (5 if kind == "kangaroo" else 40)
