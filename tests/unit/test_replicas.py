"""`edgedec serve --replicas`: which replica is chosen, what is passed on, and what happens when one dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import metrics, serving, started, wait_for  # noqa: E402

import edgedec  # noqa: E402
from edgedec.cli._replicas import ReplicaCommand  # noqa: E402
from edgedec.errors import UsageError  # noqa: E402
from edgedec.sampling import Sampling  # noqa: E402
from edgedec.server.limits import most_body  # noqa: E402
from edgedec.server.replicas import router  # noqa: E402
from edgedec.server.replicas.balancer import Balancer, Load, ReadTexts, beginning, pieces  # noqa: E402
from edgedec.server.replicas.exchange import ReplicaGone, ask  # noqa: E402
from edgedec.server.replicas.merging import merged  # noqa: E402

# Of OpenCL devices: is it a GPU, and what it lacks.
PLACES = [(False, None), (True, None), (False, None), (True, "has the embedded profile of OpenCL only"), (True, None)]
LONG = "Once upon a time there was a girl who liked to play in the garden with her friend Tom, all day long. " * 3


def loads(n: int) -> list[Load]:
    found = [Load() for _ in range(n)]
    for load in found:
        load.up = True
    return found


# -- which one


@given(st.text(min_size=300, max_size=900), st.integers(0, 300), st.text(max_size=200))
def test_texts_that_begin_alike_have_their_first_pieces_in_common(text: str, cut: int, other: str) -> None:
    read, whole = ReadTexts(), list(pieces(text))
    read.add(whole)
    assert read.common(whole) == len(whole) >= 2
    assert read.common(list(pieces(text[:cut] + other))) >= cut // 128


def test_a_text_goes_where_its_beginning_was_read() -> None:
    balancer, first, second = Balancer(loads(3), 4), list(pieces(LONG)), list(pieces("x" * 400))
    one, two = balancer.choose(first), balancer.choose(second)
    assert one != two
    assert [balancer.choose(first) for _ in range(3)] == [one] * 3
    assert balancer.choose(second) == two
    assert balancer.loads[one or 0].matched == 3


def test_a_busy_replica_gets_no_more_than_its_slack_ahead_of_others() -> None:
    balancer, keys = Balancer(loads(2), 3), list(pieces(LONG))
    chosen = []
    for _ in range(8):
        number = balancer.choose(keys)
        assert number is not None
        balancer.loads[number].running += 1
        chosen.append(number)
        running = [load.running for load in balancer.loads]
        assert max(running) - min(running) <= 3
    assert chosen[:3] == [chosen[0]] * 3
    assert set(chosen) == {0, 1}


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60), st.integers(1, 5))
def test_only_replicas_that_are_up_are_chosen(turns: list[tuple[int, bool]], slack: int) -> None:
    balancer = Balancer(loads(4), slack)
    for k, up in turns:
        balancer.loads[k].up = up
        number = balancer.choose(list(pieces(LONG)), frozenset({3}))
        expected = {j for j in range(3) if balancer.loads[j].up}
        assert number in expected if expected else number is None


def test_what_was_read_is_bounded() -> None:
    read = ReadTexts(most=10)
    for k in range(9):
        read.add(pieces(f"{k}" * 400))
    assert len(read) == 10
    assert read.common(list(pieces("8" * 400))) == 3
    assert read.common(list(pieces("0" * 400))) == 0


def test_a_chat_begins_as_its_last_turn_did() -> None:
    turn = {"model": "nano", "messages": [{"role": "user", "content": LONG}]}
    answer = {"role": "assistant", "content": "Yes."}
    more = {"model": "nano", "messages": [{"role": "user", "content": LONG}, answer], "max_tokens": 9}
    keys = list(pieces(beginning(turn)))
    read = ReadTexts()
    read.add(keys)
    assert read.common(list(pieces(beginning(more)))) == len(keys) >= 2
    assert beginning({**turn, "adapter": "pirate"})[:60] != beginning(turn)[:60]


# -- what is passed on


def test_metrics_of_replicas_stay_in_families() -> None:
    text = "# HELP a_total A.\n# TYPE a_total counter\na_total 3\n# HELP h H.\n# TYPE h histogram\n"
    text += 'h_bucket{le="1"} 1\nh_sum 0.5\nh_count 1\n'
    lines = merged({0: text, 1: text}).splitlines()
    assert lines[:4] == [
        "# HELP a_total A.",
        "# TYPE a_total counter",
        'a_total{replica="0"} 3',
        'a_total{replica="1"} 3',
    ]
    assert lines.count("# TYPE h histogram") == 1
    assert 'h_bucket{replica="1",le="1"} 1' in lines
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    families = list(parser.text_string_to_metric_families(merged({0: text, 1: text})))
    assert {family.name: len(family.samples) for family in families} == {"a": 2, "h": 6}


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    """The port of a server that answers this to everything and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _asked(answer: bytes) -> tuple[int, bytes]:
    async with answering(answer) as port, ask(port, "POST", b"/x", [], b"{}") as found:
        return found.status, await found.body()


@pytest.mark.parametrize(("given", "largest"), [(0, 1000), (50, 50)])
def test_a_router_takes_as_much_as_its_replicas(
    given: int, largest: int, monkeypatch: pytest.MonkeyPatch, nano: Path
) -> None:
    """Before it has read a body; a replica says how much that is."""
    asked: list[tuple[str, bytes]] = []

    @asynccontextmanager
    async def answered(port: int, method: str, target: bytes, headers: Any, body: bytes = b"") -> AsyncIterator[Any]:
        asked.append((target.decode(), body))
        text = b'{"max_body": 1000}'

        async def whole() -> bytes:
            return text

        yield SimpleNamespace(status=200, headers=[], body=whole)

    made: Any = lambda number, key: SimpleNamespace(number=number, port=1, load=loads(1)[0])  # noqa: E731
    found = router.Router(made, 2, router.RouterSettings(body=given))
    monkeypatch.setattr(router, "ask", answered)

    async def run() -> None:
        transport = httpx.ASGITransport(found.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for more in (0, 1):
                body = b'{"prompt": "' + b"a" * (largest + more - 14) + b'"}'
                assert len(body) == largest + more
                answer = await client.post(
                    "/v1/completions", content=body, headers={"content-type": "application/json"}
                )
                assert (answer.status_code == 413) is bool(more), answer.text

    asyncio.run(run())
    paths = [path for path, _ in asked]
    assert paths.count("/health") == (given == 0)
    assert [len(body) for path, body in asked if path == "/v1/completions"] == [largest]
    with serving(edgedec.open(nano, threads=1), context=300) as (place, _):
        assert httpx.get(f"{place}/health").json()["max_body"] == most_body(300)


def test_answers_come_whole_or_not_at_all() -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    assert asyncio.run(_asked(head + b"content-length: 2\r\n\r\nok")) == (200, b"ok")
    assert asyncio.run(_asked(head + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")) == (200, b"ok")
    for broken in (
        b"",
        head,
        b"no http\r\n\r\n",
        head + b"content-length: 3\r\n\r\nok",
        head + b"content-length: x\r\n\r\n",
    ):
        with pytest.raises(ReplicaGone):
            asyncio.run(_asked(broken))
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    for broken in (b"2\r\nok\r\n", b"zz\r\n"):
        with pytest.raises(ReplicaGone):
            asyncio.run(_asked(chunked + broken))


@given(st.binary(max_size=80))
def test_no_answer_breaks_anything(answer: bytes) -> None:
    try:
        asyncio.run(_asked(b"HTTP/1.1 " + answer))
    except ReplicaGone:
        pass


def test_nobody_listens() -> None:
    async def asked() -> None:
        async with ask(1, "GET", b"/", []):
            pass

    with pytest.raises(ReplicaGone):
        asyncio.run(asked())


# -- the program


@pytest.fixture(scope="module")
def served(nano: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with started(nano, "--replicas", "2", "--slots", "4", "-c", "512") as found:
        yield found


def complete(place: str, prompt: str, n: int = 12, **more: Any) -> str:
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "repetition_penalty": 1.0, **more}
    answer = httpx.post(f"{place}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def by_replica(place: str, name: str) -> list[float]:
    found = metrics(place)
    return [found[f'{name}{{replica="{k}"}}'] for k in range(2)]


def test_replicas_write_what_one_server_writes(served: tuple[str, Any], nano: Path) -> None:
    model, before = edgedec.open(nano, threads=1), by_replica(served[0], "edgedec_routed_total")
    prompts = [f"One day, number {k}" for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda prompt: complete(served[0], prompt), prompts))
    alone = [
        "".join(model.session(speculate="off", context=512).generate(prompt, max_tokens=12, sampling=Sampling()))
        for prompt in prompts
    ]
    assert found == alone
    after = by_replica(served[0], "edgedec_routed_total")
    assert min(new - old for new, old in zip(after, before, strict=True)) >= 2


def test_one_beginning_is_read_once(served: tuple[str, Any]) -> None:
    place, texts = served[0], [complete(served[0], LONG + "So") for _ in range(3)]
    assert len(set(texts)) == 1
    assert sum(by_replica(place, "edgedec_routed_by_prefix_total")) >= 2
    assert sum(by_replica(place, "edgedec_prompt_tokens_cached_total")) > 40


def test_a_response_is_continued_where_it_is_kept(served: tuple[str, Any]) -> None:
    place = served[0]
    kept = [
        httpx.post(f"{place}/v1/responses", json={"input": f"Hi {k}", "max_output_tokens": 4}).json() for k in range(4)
    ]
    for response in kept:
        assert httpx.get(f"{place}/v1/responses/{response['id']}").json()["id"] == response["id"]
        body = {"input": "More", "previous_response_id": response["id"], "max_output_tokens": 4}
        assert httpx.post(f"{place}/v1/responses", json=body, timeout=60).status_code == 200
    assert httpx.delete(f"{place}/v1/responses/{kept[0]['id']}").status_code == 200
    assert httpx.get(f"{place}/v1/responses/{kept[0]['id']}").status_code == 404


def test_errors_of_replicas_are_passed_on(served: tuple[str, Any]) -> None:
    place = served[0]
    for content, status in ((b"{", 400), (b'{"prompt": "x", "nonsense": 1}', 400), (b"[" * 5000, 400)):
        answer = httpx.post(f"{place}/v1/completions", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
    assert httpx.get(f"{place}/nowhere").status_code == 404
    assert httpx.get(f"{place}/v1/models", headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(place + "/").text.startswith("<!")
    assert [card["id"] for card in httpx.get(f"{place}/v1/models").json()["data"]] == ["nano"]


def test_a_client_that_leaves_frees_its_slot(served: tuple[str, Any]) -> None:
    place, body = served[0], {"prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True, "n": 16}
    with httpx.stream("POST", f"{place}/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        texts = answer.iter_text()  # the answer is closed with it
        assert next(texts)
        assert sum(by_replica(place, "edgedec_replica_texts")) == 1
    wait_for(lambda: sum(by_replica(place, "edgedec_replica_texts")) == 0)
    wait_for(lambda: sum(by_replica(place, "edgedec_running")) == 0)


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes of its replicas."""
    found = Path(f"/proc/{process.pid}/task").glob("*/children")
    pids = [int(word) for path in found for word in path.read_text().split()]
    return [pid for pid in pids if b"cli._replica" in Path(f"/proc/{pid}/cmdline").read_bytes()]


linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


@linux
def test_a_replica_that_dies_is_replaced_and_costs_no_text(nano: Path) -> None:
    with started(nano, "--replicas", "2") as (place, process):
        expected, pids = complete(place, "One day"), children(process)
        assert len(pids) == 2
        body = {"prompt": "Once", "max_tokens": 900, "stream": True, "ignore_eos": True, "n": 16}
        with httpx.stream("POST", f"{place}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            busy = [k for k in range(2) if by_replica(place, "edgedec_replica_texts")[k]]
            assert len(busy) == 1
            os.kill(next(pid for pid in pids if _number(pid, pids) == busy[0]), signal.SIGKILL)
            last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_gone"
        assert [complete(place, "One day") for _ in range(4)] == [expected] * 4
        wait_for(lambda: by_replica(place, "edgedec_replica_up") == [1, 1], 60)
        assert sorted(by_replica(place, "edgedec_replica_starts_total")) == [1, 2]


def _number(pid: int, pids: list[int]) -> int:
    """Replicas are started in order."""
    return sorted(pids).index(pid)


@linux
def test_replicas_end_with_the_server(nano: Path) -> None:
    for end in (signal.SIGKILL, signal.SIGTERM):
        command = [
            sys.executable,
            "-m",
            "edgedec",
            "serve",
            "-m",
            str(nano),
            "--port",
            "0",
            "--replicas",
            "2",
            "-t",
            "1",
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "2 replicas at" in process.stderr.readline()
            pids = children(process)
            assert len(pids) == 2
            process.send_signal(end)
            process.wait(30)
            wait_for(lambda pids=pids: not any(map(_runs, pids)), 30)


def _runs(pid: int) -> bool:
    try:
        return b"cli._replica" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_model_that_is_not_there_is_one_line() -> None:
    command = [sys.executable, "-m", "edgedec", "serve", "-m", "./nowhere", "--port", "0", "--replicas", "2"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode != 0
    assert found.stderr.count("\n") == 1
    assert "replica 0: nowhere: no such" in found.stderr


def test_the_key_is_the_routers(nano: Path) -> None:
    with started(nano, "--replicas", "2", "--api-key", "secret") as (place, _):
        assert httpx.get(f"{place}/v1/models").status_code == 401
        allowed = {"authorization": "Bearer secret"}
        assert httpx.get(f"{place}/v1/models", headers=allowed).status_code == 200


def last(words: list[str], option: str) -> str:
    return words[len(words) - 1 - words[::-1].index(option) + 1]


def test_the_engine_says_too_of_which_device_each_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EDGEDEC_CUDA", "EDGEDEC_OPENCL"):
        monkeypatch.delenv(name, raising=False)
    assert last(ReplicaCommand((), 2, engine="cuda").arguments(1), "--device") == "cuda:1"
    assert last(ReplicaCommand((), 2, engine="native").arguments(1), "--device") == ""
    assert last(ReplicaCommand((), 2, device="cuda:3", engine="cuda").arguments(1), "--device") == "cuda:3"
    monkeypatch.setenv("EDGEDEC_CUDA", "2")  # one for all
    assert last(ReplicaCommand((), 2, engine="cuda").arguments(1), "--device") == ""
    assert last(ReplicaCommand((), 2, device="cuda").arguments(1), "--device") == "cuda"


def test_replicas_on_opencl_count_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of `opencl:0` are those of all devices, processors with a driver among them."""
    from edgedec.runtimes import opencl

    monkeypatch.delenv("EDGEDEC_OPENCL", raising=False)
    listed = [SimpleNamespace(gpu=gpu, lacks=lambda why=why: why) for gpu, why in PLACES]
    monkeypatch.setattr(opencl.library, "devices", lambda: listed)
    for command in (ReplicaCommand((), 2, device="opencl"), ReplicaCommand((), 2, engine="opencl")):
        assert [last(command.arguments(k), "--device") for k in range(2)] == ["opencl:1", "opencl:4"]
        with pytest.raises(UsageError, match="replica 2 has no GPU of its own, opencl has 2 here"):
            command.arguments(2)
    monkeypatch.setenv("EDGEDEC_OPENCL", "pocl")
    assert last(ReplicaCommand((), 2, device="opencl").arguments(1), "--device") == "opencl"


def test_each_replica_has_its_own_device_and_folder() -> None:
    command = ReplicaCommand(("-m", "smol", "--slots", "8"), 2, 3 << 30, "aside", "cuda")
    second = command.arguments(1)
    assert second[:4] == ["-m", "smol", "--slots", "8"]
    assert last(second, "--device") == "cuda:1"
    assert last(second, "--offload").endswith("replica-1")
    assert float(last(second, "--models-memory")) == 3
    assert last(ReplicaCommand((), 2, device="cuda:3").arguments(1), "--device") == "cuda:3"
    assert last(ReplicaCommand((), 2).arguments(1), "--device") == ""
