"""Published draft heads: each proposal is that of an independent torch module, on every runtime; texts stay."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch and transformers for the models compared with")
import torch
from draft_checkpoints import PUBLISHED, Oracle, Target, kangaroo, target, tree
from drafting import left
from loops import decode

import edgedec
from edgedec.bundle import Bundle
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace, decode_loop
from edgedec.decoding.messages import Completed, Request, Stats, StepResult
from edgedec.decoding.runner import run_loop
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, make_drafter
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters.off import Off
from edgedec.export.drafts import DraftOptions, add_draft
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import CallResult, Rows, Runtime, RuntimeOptions, open_runtime

ENGINES = ("reference", "ort", *(["native"] if why_not() is None else []))
PROMPT = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77]
NODES, BEAM, K = 9, 3, 4
# Guesses come of rows below a draft: test_prompt_rows.py, tests/unit/test_drafter_lud.py; sec drafts none.
BELOW = ["prompt", "lud", "hidden transfer", "sec"]
LOSSY = ["lud", "sec"]
RUNGS = ["chimera", "hydrapp"]  # a head for each depth, which names its best 16
ADAPTERS = sorted(name for name in PUBLISHED if name.startswith(("kangaroo", "m2r2")))  # drafted with as by an exit


@pytest.fixture(autouse=True)
def proportional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost what their multiply-adds say: how long a draft gets does not depend on the machine."""
    monkeypatch.setattr(SliceCosts, "add", lambda *args: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Path]:
    folder, made = tmp_path_factory.mktemp("target"), target()
    made.save_pretrained(folder / "checkpoint")
    export(str(folder / "checkpoint"), folder / "bundle", ExportOptions(weights="f32", check=False))
    return Target(made), folder / "bundle"


@pytest.fixture(scope="module", params=sorted(PUBLISHED))
def case(
    request: pytest.FixtureRequest, model: tuple[Target, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Oracle, Bundle]:
    """The kind, what it computes, and a bundle with it."""
    kind, make, file = PUBLISHED[request.param]
    folder = tmp_path_factory.mktemp("draft")
    torch.manual_seed(3)
    oracle = make()
    oracle.save(folder / "draft", file)
    shutil.copytree(model[1], folder / "bundle")
    bundle, found = add_draft(Bundle.open(folder / "bundle"), folder / "draft", DraftOptions())
    assert found == kind
    return kind, oracle, Bundle.open(bundle.path, verify=True)


class Helped(BaseDrafter):
    """A drafter whose proposals are noted, and every other one of which is replaced by tokens that will be accepted."""

    def __init__(self, drafter: Drafter, text: list[int]) -> None:
        self.drafter, self.text, self.seen = drafter, text, list[tuple[list[int], Draft]]()
        self.outputs, self.reads = drafter.outputs, drafter.reads

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None] | None:
        return self.drafter.read(context, rows, result)

    def observe(self, step: StepResult) -> None:
        self.drafter.observe(step)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        proposal = self.drafter.propose(context, min(nodes, NODES), min_path_prob)
        draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
        if nodes >= NODES:
            self.seen.append((list(context.ids), draft))
        right = self.text[len(context.ids) :][:3]
        return Draft.chain(right[:nodes]) if len(self.seen) % 2 else draft


def paths(draft: Draft) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}
    at: list[tuple[int, ...]] = []
    for token, parent, p in zip(draft.tokens, draft.parents, draft.p, strict=True):
        above = at[parent] if parent >= 0 else ()
        at.append((*above, token))
        found[at[-1]] = found.get(above, 1.0) * p
    return found


def generated(runtime: Runtime, drafter: Drafter, n: int, chunk: int = 5) -> list[int]:
    context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(96))
    can = replace(runtime.capabilities, prefill_chunk=chunk)
    loop = decode_loop(context, GenerationConfig(max_tokens=n), drafter, capabilities=can)
    return [int(token) for token in run_loop(runtime, loop)]


def drafts_of(kind: str, bundle: Bundle, engine: str, options: dict[str, str]) -> list[tuple[list[int], Draft]]:
    """What is drafted after each text, while the text stays that of plain decoding."""
    runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1))
    host = DrafterContext(runtime, bundle, lambda: None)  # type: ignore[arg-type, return-value]
    context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(96))
    plain = [int(t) for t in decode(runtime, context, GenerationConfig(max_tokens=40), Off())]
    drafter = Helped(make_drafter(kind, host, options), [*PROMPT, *plain])
    assert generated(runtime, drafter, 40) == plain
    compared = [(ids, draft) for ids, draft in drafter.seen if draft.tokens]
    assert len(compared) >= 5, "hardly anything was drafted"
    return compared


@pytest.mark.parametrize("case", sorted(set(PUBLISHED) - {*ADAPTERS, *BELOW}), indirect=True)
@pytest.mark.parametrize("engine", ENGINES)
def test_proposals_are_those_of_torch(
    case: tuple[str, Oracle, Bundle], model: tuple[Target, Path], engine: str
) -> None:
    kind, oracle, bundle = case
    options = {} if kind == "medusa" else {"beam": str(BEAM)} | ({} if kind in RUNGS else {"k": str(K)})
    compared = drafts_of(kind, bundle, engine, options)
    k, beam = (16, 999) if kind == "medusa" else (16, BEAM) if kind in RUNGS else (K, BEAM)
    for ids, draft in compared:
        expected = tree(lambda path, ids=ids: oracle.after(model[0], ids, path), NODES, oracle.depth, beam, k)  # type: ignore[misc]
        found = paths(draft)
        assert set(found) == set(expected), ids
        np.testing.assert_allclose([found[path] for path in expected], list(expected.values()), atol=1e-3)


def agreed(oracle: Oracle, target: Target, ids: list[int], draft: Draft, width: int) -> int:
    """How many tokens deep the draft of an adapter is, of which each is what torch says."""
    at: list[tuple[int, ...]] = []
    for token, parent, p in zip(draft.tokens, draft.parents, draft.p, strict=True):
        above = at[parent] if parent >= 0 else ()
        best = oracle.after(target, ids, above).topk(16)
        rank = best.indices.tolist().index(token)
        assert rank < width
        assert abs(float(best.values.softmax(-1).clamp(0.02, 0.98)[rank]) - p) < 1e-3
        at.append((*above, token))
    return max((len(path) for path in at), default=0)


@pytest.mark.parametrize("case", ADAPTERS, indirect=True)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("width", [1, 3])
def test_guesses_of_an_adapter_are_those_of_torch(
    case: tuple[str, Oracle, Bundle], model: tuple[Target, Path], engine: str, width: int
) -> None:
    """Each token of a draft is among the likeliest after its path, and as likely as torch says; of one guess a level
    it is the likeliest."""
    kind, oracle, bundle = case
    compared = drafts_of(kind, bundle, engine, {"width": str(width), "trim": "1", "gamma": "4"})
    assert max(agreed(oracle, model[0], ids, draft, width) for ids, draft in compared) >= 2


def test_an_adapter_reads_the_states_of_its_own_accepted_drafts(tmp_path: Path) -> None:
    """Where the target's later layers do nothing most is accepted, and verification never begins anew."""
    made = target()
    with torch.no_grad():
        for layer in made.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    made.save_pretrained(tmp_path / "checkpoint")
    export(str(tmp_path / "checkpoint"), tmp_path / "bundle", ExportOptions(weights="f32", check=False))
    oracle = kangaroo()
    oracle.tensors["norm.weight"] = made.model.norm.weight.detach().clone()
    oracle.tensors["layers.0.self_attn.o_proj.weight"] *= 0.1
    bundle, _ = add_draft(Bundle.open(tmp_path / "bundle"), oracle.save(tmp_path / "draft"))
    runtime = open_runtime(ENGINES[-1], bundle, RuntimeOptions(threads=1))
    drafter = make_drafter("kangaroo", DrafterContext(runtime, bundle, lambda: None), {"trim": "1"})  # type: ignore[arg-type, return-value]
    contexts = [
        Context(list(PROMPT), len(PROMPT), runtime.new_cache(160), None, np.random.default_rng(7)) for _ in "ab"
    ]
    config, stats, trace = GenerationConfig(max_tokens=80), Stats(), list[StepTrace]()
    plain = [int(t) for t in decode(runtime, contexts[0], config, Off())]
    found = [int(t) for t in decode(runtime, contexts[1], config, drafter, stats, trace)]
    assert found == plain
    assert left(contexts[1]) == left(contexts[0])
    assert stats.accepted > 40
    assert stats.calls < 45
    text, at = [*PROMPT, *plain], len(PROMPT)
    for turn in trace:
        if turn.draft.tokens:
            assert turn.draft.blocks == range(4, 16)
            agreed(oracle, Target(made), text[:at], turn.draft, 3)
        at += len(turn.step.picked)


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_stay_as_they_are(case: tuple[str, Oracle, Bundle], engine: str) -> None:
    kind, _, bundle = case
    if kind in LOSSY:
        pytest.skip("lossy: another text")
    opened_model = edgedec.open(bundle.path, engine=engine)
    plain = [int(t) for t in opened_model.session(speculate="off").tokens(PROMPT, max_tokens=30)]
    session = opened_model.session(speculate=f"{kind}:fixed=6")
    assert [int(t) for t in session.tokens(PROMPT, max_tokens=30)] == plain
    assert session.report()["drafters"][kind]["proposed"] > (5 if kind in ("kangaroo", "m2r2") else 20)


class Late(BaseDrafter):
    """A drafter that sees all of the text, and drafts from a length on."""

    def __init__(self, drafter: Drafter, start: int) -> None:
        self.drafter, self.start, self.drafted = drafter, start, 0
        self.outputs, self.reads = drafter.outputs, drafter.reads

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None] | None:
        return self.drafter.read(context, rows, result)

    def observe(self, step: StepResult) -> None:
        self.drafter.observe(step)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        if len(context.ids) < self.start:
            return Draft()
        proposal = self.drafter.propose(context, nodes, min_path_prob)
        draft = proposal if isinstance(proposal, Draft) else (yield from proposal)
        self.drafted += len(draft.tokens)
        return draft


@pytest.mark.parametrize(
    "case", ["chimera", "eagle", "eagle3", "falcon", "falcon of blocks of three", "hydra++", "longspec"], indirect=True
)
def test_drafts_that_begin_late_fit_beside_the_text(case: tuple[str, Oracle, Bundle]) -> None:
    """Nothing was drafted for long, and the text is nearly as long as the head's context: where the states of all of it
    and a draft do not fit together, the head begins at a later token."""
    kind, _, bundle = case
    runtime = open_runtime(ENGINES[-1], bundle, RuntimeOptions(threads=1))
    host = DrafterContext(runtime, bundle, lambda: None)  # type: ignore[arg-type, return-value]
    config, full = GenerationConfig(max_tokens=128 - len(PROMPT)), bundle.spec.context_length
    assert full == 128
    plain = list(decode(runtime, Context(list(PROMPT), len(PROMPT), runtime.new_cache(full)), config, Off()))
    for start in (100, 105, 110, 113, 116):
        drafter = Late(make_drafter(kind, host, {}), start)
        context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(full))
        assert list(decode(runtime, context, config, drafter)) == plain
        assert drafter.drafted > 20, start
