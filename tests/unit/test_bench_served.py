"""`edgedec bench batch --served`: what is asked of the server, what is read from its answers, what is refused."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")

from edgedec.bench import batch, served  # noqa: E402
from edgedec.bench.batch import BatchMeasured, BatchWork, Took, measure  # noqa: E402
from edgedec.bench.served import Served, Stream, stream_all  # noqa: E402
from edgedec.cli import _app  # noqa: E402
from edgedec.errors import RuntimeUnavailable  # noqa: E402

WORK = BatchWork(((1, 2), (3,), (4, 5, 6)), 4)
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    event = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@contextmanager
def answering(asked: list[Any], most: list[int]) -> Iterator[int]:
    """A server's port; each answer is the prompt's tokens as text, in two pieces. most: the connections at a time."""
    with closing(socket.create_server(("127.0.0.1", 0))) as place:
        lock, open_now = threading.Lock(), [0]

        def answer(client: socket.socket) -> None:
            with client:
                body = b""
                while not body.endswith(b"}"):
                    body += client.recv(1 << 16)
                with lock:
                    open_now[0] += 1
                    most.append(open_now[0])
                    asked.append(json.loads(body.partition(b"\r\n\r\n")[2]))
                    prompt = asked[-1]["prompt"]
                client.sendall(HEAD + chunk(str(prompt)))
                with lock:
                    open_now[0] -= 1
                client.sendall(chunk("é", "length") + DONE)

        def accept() -> None:
            for _ in WORK.prompts:
                threading.Thread(target=answer, args=(place.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield int(place.getsockname()[1])
        thread.join(10)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_prompts_are_streamed_so_many_at_a_time(size: int) -> None:
    asked: list[Any] = []
    most: list[int] = []
    with answering(asked, most) as port:
        streams = stream_all(port, WORK, size)
    assert [stream.text() for stream in streams] == [(f"{list(ids)}é", "length") for ids in WORK.prompts]
    assert sorted(body["prompt"] for body in asked) == sorted(map(list, WORK.prompts))
    greedy = {"max_tokens": 4, "temperature": 0, "repetition_penalty": 1, "ignore_eos": True, "stream": True}
    assert all({**body, **greedy} == body for body in asked)
    assert max(most) <= size


def test_gaps_are_between_arrivals_of_text() -> None:
    stream = Stream([HEAD, chunk("a"), b"", chunk("b") + chunk("c"), DONE], [0.0, 1.0, 2.0, 4.5, 9.0])
    assert stream.gaps == [3.5]
    assert stream.text() == ("abc", "")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\nlater", "edgedec serve: HTTP/1.1 429"),
        (HEAD + b'17\r\ndata: {"error": "gone"}\r\n0\r\n\r\n', "gone"),
    ],
)
def test_an_answer_that_is_no_stream_is_an_error(raw: bytes, says: str) -> None:
    with pytest.raises(RuntimeUnavailable, match=says):
        Stream([raw], [0.0]).text()


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(RuntimeUnavailable, match=r"did not start: .*no-such-model"):
        Served("no-such-model", "off", []).run(WORK, 2)


class Started(Served):
    """One that needs no process."""

    @contextmanager
    def _serving(self, work: BatchWork, size: int) -> Iterator[int]:
        yield 7


def test_a_turn_is_warmed_up_with_other_prompts_which_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[int, Any, int]] = []
    clock = iter([100.0, 103.0])

    def streams(port: int, work: BatchWork, size: int) -> list[Stream]:
        runs.append((port, work, size))
        return [Stream([HEAD, chunk("a"), chunk("b", "length")], [0.0, 1.0, 1.5]) for _ in work.prompts]

    monkeypatch.setattr(served, "stream_all", streams)
    monkeypatch.setattr(served, "perf_counter", lambda: next(clock))
    took = Started("nano", "off", []).run(WORK, 2)
    assert took == Took(3.0, ["ab"] * 3, [0.5] * 3)
    assert runs == [(7, BatchWork(((2, 1), (3,)), 4), 2), (7, WORK, 2)]


def test_a_text_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "stream_all", lambda port, work, size: [Stream([HEAD, chunk("a", "stop")], [0.0, 1.0])])
    with pytest.raises(RuntimeUnavailable, match="a text ended early: stop"):
        Started("nano", "off", []).run(WORK, 2)


class Fake:
    """tokens/s of 8 texts of 4 tokens."""

    def __init__(self, seconds: float, gaps: list[float] | None = None) -> None:
        self.took = Took(seconds, None, gaps or ())

    def run(self, work: BatchWork, size: int) -> Took:
        return self.took


def test_a_call_is_the_time_in_which_the_batch_adds_a_token_to_each_text(monkeypatch: pytest.MonkeyPatch) -> None:
    work = BatchWork(((1,),) * 8, 4)
    gaps = [0.1] * 90 + [0.5] * 10
    monkeypatch.setattr(batch, "side_by_side", lambda ours, *given: {name: Took(4.0) for name in ours})
    found = measure({"off": cast(Any, None)}, {"serve off": Fake(5.0, gaps), "other": Fake(8.0)}, [2], work, 2)
    report = found.report(["off"], {"serve off": "off", "serve auto": "auto"})
    assert report["served_over_batch"]["serve off"]["2"]["median"] == 0.8
    assert report["served_p95_calls"]["serve off"]["2"]["median"] == 2.0  # 0.5 s at 8 tokens/s, 2 texts
    assert list(report["served_over_batch"]) == ["serve off"]
    assert list(report["over_peers"]) == ["other"]
    assert report["over_peers"]["other"]["off"]["2"]["median"] == 2.0


def test_an_interrupt_keeps_gaps_of_whole_turns_only() -> None:
    found = BatchMeasured({"off": {2: [1.0]}, "serve off": {2: [1.0, 2.0]}}, {"serve off": {2: [0.1, 0.2]}})
    found.keep_whole_turns(2)
    assert found.gaps == {"serve off": {2: [0.1]}}
    assert found.interrupted


def test_nano_is_served_beside_the_batch(nano: Path) -> None:
    words = ["bench", "batch", "--prompts", "3", "-n", "24", "-r", "1", "-t", "1", "--sizes", "2", "--served"]
    result = CliRunner().invoke(_app.app, [*words, "-m", str(nano), "--spec", "off"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "serve off / batch" in result.stdout
    assert "serve off, p95 in calls" in result.stdout
    assert "identical: yes" in result.stdout
    assert "left out" not in result.stdout
