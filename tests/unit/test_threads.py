"""The rules of docs/embed.md for threads and processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec import Sampling
from edgedec.errors import RuntimeUnavailable


def opened(nano: object, engine: str = "auto", **more: Any) -> edgedec.Model:
    """nano on an engine; a test without that engine is skipped."""
    try:
        return edgedec.open(nano, engine=engine, **more)  # type: ignore[arg-type]
    except RuntimeUnavailable as error:
        pytest.skip(str(error))


PROMPTS = ["Once upon a time", "Tom and Lily", "One day a dog", "the the the the"]
WAYS: list[dict[str, Any]] = [{}, {"sampling": Sampling(temperature=0.9, seed=7)}, {"sampling": Sampling(top_k=5)}]
TASKS = [(prompt, way) for prompt in PROMPTS for way in WAYS]


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Threads that change places all the time find what they share."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(works: list[Callable[[], Any]]) -> list[Any]:
    """What each gives, all of them begun at the same moment."""
    start = threading.Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        start.wait(30)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))


def write(model: edgedec.Model, spec: str, prompt: str, way: dict[str, Any], n: int) -> list[tuple[str, list[int]]]:
    """Two texts of one session, the second begun by the first."""
    session = model.session(speculate=spec)
    texts = []
    for text in (prompt, prompt + " and"):
        words = "".join(session.generate(text, max_tokens=n, **way))
        texts.append((words, session.ids))
    return texts


@pytest.mark.parametrize(
    ("engine", "spec", "n"),
    [("native", "auto", 40), ("native", "off", 40), ("native", "recycling:fixed=6", 40), ("ort", "off", 12)],
)
def test_sessions_of_one_model_write_in_threads_what_they_write_alone(
    nano: Path, engine: str, spec: str, n: int
) -> None:
    model = opened(nano, engine, threads=2)
    alone = [write(model, spec, prompt, way, n) for prompt, way in TASKS]
    shared = edgedec.open(nano, engine=engine, threads=2)  # its tokenizer is loaded by whoever comes first
    found = together([lambda task=task: write(shared, spec, *task, n) for task in TASKS])  # type: ignore[misc]
    assert found == alone


def test_two_models_at_once(nano: Path) -> None:
    kinds = ("int8", "f32") if opened(nano).runtime.name == "native" else (None, None)
    models = [edgedec.open(nano, threads=1, kv=kv) for kv in kinds]
    tasks = [(model, "auto", prompt, way, 25) for model in models for prompt, way in TASKS[:3]]
    alone = [write(*task) for task in tasks]
    assert together([lambda task=task: write(*task) for task in tasks]) == alone  # type: ignore[misc]


def test_the_tokenizer_reads_for_many_threads(nano: Path) -> None:
    """Each with its own idea of special tokens."""
    tokenizer = edgedec.open(nano, threads=1).tokenizer
    mark = tokenizer.token(min(tokenizer.hidden))
    text = f"Once {mark} upon"
    expected = {special: tokenizer.encode(text, special=special) for special in (True, False)}
    assert expected[True] != expected[False]

    def read(special: bool) -> list[list[int]]:
        return [tokenizer.encode(text, special=special) for _ in range(200)]

    found = together([lambda special=i % 2 == 0: read(special) for i in range(6)])  # type: ignore[misc]
    for i, lists in enumerate(found):
        assert all(ids == expected[i % 2 == 0] for ids in lists)


def test_a_session_is_handed_from_thread_to_thread(nano: Path) -> None:
    model = edgedec.open(nano, threads=1)
    whole = list(model.session().tokens(model.tokenizer.encode("Once upon a time"), max_tokens=30, ignore_eos=True))
    session = model.session()
    parts = [list(session.tokens(model.tokenizer.encode("Once upon a time"), max_tokens=10, ignore_eos=True))]
    for _ in range(2):
        parts += together([lambda: list(session.tokens(max_tokens=10, ignore_eos=True))])
    assert [token for part in parts for token in part] == whole


class Pause(list[Any]):
    """A trace that holds the thread inside the generation."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.on = threading.Event(), threading.Event()

    def append(self, turn: object) -> None:
        super().append(turn)
        self.inside.set()
        assert self.on.wait(30)


def test_only_its_own_thread_closes_a_generator(nano: Path) -> None:
    model, pause = edgedec.open(nano, threads=1), Pause()
    ids = model.tokenizer.encode("Once upon a time")
    session = model.session()
    tokens = session.tokens(ids, max_tokens=12, ignore_eos=True, trace=pause)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(list, tokens)
        assert pause.inside.wait(30)
        with pytest.raises(ValueError, match="already executing"):
            tokens.close()
        pause.on.set()
        assert found.result(30) == list(model.session().tokens(ids, max_tokens=12, ignore_eos=True))
    assert session.finish_reason == "length"


@pytest.mark.parametrize("how", ["flag", "close"])
def test_a_stopped_session_goes_on(nano: Path, how: str) -> None:
    """Stopped by a flag that another thread sets, or closed in its own thread: the text is what was yielded."""
    model, stop, begun = edgedec.open(nano, threads=1), threading.Event(), threading.Event()
    ids = model.tokenizer.encode("Once upon a time")
    session, taken = model.session(), list[int]()

    def work() -> None:
        tokens = session.tokens(ids, max_tokens=200, ignore_eos=True)
        for token in tokens:
            taken.append(int(token))
            if len(taken) == 5:
                begun.set()
                assert stop.wait(30)
            if stop.is_set():
                break
        if how == "close":
            tokens.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    stop.set()
    thread.join(30)
    assert len(taken) == 5
    rest = list(session.tokens(max_tokens=20, ignore_eos=True))
    assert taken + rest == list(model.session().tokens(ids, max_tokens=25, ignore_eos=True))


PROGRAM = """
import multiprocessing, sys
import edgedec

model = None
def text(prompt):
    global model
    if model is None:
        model = edgedec.open(sys.argv[1], threads=1)
    return "".join(model.session().generate(prompt, max_tokens=20))

if __name__ == "__main__":
    prompts = ["Once upon a time", "Tom and Lily"]
    alone = [text(prompt) for prompt in prompts]
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        assert pool.map(text, prompts, chunksize=1) == alone
    assert [text(prompt) for prompt in prompts] == alone
    print("done")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(nano: Path, tmp_path: Path, method: str) -> None:
    """Forked, a child goes on with the model of its parent; spawned, it opens its own."""
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    if method == "fork" and opened(nano).runtime.name != "native":
        pytest.skip("ONNX Runtime's own threads do not survive a fork")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(program), str(nano), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_a_session_that_is_garbage_in_the_middle_of_a_text_is_freed(nano: Path) -> None:
    """The collector ends what a ring of objects holds in any order: the generation may find its cache freed."""
    model = opened(nano, threads=1)
    gc.disable()
    try:
        for _ in range(5):
            session = model.session()
            generation = session.tokens(model.tokenizer.encode("Once upon"), max_tokens=20)
            next(generation)
            ring: list[Any] = [session, generation]
            ring.append(ring)
            cache = weakref.ref(session._context.cache)
            del session, generation, ring
            assert cache() is not None
            gc.collect()
            assert cache() is None
    finally:
        gc.enable()
