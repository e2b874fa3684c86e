"""A deployment of Ray Serve, on a cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.errors import UsageError
from edgedec.sampling import Sampling

pytest.importorskip("starlette", reason="the server's tests need starlette")
from edgedec.server.ray_serve import Deployment, application


def test_options_are_those_of_serve() -> None:
    assert Deployment.of({"slots": "8", "timeout": "2.5", "model": "x"}) == Deployment("x", slots=8, timeout=2.5)
    for name, value in (("slot", "8"), ("slots", "many")):
        with pytest.raises(UsageError, match=name):
            Deployment.of({name: value})


def test_a_replica_opens_its_model_on_the_device_that_is_named(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, given = edgedec.open, dict[str, Any]()

    def noted(model: str, **options: Any) -> edgedec.Model:
        given.update(options)
        return real(model, **{**options, "device": ""})

    monkeypatch.setattr(edgedec, "open", noted)
    Deployment.of({"model": str(nano), "device": "cuda:1", "device_cache": "1.5"}).app()
    assert (given["device"], given["device_cache"]) == ("cuda:1", 3 << 29)


@pytest.fixture(scope="module")
def place(nano: Path) -> Iterator[str]:
    pytest.importorskip("ray", reason='needs pip install "ray[serve]"')
    serve = pytest.importorskip("ray.serve", reason='needs pip install "ray[serve]"')
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": 8217})
        serve.run(application({"model": str(nano), "replicas": 2, "ctx_size": 512, "api_key": "secret"}))
        yield "http://127.0.0.1:8217"
    finally:
        serve.shutdown()
        ray.shutdown()


def test_replicas_of_a_cluster_write_what_a_session_writes(place: str, nano: Path) -> None:
    httpx = pytest.importorskip("httpx", reason="the client of this test")
    model, prompts = edgedec.open(nano, threads=1), [f"One day, number {k}" for k in range(8)]
    key = {"authorization": "Bearer secret"}

    def written(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "repetition_penalty": 1.0}
        answer = httpx.post(f"{place}/v1/completions", json=body, timeout=60, headers=key)
        return str(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(written, prompts))
    assert found == [
        "".join(model.session(speculate="off", context=512).generate(prompt, max_tokens=12, sampling=Sampling()))
        for prompt in prompts
    ]
    assert httpx.get(f"{place}/v1/models").status_code == 401
    with httpx.stream(
        "POST", f"{place}/v1/completions", json={"prompt": "Once", "stream": True}, headers=key
    ) as answer:
        assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
