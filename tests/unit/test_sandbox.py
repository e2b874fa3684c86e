"""Worker processes: their limits, what they say of them, and that one's end is nobody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from edgedec.constraints import vocabulary
from edgedec.errors import LimitExceeded, RuntimeUnavailable
from edgedec.sandbox import GuestLimits, Sandbox, host
from edgedec.sandbox.worker import processor_time
from edgedec.text import inspection

GUEST = """
import ctypes, os, sys, time

def setup(message):
    globals().update(message)
    if message.get("broken"):
        raise ValueError("broken on purpose")

def handle(message, blob):
    return globals()[message["do"]](message, blob)

def echo(message, blob):
    return {"said": message["say"], "word": word, "pid": os.getpid()}, blob

def spin(message, blob):
    while True:
        pass

def fill(message, blob):
    return {"size": len(bytearray(message["n"]))}, b""

def overflow(message, blob):
    ctypes.string_at(0)

def sleep(message, blob):
    time.sleep(60)

def refuse(message, blob):
    raise ValueError("not\\nthis")

def fail(message, blob):
    raise KeyError("x")

def deep(message, blob):
    deep(message, blob)

def leave(message, blob):
    os._exit(3)

def look(message, blob):
    print("noise that is no frame")
    return {"modules": sorted(set(sys.modules) & set(message["names"])), "environment": sorted(os.environ)}, b""

def write(message, blob):
    with open(message["path"], "w") as file:
        file.write("x")
    return {}, b""
"""
forks = pytest.mark.skipif(not host._FORKS, reason="memory is limited where workers are forked")


@pytest.fixture(params=["forked", "started"])
def sandbox(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    if request.param == "forked" and not host._FORKS:
        pytest.skip("no forks here")
    monkeypatch.setattr(host, "_FORKS", request.param == "forked")
    found = made(tmp_path)
    yield found
    found.close()


def made(folder: Path, patience: float = 3.0, **setup: object) -> Sandbox:
    file = folder / "guest.py"
    file.write_text(GUEST)
    return Sandbox(file, {"word": "hi", **setup}, GuestLimits(seconds=0.3, memory=64, patience=patience))


def test_requests_are_answered_in_order(sandbox: Sandbox) -> None:
    worker = sandbox.worker()
    assert worker.call(b"\x00\xff", do="echo", say=["é", None]).values["said"] == ["é", None]
    for i in range(5):
        worker.send(bytes([i]) * i, do="echo", say=i)
    assert [(r.values["said"], r.blob) for r in (worker.receive() for _ in range(5))] == [
        (i, bytes([i]) * i) for i in range(5)
    ]
    assert worker.ready()
    big = os.urandom(3 << 20)
    reply = worker.call(big, do="echo", say="big")
    assert (reply.blob, reply.values["word"]) == (big, "hi")
    assert reply.values["pid"] != os.getpid()
    worker.close()
    assert not worker.alive


def test_what_a_guest_refuses_is_an_error_of_one_line_and_it_goes_on(sandbox: Sandbox) -> None:
    worker = sandbox.worker()
    assert worker.call(do="refuse").error == "not this"
    assert worker.call(do="fail").error == "KeyError: 'x'"
    assert worker.call(do="deep").error == "is nested too deeply"
    assert worker.call(do="echo", say=1).values["said"] == 1


@pytest.mark.parametrize(
    ("do", "says"),
    [
        ("spin", "processor time|more than 3 s"),
        ("overflow", "nested too deeply"),
        ("sleep", "more than 3 s"),
        ("leave", "died"),
    ],
)
def test_a_limit_ends_the_worker_and_is_named(sandbox: Sandbox, do: str, says: str) -> None:
    other, worker = sandbox.worker(), sandbox.worker()
    with pytest.raises(LimitExceeded, match=says):
        worker.call(do=do)
    assert not worker.alive
    with pytest.raises(LimitExceeded, match="has ended"):
        worker.call(do="echo", say=1)
    assert other.call(do="echo", say=2).values["said"] == 2, "untouched"
    assert sandbox.worker().call(do="echo", say=3).values["said"] == 3, "and another is there at once"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills of POSIX")
def test_a_worker_that_others_kill_is_not_said_to_exceed_a_limit_of_its_own(sandbox: Sandbox) -> None:
    worker = sandbox.worker()
    pid = worker.call(do="echo", say=1).values["pid"]
    worker.send(do="sleep")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LimitExceeded, match="was killed, as a system does that is short of memory"):
        worker.receive()


@forks
def test_memory_is_limited(tmp_path: Path) -> None:
    sandbox = made(tmp_path, patience=60.0)
    worker = sandbox.worker()
    assert worker.call(do="fill", n=32 << 20).values["size"] == 32 << 20
    with pytest.raises(LimitExceeded, match="more than 64 MiB"):
        worker.call(do="fill", n=128 << 20)
    assert not worker.alive
    sandbox.close()


@forks
def test_no_files_are_written(tmp_path: Path) -> None:
    sandbox = made(tmp_path)
    assert "File too large" in sandbox.worker().call(do="write", path=str(tmp_path / "out")).error
    assert (tmp_path / "out").stat().st_size == 0
    sandbox.close()


def test_a_worker_knows_no_secrets_and_imports_nothing_heavy(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_API_KEY", "secret")
    found = sandbox.worker().call(do="look", names=["edgedec", "numpy", "onnxruntime", "os"]).values
    assert found["modules"] == ["os"]
    assert "PATH" in found["environment"]
    assert "EDGEDEC_API_KEY" not in found["environment"]


def test_a_host_that_was_killed_is_begun_anew(sandbox: Sandbox) -> None:
    sandbox.worker()
    if sandbox._process is not None:
        sandbox._process.kill()
        sandbox._process.wait()
    assert sandbox.worker().call(do="echo", say=1).values["said"] == 1


def test_threads_have_workers_of_their_own(sandbox: Sandbox) -> None:
    together = threading.Barrier(4)

    def one(n: int) -> list[int]:
        worker = sandbox.worker()
        together.wait(20)
        return [worker.call(do="echo", say=n).values["said"] for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [[n] * 20 for n in range(4)]


def test_a_guest_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"guest\.py cannot be started: broken on purpose"):
        made(tmp_path, broken=True).worker()


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_PYTHON", str(tmp_path / "python"))
    with pytest.raises(RuntimeUnavailable, match="EDGEDEC_PYTHON"):
        made(tmp_path).worker()


def test_an_embedding_program_uses_the_interpreter_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "app"))
    monkeypatch.setattr(sys, "_base_executable", "", raising=False)
    assert made(tmp_path).worker().call(do="echo", say=1).values["said"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_it_works_from_dash_c_and_in_a_forked_process(tmp_path: Path) -> None:
    code = """
import os, sys
from edgedec.text.template import render_chat
assert render_chat("{{ messages[0].content }}", [{"content": "a"}]) == "a"
pid = os.fork()
if pid == 0:
    print(render_chat("{{ messages[0].content }}!", [{"content": "child"}]), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(render_chat("{{ messages[0].content }}!", [{"content": "parent"}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("child!\nparent!\n", "")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
def test_nothing_is_left_when_the_program_ends(tmp_path: Path) -> None:
    code = """
import json, sys, time
from pathlib import Path
from edgedec.sandbox import Sandbox
sandbox = Sandbox(Path(sys.argv[1]), {"word": ""})
workers = [sandbox.worker() for _ in range(3)]
pids = [worker.call(do="echo", say=1).values["pid"] for worker in workers]
print(json.dumps([sandbox._process and sandbox._process.pid, *pids]))
"""
    (tmp_path / "guest.py").write_text(GUEST)
    command = [sys.executable, "-c", code, str(tmp_path / "guest.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    pids = [pid for pid in json.loads(done.stdout) if pid]
    assert len(pids) >= 3
    deadline = threading.Event()
    for _ in range(100):
        left = [pid for pid in pids if _runs(pid)]
        if not left:
            return
        deadline.wait(0.05)
    raise AssertionError(f"still there: {left}")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_finalizer_sends_nothing_and_waits_for_nothing(nano: Path) -> None:
    """It may run while any lock is held, in the thread that holds it."""
    pytest.importorskip("llguidance", reason="constraints need llguidance")
    import edgedec
    from edgedec import constraints

    model = edgedec.open(nano, threads=1)
    one = constraints.regex(model, "[a-z]+")
    twin, group = one.fork(), one._matcher._group
    host = vocabulary.vocabulary(model)._sandbox
    with host._lock, group._lock:
        group._host.close = group._host.send = lambda *_, **__: pytest.fail("in a finalizer")  # type: ignore[assignment, method-assign, return-value]
        del twin
    assert len(group.dropped) == 1
    del group._host.send  # type: ignore[attr-defined]
    assert one.mask(()).any()
    one.accept(int(one.mask(()).nonzero()[0][0]))
    assert one.mask(()).any()
    assert not group.dropped, "told with the next request"


@forks
@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="no priorities here")
def test_what_takes_long_gets_a_lower_priority(tmp_path: Path) -> None:
    sandbox = made(tmp_path)
    quick, slow = sandbox.worker(), sandbox.worker()
    assert quick.call(do="echo", say="a").values["pid"]
    slow_pid = slow.call(do="echo", say="a").values["pid"]
    before = os.getpriority(os.PRIO_PROCESS, slow_pid)
    slow.send(do="spin", seconds=5)
    found = [before]
    while found[-1] < 19 and not slow.ready(0.01):
        found.append(os.getpriority(os.PRIO_PROCESS, slow_pid))
    assert found[-1] == 19
    assert found == sorted(found)
    assert 10 in found or before > 10
    if hasattr(os, "SCHED_IDLE"):
        assert os.sched_getscheduler(slow_pid) == os.SCHED_IDLE
    quick.lower(10)
    quick.lower(5)
    assert os.getpriority(os.PRIO_PROCESS, int(quick.call(do="echo", say="a").values["pid"])) == max(before, 10)
    for worker in (quick, slow):
        worker.close()
    sandbox.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the processor time of another process is not known")
def test_priorities_follow_processor_time(tmp_path: Path) -> None:
    """Where others have the processor, what has hardly run is not put behind them for good."""
    sandbox = made(tmp_path, patience=0.5)
    worker, slow = sandbox.worker(), sandbox.worker()
    worker.send(do="sleep")
    assert not any(worker.ready(0.03) for _ in range(10))
    with pytest.raises(LimitExceeded, match=r"more than 0\.5 s"):
        worker.receive()
    assert worker._priority == 0
    slow.limits = replace(slow.limits, patience=60.0)
    slow.send(do="spin", seconds=0.1)
    with pytest.raises(LimitExceeded, match="processor time"):
        slow.receive()
    assert slow._priority == 10
    sandbox.close()


def test_processor_time_is_that_of_the_process() -> None:
    idle = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    before, began = processor_time(idle.pid), monotonic()
    while monotonic() < began + 0.2:
        pass
    taken = processor_time(idle.pid) - before
    idle.kill()
    idle.communicate()
    assert taken < 0.2 or sys.platform != "linux"
    assert processor_time(idle.pid) == pytest.approx(monotonic(), abs=1.0), "of one that has ended: wall time"
    own = processor_time(os.getpid())
    while monotonic() < began + 0.4:
        pass
    assert processor_time(os.getpid()) > own


@forks
@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="no priorities here")
def test_what_is_waited_for_keeps_its_priority(tmp_path: Path) -> None:
    """A tokenizer is tried out while nothing else can go on: on a busy machine it would hardly run."""
    sandbox = made(tmp_path)
    sandbox.limits = replace(sandbox.limits, yields=False)
    worker = sandbox.worker()
    pid = worker.call(do="echo", say="a").values["pid"]
    before = os.getpriority(os.PRIO_PROCESS, pid)
    worker.send(do="sleep")
    assert not any(worker.ready(0.05) for _ in range(10))
    assert os.getpriority(os.PRIO_PROCESS, pid) == before
    worker.close()
    sandbox.close()
    assert not inspection._LIMITS.yields
    assert vocabulary._LIMITS.yields, "texts are generated meanwhile"


@forks
def test_nobody_waits_for_the_end_of_what_is_given_up(tmp_path: Path) -> None:
    """The end of a process of a low priority takes long while others compute."""
    sandbox, told = made(tmp_path, patience=60.0), []
    given_up, died = sandbox.worker(), sandbox.worker()
    control = sandbox._control
    assert control is not None
    send = control.send
    control.send = lambda message, blob=b"": (told.append(message.get("wait")), send(message, blob))  # type: ignore[assignment, method-assign, func-returns-value]
    given_up.send(do="spin", seconds=5)
    given_up.interrupt()
    with pytest.raises(LimitExceeded):
        given_up.receive()
    assert told == [False]
    died.send(do="spin", seconds=0.05)
    with pytest.raises(LimitExceeded, match="processor time"):
        died.receive()
    assert told == [False, True]
    end = monotonic() + 60
    while Path(f"/proc/{given_up._pid}").exists():
        sandbox.worker().close()  # it is collected at the next request
        assert monotonic() < end
    sandbox.close()
