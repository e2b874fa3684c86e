"""Grammars that take long to compile: given up with their clients, compiled once, never in the way of small ones."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

import edgedec
from edgedec import constraints

for package in ("starlette", "uvicorn", "httpx", "llguidance"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import serving, wait_for  # noqa: E402

from edgedec.constraints import compiling, place  # noqa: E402
from edgedec.constraints.compiling import Grammars, ManyGrammars  # noqa: E402
from edgedec.constraints.matcher import GrammarConstraint  # noqa: E402
from edgedec.constraints.remote import MatcherGroup  # noqa: E402
from edgedec.constraints.vocabulary import vocabulary  # noqa: E402
from edgedec.errors import LimitExceeded, UsageError  # noqa: E402
from edgedec.sandbox import Reply, Sandbox, stop  # noqa: E402
from edgedec.sandbox.stop import Stop  # noqa: E402
from hostile.attacks import together  # noqa: E402
from hostile.inputs import repeated  # noqa: E402
from hostile.watch import connected, request  # noqa: E402


@pytest.fixture
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


class Group:
    """A process that compiles at once what is small, and what is large when it is let."""

    def __init__(self, free: threading.Event, grown: int = 1) -> None:
        self.attempt = (-1.0, -1)
        self.free, self.dead, self.live, self._size = free, False, 1, grown

    def size(self) -> int:
        return self._size

    def compiled(self, kind: str, text: str, options: object, seconds: float = 0.0, priority: int = 0) -> Any:
        self.attempt = seconds, priority
        if text.startswith("large") and seconds:
            raise LimitExceeded("takes more processor time than it may have")
        if text.startswith("large"):
            stop.wait(self.free)
        if text.startswith("wrong"):
            stop.wait(self.free)
            raise UsageError("wrong")
        return self

    def deep_copy(self) -> Any:
        self.live += 1
        return self


def grammars(free: threading.Event, size: int = 1) -> tuple[Grammars, list[Group]]:
    made: list[Group] = []

    def new_group(kind: str) -> Any:
        made.append(Group(free, size))
        return made[-1]

    return Grammars(new_group), made


def test_equal_grammars_are_compiled_once(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, known = list[str](), vocabulary(model)

    def counted(what: str) -> Any:
        groups.append(what)
        return known.matchers(what)

    monkeypatch.setattr(known.grammars, "_new_group", counted)
    once = [(0.0, 0, threading.BoundedSemaphore())]
    monkeypatch.setattr(compiling, "_tries", once)  # one attempt, however slow the machine
    one, two = (constraints.json_schema(model, {"enum": ["shared", "once"]}) for _ in range(2))
    assert groups == ["json schema"]
    (first,) = model.tokenizer.encode('"', special=False, around=False)[-1:]
    before = two.mask(()).copy()
    one.accept(first)
    assert (two.mask(()) == before).all(), "each text goes its own way"
    assert (one.mask(()) != before).any()
    constraints.json_schema(model, {"enum": ["shared", "once"]}, whitespace="none")
    constraints.regex(model, "shared|once")
    assert groups == ["json schema", "json schema", "regex"]
    one._matcher._group._host.close()  # type: ignore[attr-defined]
    one.accept(model.tokenizer.encode("o", special=False, around=False)[-1])
    with pytest.raises(UsageError):
        one.mask(())
    assert constraints.json_schema(model, {"enum": ["shared", "once"]}).mask(()).any(), "a dead process is replaced"
    assert len(groups) == 4


def test_those_that_wait_for_an_equal_grammar_get_it_or_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    free, waits, wait = threading.Event(), [], compiling._wait
    tries = [(0.01, 0, threading.BoundedSemaphore(2)), (0.05, 10, threading.BoundedSemaphore(2))]
    monkeypatch.setattr(compiling, "_tries", tries)  # those that are wrong have no limit of time here
    monkeypatch.setattr(compiling, "_wait", lambda kind, done: (waits.append(kind), wait(kind, done)))
    found, made = grammars(free)
    got: list[str] = []

    def act(i: int) -> None:
        try:
            found.matcher("regex", "large" if i % 2 else "wrong", {})
            got.append("made")
        except UsageError as error:
            got.append(str(error))

    threads = threading.Thread(target=together, args=(8, act))
    threads.start()
    wait_for(lambda: (len(made), len(waits)) == (4, 6))  # one that is wrong, three attempts at the large one
    free.set()
    threads.join(60)
    assert sorted(got) == ["made"] * 4 + ["wrong"] * 4
    assert len(made) == 4


def test_only_the_first_attempt_has_the_priority_of_others() -> None:
    free = threading.Event()
    free.set()
    found, made = grammars(free)
    found.matcher("regex", "small", {})
    found.matcher("regex", "large", {})
    assert [group.attempt[1] for group in made] == [0, 0, 10, 19]
    seconds = [group.attempt[0] for group in made]
    assert 0 < seconds[0] == seconds[1] < seconds[2] <= 0.05
    assert not seconds[3], "as long as it may take"


def test_of_many_at_once_only_the_first_has_the_priority_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (threading.BoundedSemaphore(1) for _ in range(2))
    monkeypatch.setattr(compiling, "_tries", [(0.01, 0, first), (0.05, 12, second)])
    found, made = grammars(threading.Event())
    found.matcher("regex", "alone", {})
    with stop.turn(first) as waited:
        assert not waited
        threads = threading.Thread(target=together, args=(3, lambda i: found.matcher("regex", f"small {i}", {})))
        threads.start()
        wait_for(lambda: len(found._running) == 3)
        sleep(0.2)  # so that all of them have tried the place
    threads.join(60)
    assert [group.attempt[1] for group in made] == [0, 10, 10, 10]
    with stop.turn(second):
        free = threading.Thread(target=found.matcher, args=("regex", "large", {}), daemon=True)
        free.start()
        wait_for(lambda: len(made) == 5)
        sleep(0.2)
    wait_for(lambda: len(made) == 7)
    assert made[5].attempt == (0.05, 12), "a lower priority stays"
    made[6].free.set()
    free.join(60)


def test_a_server_starts_with_the_process_that_compiles(nano: Path, tmp_path: Path) -> None:
    """And with what the bounds of JSON have to know of the vocabulary: neither is made while texts wait."""
    shutil.copytree(nano, tmp_path / "fresh")  # a vocabulary that no other test has read
    fresh = edgedec.open(tmp_path / "fresh", threads=1)
    with serving(fresh):
        process = vocabulary(fresh)._sandbox._process
        assert process is not None
        assert process.poll() is None
        read = place.pieces.cache_info().misses
        constraints.json_schema(fresh, {"type": "integer"})
        assert vocabulary(fresh)._sandbox._process is process
        assert place.pieces.cache_info().misses == read


def test_without_constraints_a_server_starts_all_the_same(
    model: edgedec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with serving(model) as (there, _):
        assert httpx.post(f"{there}/v1/completions", json={"prompt": "A", "max_tokens": 2}).status_code == 200
        answer = httpx.post(f"{there}/v1/completions", json={**BODY, "json_schema": {"const": 3}})
        assert answer.status_code == 400
        assert "llguidance" in answer.text


def test_a_priority_is_lowered_before_the_work_begins() -> None:
    did: list[object] = []
    values = {"taken": 0, "stopped": False, "accepting": False, "wrong": "", "forced": []}
    host: Any = SimpleNamespace(
        lower=lambda priority: did.append(priority),
        send=lambda **message: did.append(message["do"]),
        receive=lambda: Reply(values, b"\xff"),
    )
    MatcherGroup("regex", host).compiled("regex", "a", {}, 0.05, 10)
    assert did == [10, "compile"]


def test_small_grammars_are_compiled_while_all_places_are_taken() -> None:
    free = threading.Event()
    found, _ = grammars(free)
    refused: list[str] = []

    def act(i: int) -> None:
        try:
            found.matcher("regex", f"large {i}", {})
        except ManyGrammars as error:
            refused.append(str(error))

    threads = threading.Thread(target=together, args=(60, act))
    threads.start()
    try:
        wait_for(lambda: len(refused) == 60 - compiling._MOST)
        assert found.matcher("regex", "small", {}) is not None
        assert "try again later" in refused[0]
    finally:
        free.set()
        threads.join(60)
    assert not found._running


def test_large_grammars_are_not_kept() -> None:
    free = threading.Event()
    small, few = grammars(free), grammars(free, size=100)
    for found, made in (small, few):
        for _ in range(3):
            found.matcher("regex", "a", {})
        for i in range(30):
            found.matcher("regex", f"b{i}", {})
        assert len(found._kept) == (compiling._KEPT if made is small[1] else 0)
    assert (len(small[1]), len(few[1])) == (31, 33)


def test_a_process_has_so_many_texts() -> None:
    found, made = grammars(threading.Event())
    for _ in range(3 * compiling._TEXTS):
        found.matcher("regex", "a", {})
    assert len(made) == 3


def test_a_stop_ends_what_is_waited_for(tmp_path: Path) -> None:
    """A worker in the midst of a request without an end: its limits would end it in half a minute."""
    guest, given_up, errors = tmp_path / "guest.py", Stop(), []
    guest.write_text("import time\ndef handle(message, blob):\n    time.sleep(600)\n")
    worker = Sandbox(guest).worker()

    def run() -> None:
        with given_up.applied(), stop.used(worker), pytest.raises(LimitExceeded) as error:
            worker.call()
        errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: given_up._workers and worker._waiting)
    given_up.end()
    thread.join(20)
    assert errors
    assert not worker.alive
    with given_up.applied(), pytest.raises(LimitExceeded, match="given up"), stop.turn(threading.Semaphore(1)):
        pass
    with given_up.applied(), pytest.raises(LimitExceeded, match="given up"):
        stop.wait(threading.Event())


def test_a_stop_ends_a_real_grammar(model: edgedec.Model) -> None:
    known, given_up, errors = vocabulary(model), Stop(), []
    found = Grammars(known.matchers)

    def run() -> None:
        with given_up.applied(), pytest.raises(UsageError) as error:
            found.matcher("regex", repeated(300), {})
        errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: given_up._workers)
    given_up.end()
    thread.join(60)
    assert errors
    assert not found._running
    assert not found._kept


def never(free: threading.Event) -> Any:
    def first(self: Grammars, kind: str, text: str, options: object) -> Any:
        try:
            stop.wait(free)
        except LimitExceeded as error:
            raise UsageError(str(error)) from None
        raise UsageError("let go by the test")

    return first


BODY = {"prompt": "Once", "json_schema": {"type": "integer"}}


def test_a_client_that_leaves_gives_its_grammar_up(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    free, known = threading.Event(), vocabulary(model).grammars
    monkeypatch.setattr(Grammars, "_first", never(free))
    try:
        with serving(model) as (place, server):
            with connected(place) as end:
                end.sendall(request("POST", "/v1/completions", {**BODY, "json_schema": {"const": "leaves"}}))
                wait_for(lambda: known._running)
            wait_for(lambda: not known._running)
            wait_for(lambda: server.metrics.requests["/v1/completions", 499] == 1)
    finally:
        free.set()


def test_a_late_grammar_is_given_up(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    free, known = threading.Event(), vocabulary(model).grammars
    monkeypatch.setattr(Grammars, "_first", never(free))
    try:
        with serving(model, seconds=0.5) as (place, _):
            answer = httpx.post(f"{place}/v1/completions", json={**BODY, "json_schema": {"const": 1}}, timeout=60)
            assert answer.status_code == 504, answer.text
            wait_for(lambda: not known._running)
    finally:
        free.set()


def test_too_many_large_grammars_are_a_429(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> Any:
        raise ManyGrammars("json schema: too many grammars that take long are being compiled; try again later")

    monkeypatch.setattr(Grammars, "_first", full)
    with serving(model) as (place, _):
        answer = httpx.post(f"{place}/v1/completions", json={**BODY, "json_schema": {"const": 2}}, timeout=60)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1


def test_a_shared_process_that_ends_just_now_is_replaced(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, left = GrammarConstraint.fork, [1]

    def dies(self: GrammarConstraint) -> GrammarConstraint:
        if left:
            left.pop()
            raise UsageError("json schema: too complex to follow further: its worker process died")
        return fork(self)

    monkeypatch.setattr(GrammarConstraint, "fork", dies)
    with serving(model) as (place, _):
        answer = httpx.post(f"{place}/v1/completions", json={**BODY, "max_tokens": 4}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert not left
        left += [1, 1]
        answer = httpx.post(f"{place}/v1/completions", json={**BODY, "max_tokens": 4}, timeout=60)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
