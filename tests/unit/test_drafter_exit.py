"""Leaving early: the text stays what it was, nothing is computed twice, and the exit is chosen by what it was worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from drafting import PROMPT, SAMPLINGS, draft_of, host, left, run, saved
from numpy.typing import NDArray

import edgedec
from edgedec.cache.rows import Rows
from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import Draft, DrafterContext, make_drafter
from edgedec.drafters._slices import exit_adapters, shadows
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters._slices.shadows import Shadows
from edgedec.drafters._slices.stack import Record, confidence, judged, payoff
from edgedec.drafters.exit import Exit
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, CallResult, Hidden
from edgedec.testing.conformance.models import MODELS
from edgedec.testing.fakes import FakeRuntime, random_reference, tiny_layer, tiny_spec
from edgedec.trees.merge import is_chain

LAYERS = 8
SPEC = tiny_spec(n_layers=LAYERS, context_length=512)
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


@pytest.fixture(autouse=True)
def proportional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost what their multiply-adds say: the seconds of a fake say nothing."""
    monkeypatch.setattr(SliceCosts, "add", lambda *args: None)
    monkeypatch.setattr(shadows, "_SHARE", 1e9)


class Shallow(FakeRuntime):
    """All is said after `deep` layers: the blocks after them do nothing. `work`: rows run by block."""

    def __init__(self, deep: int = LAYERS, seed: int = 0) -> None:
        super().__init__(SPEC, seed=seed, spread=60.0)
        self.deep, self.work = deep, Counter[int]()

    def run_block(self, b: int, hidden: Hidden, call: Call, span: tuple[int, int]) -> NDArray[np.float32] | None:
        self.work[b] += call.rows.count
        return super().run_block(b, hidden, call, span) if b < 2 * self.deep else None


def seen(picked: Sequence[int]) -> StepResult:
    return StepResult(Rows.chain([0] * len(picked), 0), 0, range(len(picked)), picked, CallResult(), 0.001)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("deep", [2, LAYERS])
@pytest.mark.parametrize("layer", ["0", "1", "2", "7"])
@pytest.mark.parametrize("width", ["1", "3"])
def test_the_text_stays_and_nothing_is_computed_twice(width: str, layer: str, deep: int, sampling: str) -> None:
    plain, runtime = Shallow(deep), Shallow(deep)
    expected, context, _, _ = run(plain, Off(), sampling=SAMPLINGS[sampling])
    drafter = make_drafter("exit", host(runtime), {"layer": layer, "width": width})
    found, drafted, stats, trace = run(runtime, drafter, sampling=SAMPLINGS[sampling])
    assert found == expected
    assert left(drafted) == left(context)
    rows = sum(len(turn.step.rows) for turn in trace)
    assert runtime.work == dict.fromkeys(range(2 * LAYERS), rows)
    if width == "3" and (layer, deep) == ("2", 2):
        assert any(not is_chain(turn.draft) for turn in trace)
    if width == "1" and layer == "2" and deep == 2 and sampling == "greedy":
        assert stats.calls < 0.4 * len(found)
        assert stats.proposed == stats.accepted
        assert runtime.work == plain.work


def test_the_first_rounds_only_look_and_cost_nothing_but_the_head() -> None:
    plain, runtime = Shallow(2), Shallow(2)
    run(plain, Off(), max_tokens=4)
    drafter = make_drafter("exit", host(runtime))
    _, _, stats, trace = run(runtime, drafter, max_tokens=4)
    # Each exit's state of each call is read at the next one. No room is left after the last token.
    assert [len(turn.step.result.hidden) for turn in trace] == [6] * 3 + [0]
    assert drafter.report()["compared"] == 6 * 2
    assert stats.proposed == 0
    assert runtime.work == plain.work


@pytest.mark.parametrize(("deep", "best"), [(1, 1), (3, 3), (4, 4)])
def test_the_exit_is_the_first_that_knows(deep: int, best: int) -> None:
    runtime = Shallow(deep)
    drafter = make_drafter("exit", host(runtime))
    _, _, stats, _ = run(runtime, drafter, max_tokens=60)
    report = drafter.report()
    assert report["layer"] == best
    assert report["length"] > 1
    assert report["rates"][str(best)] > 0.9
    assert stats.accepted > 20


def test_where_no_exit_knows_nothing_is_drafted_and_it_still_looks() -> None:
    runtime = Shallow()
    drafter = make_drafter("exit", host(runtime), {"width": "1"})
    _, _, stats, trace = run(runtime, drafter, max_tokens=100)
    assert drafter.report()["length"] == 0
    assert stats.proposed < 30
    looks = [turn for turn in trace[20:] if turn.step.result.hidden]
    assert len(looks) == 10
    assert not any(turn.draft.tokens for turn in trace[40:])


def test_the_exit_in_use_is_looked_at_where_it_guessed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last guess of a draft its state is read as the other exits' are: it is in the draft."""
    looked, add = list[Hidden](), Shadows.add

    def noted(self: Shadows, place: int, states: Sequence[Hidden], token: int) -> None:
        if place == drafter._depths.chosen:
            looked.append(states[-1])
        add(self, place, states, token)

    monkeypatch.setattr(Shadows, "add", noted)
    runtime = Shallow(3)
    drafter = make_drafter("exit", host(runtime))
    assert isinstance(drafter, Exit)
    _, _, _, trace = run(runtime, drafter, max_tokens=60)
    made = [turn.draft.hidden for turn in trace if turn.draft.hidden is not None]
    assert sum(any(np.shares_memory(state, hidden) for hidden in made) for state in looked) > 3


def test_it_changes_the_exit_when_the_text_does() -> None:
    runtime = Shallow(4)
    drafter = make_drafter("exit", host(runtime))
    run(runtime, drafter, max_tokens=100)
    runtime.deep = 1
    for _ in range(12):
        run(runtime, drafter, max_tokens=150)
    assert drafter.report()["layer"] == 1


def test_an_exit_that_overstates_itself_drafts_less_and_less() -> None:
    runtime = Shallow()
    drafter = make_drafter("exit", host(runtime), {"layer": "2", "width": "1"})
    _, _, stats, trace = run(runtime, drafter, max_tokens=60)
    sizes = [len(turn.draft.tokens) for turn in trace]
    assert sizes[0] >= 2
    assert sum(sizes[-20:]) <= sum(sizes[:20])
    assert sum(sizes[20:]) < 1.2 * len(sizes[20:])
    assert stats.calls > 50


def test_while_the_prompt_is_read_nothing_is_drafted() -> None:
    prompt = [i * i % 13 for i in range(300)]
    runtime = Shallow(2)
    drafter = make_drafter("exit", host(runtime), {"layer": "2"})
    found, _, _, trace = run(runtime, drafter, prompt, capacity=400, max_tokens=20)
    assert trace[0].draft.hidden is None
    assert not trace[0].draft.tokens
    assert trace[1].draft.tokens
    assert found == run(Shallow(2), Off(), prompt, capacity=400, max_tokens=20)[0]


def test_a_short_prompt_is_drafted_behind_at_once() -> None:
    runtime = Shallow(2)
    _, _, _, trace = run(runtime, make_drafter("exit", host(runtime), {"layer": "2"}), list(range(13)) * 2)
    draft = trace[0].draft
    assert draft.tokens
    assert draft.hidden is not None
    assert draft.blocks == range(4, 16)
    assert len(draft.hidden) == 26 + len(draft.tokens)


@pytest.mark.parametrize("layer", ["0", "2"])
def test_a_context_fills_to_its_end(layer: str) -> None:
    runtime = Shallow(2)
    drafter = make_drafter("exit", host(runtime), {"layer": layer})
    found, context, stats, _ = run(runtime, drafter, capacity=32, max_tokens=None)
    expected, plain, other, _ = run(Shallow(2), Off(), capacity=32, max_tokens=None)
    assert (found, left(context), stats.finish) == (expected, left(plain), other.finish)
    assert stats.finish == "context"
    assert stats.accepted >= 3


def test_no_more_than_asked_and_nothing_unlikely_is_drafted() -> None:
    runtime = Shallow(2)
    drafter = make_drafter("exit", host(runtime), {"layer": "2", "gamma": "4", "width": "1"})
    context = Context(list(PROMPT), 5, runtime.new_cache(64))

    def propose(nodes: int, min_path_prob: float = 0.0) -> Draft:
        return draft_of(runtime, drafter.propose(context, nodes, min_path_prob))

    assert len(propose(3).tokens) == 3
    assert len(propose(9).tokens) == 4
    assert not propose(0).tokens
    unlikely = propose(5, 0.99)
    assert not unlikely.tokens
    assert unlikely.hidden is not None
    assert context.cache.length == 0


def test_on_real_arithmetic_the_text_stays() -> None:
    spec = tiny_spec(layers=(tiny_layer(), tiny_layer(window=4), tiny_layer(), tiny_layer()))
    for seed in range(3):
        runtime = random_reference(spec, seed)
        expected = run(runtime, Off(), capacity=64, max_tokens=30)[0]
        drafter = make_drafter("exit", host(runtime), {"layer": "3", "threshold": "0"})
        found, _, stats, _ = run(runtime, drafter, capacity=64, max_tokens=30)
        assert found == expected
        assert stats.proposed > 0


@needs_native
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kv", ["f32", "int8"])
@pytest.mark.parametrize("options", [{"layer": "4"}, {"layer": "10", "threshold": "0"}, {}])
def test_on_nano_text_and_cache_are_those_of_plain_decoding(options: dict[str, str], kv: str, sampling: str) -> None:
    model = edgedec.open("nano", engine="native", threads=1, kv=kv)
    drafter = make_drafter("exit", DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), options)
    prompt, ask = model.tokenizer.encode("Once upon a time"), {"max_tokens": 80, "sampling": SAMPLINGS[sampling]}
    expected, context, _, _ = run(model.runtime, Off(), prompt, **ask)
    found, drafted, stats, trace = run(model.runtime, drafter, prompt, **ask)
    assert found == expected
    assert left(drafted) == left(context)
    assert any(turn.draft.hidden is not None for turn in trace)
    assert stats.proposed > 0 or not options


@needs_native
def test_a_session_speaks_as_without() -> None:
    model = edgedec.open("nano", engine="native", threads=1)
    texts, caches = [], []
    for spec in ("off", "exit:layer=4"):
        session = model.session(speculate=spec)
        texts.append("".join(session.generate("Tom had a big red ball.", max_tokens=60, ignore_eos=True)))
        caches.append(saved(session._context.cache))
    assert texts[0] == texts[1]
    assert caches[0] == caches[1]


def test_the_reference_says_the_same() -> None:
    model = edgedec.open("nano", engine="reference", kv="f32")
    drafter = make_drafter("exit", DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), {"layer": "7"})
    prompt = model.tokenizer.encode("Once upon a time")
    expected = run(model.runtime, Off(), prompt, max_tokens=12)[0]
    assert run(model.runtime, drafter, prompt, max_tokens=12)[0] == expected


def test_an_adapter_stands_before_the_head_of_its_layer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def adapt(hidden: Hidden) -> list[Hidden]:
        asked.append(hidden.shape)
        return [hidden]

    monkeypatch.setattr(exit_adapters, "open_head", lambda bundle, interface: SimpleNamespace(run=adapt))
    runtime = Shallow(2)
    with_head = host(runtime, {"exit": SimpleNamespace(layer=7)})
    drafter = make_drafter("exit", with_head)
    assert "7" in drafter.report()["rates"]
    assert "7" not in make_drafter("exit", host(runtime)).report()["rates"]
    run(runtime, drafter, max_tokens=5)
    assert set(asked) == {(1, SPEC.hidden_size)}
    before = len(asked)
    assert before >= 3
    run(runtime, make_drafter("exit", with_head, {"layer": "2"}), max_tokens=5)
    assert len(asked) == before
    run(runtime, make_drafter("exit", with_head, {"layer": "7", "threshold": "0"}), max_tokens=5)
    assert len(asked) > before


def test_an_adapter_reads_no_state_with_streams_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams begin in the first of three layers and end with the last block of the second, block 13."""
    head = SimpleNamespace(run=lambda hidden: [2 * hidden])
    monkeypatch.setattr(exit_adapters, "open_head", lambda bundle, interface: head)
    streams = host(SimpleNamespace(spec=MODELS["streams"]))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="adapter exit: the state after block 6 of streams has streams beside it"):
        exit_adapters.open_adapter(streams, 1, "exit")
    assert exit_adapters.open_adapter(streams, 1, None) is None
    for layer, block in ((2, 13), (3, 15)):
        adapter = exit_adapters.open_adapter(streams, layer, "exit")
        assert adapter is not None
        assert adapter.blocks == (block,)
        assert adapter.of({block: np.array([[1.0], [2.0], [3.0]], np.float32)}, 2).tolist() == [[4.0], [6.0]]


def test_what_was_learned_goes_on() -> None:
    runtime = Shallow(3)
    drafter = make_drafter("exit", host(runtime))
    assert drafter.state() == {}
    drafter.restore({})
    run(runtime, drafter, max_tokens=60)
    twin = make_drafter("exit", host(runtime))
    twin.restore(drafter.state())
    assert twin.report()["rates"] == drafter.report()["rates"]
    assert {key: value.tolist() for key, value in twin.state().items()} == {
        key: value.tolist() for key, value in drafter.state().items()
    }
    # It chooses at once: no first looks.
    assert run(runtime, twin, max_tokens=10)[3][0].draft.tokens


def test_what_cannot_be_its_state_is_refused() -> None:
    runtime = Shallow(3)
    drafter = make_drafter("exit", host(runtime))
    run(runtime, drafter, max_tokens=20)
    good = drafter.state()
    nan = good["seen"].copy()
    nan[0, 1] = np.nan
    bad = [
        {"layers": good["layers"]},
        good | {"layers": good["layers"] + 1},
        good | {"seen": good["seen"][:, :2]},
        good | {"seen": -good["seen"]},
        good | {"seen": good["seen"][:, ::-1] * [1, 1, 99]},
        good | {"seen": nan},
    ]
    for state in bad:
        with pytest.raises(UsageError, match="drafter exit: the state kept"):
            drafter.restore(state)
    assert drafter.state()["seen"].tolist() == good["seen"].tolist()


@pytest.mark.parametrize(
    "options", [{"layer": "8"}, {"layer": "-1"}, {"gamma": "0"}, {"threshold": "1.5"}, {"threshold": "nan"}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="drafter exit: "):
        make_drafter("exit", host(Shallow()), options)


def test_a_model_of_one_layer_has_no_exit() -> None:
    runtime = FakeRuntime(tiny_spec(n_layers=1))
    _, _, stats, _ = run(runtime, make_drafter("exit", host(runtime)), capacity=64, max_tokens=20)
    assert stats.proposed == 0


def test_an_observation_without_a_proposal_says_nothing() -> None:
    drafter = make_drafter("exit", host(Shallow()), {"layer": "2"})
    drafter.observe(seen([4, 5]))
    assert drafter.state() == {}


def test_the_parts() -> None:
    assert judged([(5, 0.9), (6, 0.8), (7, 0.7)], [5, 8]) == [(True, 0.9), (False, 0.8)]
    value, length = payoff(0.8, 0.2, 3)
    assert length == 3
    assert value == pytest.approx(2.952 / 1.6)
    assert payoff(0.1, 0.5, 6) == (pytest.approx(1.1 / 1.5), 1)
    assert confidence([1.0, 1.0]) == pytest.approx(0.5)
    assert confidence([50.0, 0.0]) == 0.98
    assert confidence([float("nan"), 0.0]) == 0.02
    record = Record()
    assert record.rate == 0.5
    record.add(True, 0.9)
    assert record.rate == 0.75, "one guess of one, and half of another"
    record = Record()
    for _ in range(200):
        record.add(False, 0.9)
    assert record.rate < 0.05
    assert record.trust < 0.05
