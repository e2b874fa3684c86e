"""No call without a draft, and no drafter that proposes nothing, is without a reason: in reports, commands, metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import decode
from numpy.typing import NDArray
from python_steps import python_steps
from typer.testing import CliRunner, Result

import edgedec
from edgedec.bench.trace import Tape
from edgedec.cli import _app
from edgedec.cli._drafting import drafting_lines, names
from edgedec.decoding import host_time
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import ConstraintHooks
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import Stats
from edgedec.drafters import BaseDrafter, Draft, Drafter, Effort, forced
from edgedec.drafters.forced import Forced
from edgedec.server.engine import EngineThread
from edgedec.server.metrics import Metrics
from edgedec.server.requests import EndEvent
from edgedec.speculation import reasons
from edgedec.speculation.bank import AUTO, NAMED, Terms
from edgedec.speculation.costs import Costs
from edgedec.speculation.decide import expected_of, unrun
from edgedec.speculation.governor import Governor
from edgedec.speculation.prices import Prices
from edgedec.speculation.reasons import TEXTS, Runs, calls_text, resting, state_text
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, tiny_spec

CALL = 4e-3
FLAT = {1: CALL, 8: 1.3 * CALL, 32: 5 * CALL}
# Each row costs half a call.
DEAR = {1: CALL, 2: 1.5 * CALL, 32: 16.5 * CALL}
PROMPT = "Once upon a time"


class Still(Costs):
    """The fake runtime's own times mean nothing."""

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        return False


class Guess(BaseDrafter):
    """One token, with this chance, after `seconds` of work; `effort` as declared."""

    def __init__(self, chance: float, effort: Effort | None = None, seconds: float = 0.0) -> None:
        self.chance, self.effort, self.seconds = chance, effort, seconds

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        until = host_time.perf_counter() + self.seconds
        while self.seconds and host_time.perf_counter() < until:
            pass
        if not nodes or not self.chance:
            return Draft()
        return Draft.chain([12 if context.ids[-1] != 12 else 11], [self.chance])


def governed(drafter: Drafter, costs: dict[int, float], terms: Terms = AUTO, fixed: int = 0) -> Governor:
    return Governor([("d", drafter)], lambda: Still(costs), fixed, terms=terms)


def idle(seconds: float = 1e-4) -> Governor:
    """Of a drafter without guesses; with much to lose, so that a busy machine makes no difference."""
    governor = governed(Guess(0.0, seconds=seconds), FLAT)
    governor.account.own = 1.0
    return governor


def run(
    drafter: Drafter, n: int = 60, constraint: Any = None, trace: list[StepTrace] | None = None
) -> tuple[dict[str, Any], Stats]:
    """The report after n tokens."""
    runtime, stats = FakeRuntime(tiny_spec(context_length=2048)), Stats()
    context = Context([1, 2, 3], 3, runtime.new_cache(700), rng=np.random.default_rng(5))
    config = GenerationConfig(max_tokens=n, constraint=constraint)
    assert len(list(decode(runtime, context, config, drafter, stats, trace))) == n
    return drafter.report(), stats


def whole(n: int = 60) -> list[int]:
    runtime = FakeRuntime(tiny_spec(context_length=2048))
    context = Context([1, 2, 3], 3, runtime.new_cache(700), rng=np.random.default_rng(5))
    return [1, 2, 3, *map(int, decode(runtime, context, GenerationConfig(max_tokens=n), Guess(0.0)))]


# ── the states of a drafter ──


@pytest.mark.usefixtures("ticking")
def test_refused_has_the_numbers() -> None:
    report, stats = run(governed(Guess(0.5), DEAR), 12)
    facts = report["drafters"]["d"]
    assert stats.proposed == 0
    assert facts["state"] == "refused"
    assert facts["asked"] > 0
    assert 0 < facts["expected"] < facts["needed"] == 1.2
    assert report["calls"]["refused"] > 0
    assert re.match(r"refused: [01]\.\d\dx expected, needs 1\.2x", state_text(facts))


@pytest.mark.usefixtures("ticking")
def test_used_after_guesses_ran() -> None:
    report, stats = run(governed(PerfectDrafter(whole()), FLAT))
    facts = report["drafters"]["d"]
    assert stats.accepted > 20
    assert facts["state"] == "used"
    assert facts["accepted"] == stats.accepted
    assert "expected" not in facts
    assert state_text(facts).startswith(f"used: {stats.accepted} of {stats.proposed} guesses accepted; a try takes")


@pytest.mark.usefixtures("ticking")
def test_waits_after_tries_without_a_guess() -> None:
    report, _ = run(idle(1e-3), 60)
    facts = report["drafters"]["d"]
    assert facts["state"] == "waits"
    assert facts["wait"] > 0
    assert report["calls"]["no_guess"] == facts["asked"] > 3
    assert report["calls"]["waiting"] > 4
    assert re.fullmatch(r"waits \d+ calls: a try takes .* ms and brings 0 ms, no guess yet", state_text(facts))


@pytest.mark.usefixtures("ticking")
def test_hopeless_is_not_tried() -> None:
    report, _ = run(governed(Guess(0.9, Effort(4, 1.2)), FLAT))
    facts = report["drafters"]["d"]
    assert (facts["state"], facts["asked"]) == ("hopeless", 0)
    assert state_text(facts) == "hopeless: even with all guesses right it takes longer than plain decoding"


@pytest.mark.usefixtures("ticking")
def test_unopened_while_a_try_costs_more_than_may_be_lost() -> None:
    report, stats = run(governed(Guess(0.9, Effort(4, 0.5)), FLAT), 30)
    facts = report["drafters"]["d"]
    assert (facts["state"], facts["asked"], stats.proposed) == ("unopened", 0, 0)
    assert report["calls"] == {"prompt": 1, "bank": 28, "no_room": 1} or report["calls"]["bank"] >= 28
    assert re.fullmatch(r"unopened: not tried yet, a try takes .* ms and .* ms may be lost now", state_text(facts))


@pytest.mark.usefixtures("ticking")
def test_a_used_up_balance_is_the_cause_also_for_named_drafters() -> None:
    governor = governed(Guess(0.0), FLAT, NAMED)
    run(governor, 4)
    governor.account.bank.add(-9.0)
    report, _ = run(governor, 40)
    assert report["calls"]["bank"] > 30
    assert "paused while the balance is used up" in state_text(report["drafters"]["d"] | {"state": "used"})


@pytest.mark.usefixtures("ticking")
def test_no_wait_applies_to_a_named_drafter() -> None:
    report, stats = run(governed(Guess(0.0), FLAT, NAMED), 40)
    facts = report["drafters"]["d"]
    assert facts["asked"] >= stats.calls - 3 > 30
    assert (facts["state"], facts["wait"]) == ("used", 0)
    assert state_text(facts).startswith(f"used: no guess in {facts['asked']} tries")


def test_a_named_drafter_waits_while_the_balance_is_used_up() -> None:
    governor = governed(Guess(0.0), FLAT, NAMED)
    run(governor, 4)
    governor.account.own = 1.0
    governor.members[0].wait = 50
    found = []
    for spent in (0.0, -9.0):
        governor.account.bank.add(spent)
        facts = governor.report()["drafters"]["d"]
        assert (facts["bank_s"] > 0) == (not spent)
        found.append((facts["state"], facts["wait"] > 0))
    assert found == [("used", False), ("waits", True)]


def test_fixed_drafts_are_used_whatever_they_cost() -> None:
    report, stats = run(governed(Guess(0.5), DEAR, fixed=2), 20)
    facts = report["drafters"]["d"]
    assert (facts["state"], facts["proposed"]) == ("used", stats.proposed)
    assert facts["asked"] == facts["proposed"] > 10


def test_lately_none_of_its_guesses_ran() -> None:
    it = Runs()
    assert not it.refused
    it.add(False, False)
    assert not it.refused, "it had no guess"
    it.add(True, False, reasons.REFUSED, 1.04)
    assert it.refused
    it.add(True, True)
    it.add(True, False, reasons.REFUSED, 1.1)
    assert not it.refused, "one ran a moment ago"
    for _ in range(8):
        it.add(False, False)
    assert it.refused
    assert it.facts(1.2) == {"state": "refused", "why": "refused", "expected": 1.1, "needed": 1.2}
    for _ in range(32):
        it.add(False, False)
    assert not it.refused, "its last guess was long ago"
    assert (it.proposals, it.guessed) == (44, 3)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"why": "refused", "expected": 1.04}, "refused: 1.04x expected, needs 1.2x"),
        ({"why": "refused", "expected": 1.04, "wait": 64}, "refused: 1.04x expected, needs 1.2x; waits 64 calls"),
        ({"why": "refused", "expected": 1.5}, "refused: other guesses came first"),
        ({"why": "bank", "expected": 1.5}, f"refused: {TEXTS['bank']}"),
        ({"why": "constraint", "expected": None}, f"refused: {TEXTS['constraint']}"),
    ],
)
def test_a_refusal_in_words(facts: dict[str, Any], text: str) -> None:
    assert state_text({"state": "refused", "needed": 1.2} | facts) == text


def test_what_guesses_bring_for_their_cost() -> None:
    prices = Prices(1.0, 1.0, [0.0, 0.5, 1.0], 0.0, 1, 0.0)
    assert expected_of(prices, [0.1, 0.7], 1.0) == pytest.approx(1.4)
    assert expected_of(prices, [0.7], 0.5) == pytest.approx(0.7), "by the trust in them"
    assert expected_of(prices, [0.9, 0.9], 1.0) == pytest.approx(1.8)
    assert expected_of(prices, [], 1.0) == 0.0
    assert expected_of(None, [0.7], 1.0) is None


# ── the calls without drafts ──


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("n", [1, 2, 17, 60, 111])
@pytest.mark.parametrize("chance", [0.0, 0.2, 0.95])
def test_the_calls_add_up(n: int, chance: float) -> None:
    governor, calls = governed(Guess(chance), FLAT), 0
    for _ in range(3):
        report, stats = run(governor, n)
        governor.reset()
        calls += stats.calls
        assert report["silent"] == sum(report["calls"].values())
        assert report["silent"] + sum(report["sizes"].values()) == calls
        assert governor.report()["silent"] == report["silent"]
        assert "0" not in report["sizes"]
        assert all(report["calls"].values())
        assert set(report["calls"]) <= set(TEXTS)


def test_costs_that_are_unknown_are_named() -> None:
    report, stats = run(governed(Guess(0.9), {}), 9)
    assert report["calls"]["measuring"] == stats.calls - 1
    assert state_text(report["drafters"]["d"]) == "unopened: not tried yet"


def test_why_none_of_the_guesses_runs() -> None:
    assert unrun(0, True, 4, 0) == "no_guess"
    assert unrun(3, False, 0, 0) == "bank"
    assert unrun(3, True, 4, 0) == "constraint"
    assert unrun(3, True, 4, 3) == "refused"
    assert unrun(3, True, 0, 0) == "refused", "no row of this host would pay"


class Forbids:
    """Every text is allowed, and no draft; `slow`, or by `allowed`."""

    def __init__(self, slow: bool, forced: Sequence[int] = ()) -> None:
        self.slow, self._forced, self.done = slow, forced, False

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_]:
        return np.ones(13, bool)

    def allowed(self, tokens: Sequence[int], parents: Sequence[int], seconds: float) -> Sequence[bool]:
        return [False] * len(tokens)

    def accept(self, token: int) -> None:
        pass

    def forced(self) -> Sequence[int]:
        return self._forced

    def reset(self) -> None:
        pass


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("slow", [True, False])
def test_a_constraint_that_forbids_drafts_is_the_reason(slow: bool) -> None:
    report, stats = run(governed(PerfectDrafter(whole()), FLAT, NAMED), 40, Forbids(slow))
    assert stats.proposed == 0
    assert report["calls"]["constraint"] >= 30
    assert report["calls"].get("no_room", 0) <= 1
    if not slow:
        assert state_text(report["drafters"]["d"]) == f"refused: {TEXTS['constraint']}"


def test_slow_masks_are_not_taken_for_a_full_context() -> None:
    context = Context([1, 2], 2, FakeRuntime().new_cache(9))
    context.hooks = ConstraintHooks(slow=lambda: True)
    governor = governed(Guess(0.9), FLAT)
    assert governor.propose(context, 0, 0.0) == Draft(why=TEXTS["constraint"])
    assert governor.report()["calls"] == {"constraint": 1}


@pytest.mark.usefixtures("ticking")
def test_calls_with_forced_tokens_are_not_calls_without_drafts() -> None:
    drafter = Forced(governed(Guess(0.0), FLAT))
    report, stats = run(drafter, 40, Forbids(False, [5, 6]))
    facts = report["drafters"]["forced"]
    assert facts["asked"] > 3
    assert facts["state"] == "used"
    assert report["silent"] == sum(report["calls"].values())
    assert report["silent"] + sum(report["sizes"].values()) == stats.calls
    assert report["calls"]["no_room"] == 1, "the last one"
    assert (forced._NO_ROOM, forced._USED) == (reasons.NO_ROOM, reasons.USED)


def test_the_tables_of_the_runtime_name_the_balance(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = edgedec.open(nano, threads=1)
    if not model.runtime.capabilities.batch_invariant:
        pytest.skip("tables of the CPU engine")
    python_steps(model.runtime)
    monkeypatch.setattr(Governor, "_within", lambda self, nodes, prices: 0)
    monkeypatch.setattr("edgedec.speculation.governed.risked", lambda left, first: 1.0)
    monkeypatch.setattr("edgedec.speculation.record.DrafterRecord.ready", lambda self, prices: True)
    session = model.session(speculate="copy")
    stats = [*session.tokens(model.tokenizer.encode(f"{PROMPT} there was a cat. " * 4), max_tokens=40)]
    calls = session.report()["calls"]
    assert len(stats) > 20
    assert calls["bank"] > 0, "a repeated text has guesses"
    assert calls["no_guess"] > 0, "and not all of it does"


# ── lines of --stats ──


def test_the_lines_name_every_drafter() -> None:
    stats = {"proposed": 18, "accepted": 5, "tokens_per_call": 1.05, "decode_s": 2.0, "forward_s": 1.0}
    copy = {"state": "waits", "wait": 64, "takes_s": 2.1e-4, "gain_s": 5e-5, "proposed": 18, "accepted": 5}
    report = {
        "silent": 91,
        "calls": {"no_guess": 11, "waiting": 80},
        "sizes": {"4": 4},
        "drafters": {
            "copy": copy,
            "recycling": {"state": "refused", "why": "refused", "expected": 1.04, "needed": 1.2, "proposed": 0},
            "eagle3": {"state": "hopeless", "proposed": 0},
        },
    }
    assert drafting_lines(stats | {"speculation": report}) == [
        "drafted 18, accepted 5, 1.05 tokens a call; 50% of the time in calls; session so far: drafts of 4 tokens 4x",
        "silent 91 of 95 calls: waiting 80, no_guess 11",
        "copy: waits 64 calls: a try takes 0.21 ms and brings 0.05 ms",
        "recycling: refused: 1.04x expected, needs 1.2x",
        "eagle3: hopeless: even with all guesses right it takes longer than plain decoding",
    ]
    assert drafting_lines(stats | {"speculation": {}}) == []


def test_names_of_drafters() -> None:
    assert names("off") == names("auto") == []
    assert names("auto+copy:fixed=4") == ["copy"]
    assert calls_text({"sizes": {"2": 3}}) == "silent 0 of 3 calls"


# ── commands ──


def call(verb: str, nano: Path, *args: object) -> Result:
    result = CliRunner().invoke(_app.app, [verb, "-m", str(nano), "-p", PROMPT, "-t", "1", *map(str, args)])
    assert result.exit_code == 0, result.stderr
    return result


def test_stats_have_a_line_for_each_drafter(nano: Path) -> None:
    said = call("run", nano, "-n", 30, "--temp", 0, "--no-echo", "--stats").stderr.splitlines()
    drafters = edgedec.open(nano, threads=1).session().report()["drafters"]
    if not drafters:
        pytest.skip("an engine without drafts")
    silent = next(line for line in said if line.startswith("silent "))
    found = re.match(r"silent (\d+) of (\d+) calls: ", silent)
    assert found is not None
    assert 0 < int(found[1]) <= int(found[2])
    for name in drafters:
        assert [line for line in said if re.match(rf"{name}: (used|waits|refused|hopeless|unopened)", line)], said
    assert not [line for line in said if line.startswith("edgedec:")]


@pytest.mark.parametrize("engine", ["reference", "ort"])
def test_auto_says_that_it_is_off_and_why(nano: Path, engine: str) -> None:
    if engine == "ort":
        pytest.importorskip("onnxruntime")
    args = ("-n", 5, "--temp", 0, "--no-echo", "--engine", engine)
    said = call("run", nano, *args, "--stats").stderr.splitlines()
    assert said[-2:] == ["silent 5 of 5 calls: engine 5", f"auto: {TEXTS['engine']}"]
    result = call("run", nano, *args, "--json")
    report = json.loads(result.stdout)["stats"]["speculation"]
    assert report == {"why": "engine", "silent": 5, "calls": {"engine": 5}, "sizes": {}, "drafters": {}}
    assert result.stderr == ""
    assert json.loads(call("run", nano, *args, "--json", "--spec", "off").stdout)["stats"]["speculation"] == {}


def test_a_named_drafter_that_never_ran_makes_a_warning(nano: Path) -> None:
    args = ("-n", 1, "--temp", 0, "--no-echo")
    warned = call("run", nano, *args, "--spec", "suffix")
    assert warned.stderr.count("\n") == 1
    assert warned.stderr.startswith("edgedec: no guess of --spec suffix ran: unopened: not tried yet")
    assert "no_room 1" in warned.stderr
    assert call("run", nano, *args, "--spec", "auto").stderr == ""
    report = json.loads(call("run", nano, *args, "--spec", "suffix", "--json").stdout)
    assert report["stats"]["speculation"]["drafters"]["suffix"]["state"] == "unopened"
    used = call("run", nano, "-n", 40, "--temp", 0, "--no-echo", "--spec", "trigram:fixed=4", "--json")
    assert json.loads(used.stdout)["stats"]["speculation"]["drafters"]["trigram"]["proposed"] > 0
    assert used.stderr == ""


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_the_page_has_a_reason_for_each_call_without_a_draft(nano: Path, tmp_path: Path, engine: str) -> None:
    out = tmp_path / "trace.html"
    call("trace", nano, "-n", 30, "--temp", 0, "--engine", engine, "-o", out)
    data, texts = page_data(out), set(TEXTS.values())
    empty = [data["whys"][row[3]] for row in data["calls"] if not row[6]]
    assert len(empty) > 3
    assert set(empty) <= texts
    states = dict(data["drafters"])
    if engine == "reference":
        assert set(empty) == {TEXTS["engine"]}
        assert states == {"auto": TEXTS["engine"]}
    else:
        assert {"copy", "suffix", "recycling", "trigram"} <= set(states)
        assert all(re.match("used|waits|refused|hopeless|unopened", state) for state in states.values())


def test_calls_of_a_resting_drafter_wait() -> None:
    steps, tape = list[StepTrace](), Tape()
    report, _ = run(idle(), 60, trace=steps)
    tape.steps = steps
    tape.close()
    whys = [made["why"] for made in tape.calls]
    for code, n in report["calls"].items():
        assert whys.count(TEXTS[code]) == n
    assert report["calls"]["waiting"] > 4
    assert resting(TEXTS["bank"]) == TEXTS["bank"]
    assert resting(TEXTS["engine"]) == TEXTS["engine"]


# ── metrics ──


def test_metrics_count_by_reason_and_by_drafter() -> None:
    metrics, engines = Metrics(), dict[str, EngineThread]()
    drafters = {
        "copy": {"proposed": 9, "accepted": 4, "state": "used"},
        "eagle3": {"proposed": 0, "accepted": 0, "state": "hopeless"},
    }
    for model in ("a", "b"):
        report = {"calls": {"waiting": 30, "bank": 2}, "drafters": drafters}
        metrics.on_end(model, EndEvent(0, "eos", Stats(), drafting=report))
    metrics.on_end("a", EndEvent(0, "cancelled"))
    lines = metrics.text(engines, 1, 1).splitlines()
    assert 'edgedec_calls_without_draft_total{reason="waiting"} 60' in lines
    assert 'edgedec_calls_without_draft_total{reason="bank"} 4' in lines
    assert 'edgedec_drafter_proposed_tokens_total{drafter="copy"} 18' in lines
    assert 'edgedec_drafter_accepted_tokens_total{drafter="copy"} 8' in lines
    assert 'edgedec_drafter_proposed_tokens_total{drafter="eagle3"} 0' in lines
    assert 'edgedec_drafter_texts_total{drafter="eagle3",state="hopeless"} 2' in lines
    assert "# TYPE edgedec_drafter_texts_total counter" in lines
