"""Texts that grow past what a GPU holds end by name while the others of their batch go on, in the server too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import ContextFull
from edgedec.kernels.cpu import loader
from edgedec.runtime import unavailable_reason

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import serving  # noqa: E402

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
LONG, SHORT = "Once upon a time there was a dog. " * 20, "Tom and Lily went to the park."


@pytest.fixture(params=["cuda", "opencl"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, nano: Path) -> str:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
    monkeypatch.setenv("EDGEDEC_OPENCL", "0")
    name = str(request.param)
    reason = unavailable_reason(name, edgedec.open(nano).bundle)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return name


def limited(nano: Path, engine: str, pages: int) -> Any:
    size: int = edgedec.open(nano, engine=engine, kv="int8").runtime._pool.page_bytes  # type: ignore[attr-defined]
    return edgedec.open(nano, engine=engine, kv="int8", device_cache=pages * size + 1)


def texts(model: Any) -> tuple[list[int], list[int]]:
    """A text that comes to its fifth page soon, and a short one."""
    return model.tokenizer.encode(LONG)[:126], model.tokenizer.encode(SHORT)


def test_a_batch_goes_on(nano: Path, engine: str) -> None:
    model = limited(nano, engine, 4)  # two pages, and two that may be copied
    assert model.runtime.longest == 128
    batch, told, jobs = Batch(model.runtime), [list[int](), list[int]()], []
    for ids, tokens in zip(texts(model), told, strict=True):
        session = model.session(context=256, speculate="off")
        jobs.append(session.submit(batch, ids, lambda t, held=tokens: None if t is None else held.append(int(t)),
                                   max_tokens=8, ignore_eos=True))  # fmt: skip
    batch.run()
    plain = edgedec.open(nano, engine="native", kv="int8", threads=1)
    for ids, tokens in zip(texts(model), told, strict=True):
        expected = [int(t) for t in plain.session(speculate="off").tokens(ids, max_tokens=8, ignore_eos=True)]
        assert tokens == expected[: len(tokens)]
    assert [len(tokens) for tokens in told] == [3, 8]
    assert jobs[1].error is None
    assert isinstance(jobs[0].error, ContextFull)
    assert "memory for caches holds 4 (device_cache)" in str(jobs[0].error)


def test_a_server_answers_all_others(nano: Path, engine: str) -> None:
    """The second request runs beside the first, which ends at its 129th token."""
    from concurrent.futures import ThreadPoolExecutor

    model = limited(nano, engine, 4)
    long, short = (model.tokenizer.decode(ids) for ids in texts(model))
    with serving(model, context=256, slots=4, speculate="off") as (address, server):

        def ask(prompt: str, n: int) -> httpx.Response:
            body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
            return httpx.post(f"{address}/v1/completions", json=body, timeout=120)

        with ThreadPoolExecutor(3) as clients:
            answers = list(clients.map(ask, [short, long, short], [12, 40, 12]))
        assert [answer.status_code for answer in answers] == [200, 400, 200]
        assert "device_cache" in answers[1].json()["error"]["message"]
        assert answers[0].json()["choices"][0]["text"] == answers[2].json()["choices"][0]["text"]
        assert ask(short, 4).status_code == 200
        assert server.engine.idle
