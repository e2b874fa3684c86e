"""Prompt rows (PPD): they guess what torch says of the text with the prompts after it, and leave no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")
import torch
from draft_checkpoints import Oracle, Target, hidden_transfer, prompt, target
from drafting import left
from loops import decode

import edgedec
from edgedec.bundle import Bundle
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import Stats
from edgedec.drafters import Draft, DrafterContext, make_drafter
from edgedec.drafters._prompting import PromptPlan
from edgedec.drafters.off import Off
from edgedec.drafters.prompt import PromptDrafter, _ends_there
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.export.drafts import add_draft
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.sampling import Sampling
from edgedec.speculation.choose import make_speculation

ENGINES = ("reference", *(["native"] if why_not() is None else []))
BEST = ENGINES[-1]
PROMPT = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77]


# The kinds whose guesses come of rows below a draft: trained embeddings, and pseudo states of a middle layer.
KINDS = {"prompt": prompt, "hiddentransfer": hidden_transfer}
Made = tuple[Target, Oracle, Bundle, str]


@pytest.fixture(scope="module", params=sorted(KINDS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, model = tmp_path_factory.mktemp("target"), target()
    model.save_pretrained(folder / "checkpoint")
    export(str(folder / "checkpoint"), folder / "bundle", ExportOptions(weights="f32", check=False, runtimes=()))
    torch.manual_seed(3)
    oracle = KINDS[request.param]()
    bundle, _ = add_draft(Bundle.open(folder / "bundle"), oracle.save(folder / "draft"))
    return Target(model), oracle, bundle, request.param


def host_of(bundle: Bundle, engine: str) -> DrafterContext:
    runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1))
    return DrafterContext(runtime, bundle, lambda: None)  # type: ignore[arg-type, return-value]


def run(host: DrafterContext, drafter: Any, n: int, **config: Any) -> tuple[list[int], Context, Stats, list[StepTrace]]:
    rng = np.random.default_rng(7)
    context, stats, trace = (
        Context(list(PROMPT), 16, host.runtime.new_cache(160), None, rng),
        Stats(),
        list[StepTrace](),
    )
    tokens = decode(host.runtime, context, GenerationConfig(max_tokens=n, **config), drafter, stats, trace)
    return [int(token) for token in tokens], context, stats, trace


@pytest.mark.parametrize("engine", ENGINES)
def test_guesses_are_those_of_torch(made: Made, engine: str) -> None:
    """After prompts, after accepted drafts, below the root and below drafted tokens."""
    target_, oracle, bundle, kind = made
    host = host_of(bundle, engine)
    plain = run(host, Off(), 40)[0]
    drafter, compared = make_drafter(kind, host), 0
    assert isinstance(drafter, PromptDrafter)
    own = drafter.propose

    def propose(context: Context, nodes: int, least: float) -> Any:
        """What is right, and something wrong beside it, with prompt rows below all of it."""
        nonlocal compared
        draft = own(context, nodes, least)
        if draft.tokens:
            for depth, level in enumerate(drafter._levels):
                expected = oracle.after(target_, context.ids[:-1], (0,) * depth).topk(8)
                assert [token for token, _ in level] == expected.indices.tolist()[: len(level)]
                np.testing.assert_allclose(
                    [p for _, p in level], expected.values.softmax(-1).clamp(0.02, 0.98)[: len(level)], atol=1e-3
                )
                compared += 1
        at = len(context.ids) - len(PROMPT)
        right = plain[at : at + 2 + at % 2][: max(nodes - 4, 0)]
        tokens = [*right, 3, 5] if right else []
        parents = [*range(-1, len(right) - 1), -1, 0] if right else []
        plan = PromptPlan([0.8**i for i in range(len(right))] + [0.05] * 2 if right else [], 12, 0.0)
        return drafter.append(context, Draft(tokens, parents), plan)

    drafter.propose = propose  # type: ignore[method-assign]
    found, context, stats, trace = run(host, drafter, 40)
    assert found == plain
    assert compared > 20
    assert stats.accepted > 15
    places = {parent for turn in trace if turn.draft.prompts for parent in turn.draft.prompts.parents}
    assert {-1, 0, 1} <= places, "below the root and below drafted tokens"
    if engine == "native":  # elsewhere the last bit depends on the rows of a call
        assert left(context) == left(run(host, Off(), 40)[1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3), Sampling(temperature=1, top_k=5)])
def test_texts_and_caches_stay(made: Made, engine: str, sampling: Sampling) -> None:
    host = host_of(made[2], engine)
    expected, plain, _, _ = run(host, Off(), 40, sampling=sampling)
    found, context, stats, trace = run(host, make_speculation(f"{made[3]}:fixed=6", host), 40, sampling=sampling)
    assert found == expected
    if engine == "native":
        assert left(context) == left(plain)
    assert stats.proposed > 60
    assert sum(len(turn.draft.prompts.parents) for turn in trace if turn.draft.prompts) > 60
    assert all(len(turn.step.rows) == 1 + len(turn.draft.tokens) for turn in trace[1:]), "prompt rows are not shown"


def test_beside_others_and_through_slides(made: Made) -> None:
    model = edgedec.open(made[2].path, engine=BEST)

    def story(speculate: str) -> tuple[list[int], Any]:
        session = model.session(speculate=speculate, context=64, on_full="slide")
        found = [int(t) for t in session.tokens(PROMPT, max_tokens=70)]
        return found + [int(t) for t in session.fork().tokens(None, max_tokens=20)], session.report()

    found, report = story(f"copy+recycling+{made[3]}:fixed=8")
    assert found == story("off")[0]
    assert report["drafters"][made[3]]["rows"] > 100
    assert report["drafters"][made[3]]["proposed"] > 30


def test_rows_stand_where_they_pay(made: Made) -> None:
    """Below what is likely to be the last token, deeper where guesses come true, none where a row costs too much."""
    drafter = make_drafter(made[3], host_of(made[2], BEST))
    assert isinstance(drafter, PromptDrafter)
    assert _ends_there([-1, 0, -1], [0.6, 0.3, 0.2]) == pytest.approx({-1: 0.2, 0: 0.3, 1: 0.3, 2: 0.2})
    for record, rate in zip(drafter._records, (0.8, 0.5, 0.1), strict=True):
        for _ in range(400):
            record.add(False, 0.5)
        record.right = rate * record.tested
    draft = Draft([5, 8], [-1, 0])
    cheap, usual, dear = (drafter._lengths(draft, PromptPlan([0.7, 0.5], 24, row)) for row in (0.001, 0.05, 0.6))
    assert cheap == {-1: 3, 0: 3, 1: 3}
    assert usual == {-1: 2, 0: 2, 1: 2} or usual == {-1: 2, 0: 1, 1: 2}
    assert dear == {}
    assert sum(drafter._lengths(draft, PromptPlan([0.7, 0.5], 4, 0.0)).values()) <= 4


def test_what_cannot_be_is_refused(made: Made, tmp_path: Path) -> None:
    import shutil

    for options, wrong in (
        ({"length": "4"}, "3 p(rompt tokens|seudo states)"),
        ({"rows": "0"}, "rows=0: must be 1 or more"),
    ):
        with pytest.raises(UsageError, match=wrong):
            make_drafter(made[3], host_of(made[2], BEST), options)
    if made[3] != "prompt":
        return
    bundle = Bundle.open(shutil.copytree(made[2].path, tmp_path / "bundle"))
    file = bundle.file(bundle.manifest.drafts["prompt"].embeddings)
    file.write_bytes(np.full(file.stat().st_size // 4, np.nan, "<f4").tobytes())
    with pytest.raises(BundleCorrupt, match="3 embeddings of 64"):
        make_drafter("prompt", host_of(Bundle.open(bundle.path), BEST))
