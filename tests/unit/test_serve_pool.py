"""Several models behind one server: loaded when they are named, unloaded by least use, kept while their texts run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
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
from edgedec.bundle import Bundle
from edgedec.bundle.packed import pack

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import fetch, metrics, serving, started, wait_for  # noqa: E402

from edgedec.server.errors import APIError  # noqa: E402
from edgedec.server.limits import ServerLimits  # noqa: E402
from edgedec.server.pool import ModelPool, ModelSource  # noqa: E402

MIB = 1 << 20
GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}


class Openings:
    """Sources of one bundle under several names; `opened`: which were opened, in order."""

    def __init__(self, nano: Path) -> None:
        self._nano, self.opened = nano, list[str]()
        self.wait: dict[str, threading.Event] = {}
        self.fail: dict[str, Exception] = {}
        self.runtimes: list[weakref.ref[Any]] = []

    def source(self, name: str, memory: int) -> ModelSource:
        return ModelSource(name, edgedec.open(self._nano).bundle, self._opener(name), memory=memory)

    def _opener(self, name: str) -> Callable[[], Any]:
        def opened() -> Any:
            self.opened.append(name)
            if name in self.wait:
                self.wait[name].wait(20)
            if name in self.fail:
                raise self.fail[name]
            model = edgedec.open(self._nano, threads=1)
            self.runtimes.append(weakref.ref(model.runtime))
            return model, {}

        return opened


@pytest.fixture
def openings(nano: Path) -> Openings:
    return Openings(nano)


@pytest.fixture
def three(openings: Openings) -> Iterator[tuple[str, Any]]:
    """Models a, b and c of 40 MiB each, in 100 MiB."""
    sources = [openings.source(name, 40 * MIB) for name in "abc"]
    with serving(sources, slots=2, memory=100 * MIB) as found:
        yield found


def complete(place: str, model: str | None, **more: Any) -> Any:
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 6, **GREEDY, **more}
    answer = httpx.post(f"{place}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def loaded(place: str) -> list[str]:
    return list(json.loads(fetch(f"{place}/health"))["loaded"])


def test_models_are_loaded_when_named_and_unloaded_by_least_use(three: tuple[str, Any], openings: Openings) -> None:
    place, _ = three
    assert loaded(place) == openings.opened == []
    listed = httpx.get(f"{place}/v1/models").json()["data"]
    assert [(card["id"], card["edgedec"]["loaded"]) for card in listed] == [("a", False), ("b", False), ("c", False)]
    texts = [complete(place, name)["choices"][0]["text"] for name in "abab"]
    assert len(set(texts)) == 1
    assert openings.opened == ["a", "b"]
    wait_for(lambda: not metrics(place)["edgedec_running"])
    assert complete(place, "c")["model"] == "c"
    assert sorted(loaded(place)) == ["b", "c"]
    complete(place, "b")
    complete(place, "a")
    assert sorted(loaded(place)) == ["a", "b"]
    assert openings.opened == ["a", "b", "c", "a"]
    assert [one["name"] for one in json.loads(fetch(f"{place}/api/ps"))["models"]] == ["b:latest", "a:latest"]
    assert len(json.loads(fetch(f"{place}/api/tags"))["models"]) == 3


def test_a_model_must_be_named_where_there_are_several(three: tuple[str, Any]) -> None:
    answer = httpx.post(f"{three[0]}/v1/completions", json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "'a', 'b', 'c'" in answer.json()["error"]["message"]
    assert httpx.post(f"{three[0]}/v1/completions", json={"prompt": "x", "model": "d"}).status_code == 404


def test_a_model_whose_texts_run_stays(three: tuple[str, Any], openings: Openings) -> None:
    """Two are in use, so a third waits until one of them is not; its text is whole."""
    place, server = three
    bodies = {
        name: {"model": name, "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True} for name in "ab"
    }
    with httpx.Client(base_url=place, timeout=60) as client, ThreadPoolExecutor(1) as pool:
        streams = {
            name: client.send(client.build_request("POST", "/v1/completions", json=body), stream=True)
            for name, body in bodies.items()
        }
        for served in server.pool.loaded.values():
            slow(served.engine)
        third = pool.submit(complete, place, "c")
        with pytest.raises(TimeoutError):
            third.result(0.3)
        assert sorted(loaded(place)) == ["a", "b"]
        streams["a"].close()
        assert third.result(20)["choices"][0]["text"]
        assert sorted(loaded(place)) == ["b", "c"]
        assert streams["b"].read().endswith(b"data: [DONE]\n\n")
        streams["b"].close()


def test_a_model_that_is_always_in_use_makes_room_in_its_turn(three: tuple[str, Any], openings: Openings) -> None:
    """Its next requests wait until the third model has been loaded, and load it again."""
    place, server = three
    stop = threading.Event()

    def busy(name: str) -> int:
        done = 0
        while not stop.is_set():
            done += len(complete(place, name, max_tokens=30, ignore_eos=True)["choices"])
        return done

    with ThreadPoolExecutor(4) as pool:
        always = [pool.submit(busy, name) for name in "aabb"]
        wait_for(lambda: len(loaded(place)) == 2)
        assert complete(place, "c")["choices"]
        wait_for(lambda: openings.opened[3:])
        stop.set()
        assert all(one.result(20) for one in always)
    assert sorted(openings.opened[:3]) == ["a", "b", "c"]
    assert not any(served.leaving for served in server.pool.loaded.values())


def slow(engine: Any) -> None:
    """Its steps take 5 ms."""
    step = engine._batch.step

    def slowly() -> bool:
        threading.Event().wait(0.005)
        return bool(step())

    engine._batch.step = slowly


def test_other_models_go_on_while_one_is_loaded(three: tuple[str, Any], openings: Openings) -> None:
    place, _ = three
    complete(place, "a")
    openings.wait["b"] = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(complete, place, "b") for _ in range(2)]
        wait_for(lambda: openings.opened == ["a", "b"])
        assert complete(place, "a")["choices"]
        assert not any(one.done() for one in waiting)
        openings.wait["b"].set()
        assert all(one.result(20)["choices"] for one in waiting)
    assert openings.opened == ["a", "b"]


def test_what_cannot_be_loaded_is_named(openings: Openings) -> None:
    sources = [openings.source("big", 101 * MIB), openings.source("bad", MIB)]
    openings.fail["bad"] = edgedec.errors.BundleCorrupt("/secret/weights.bin: damaged")
    with serving(sources, memory=100 * MIB, seconds=0.2) as (place, _):
        big = httpx.post(f"{place}/v1/completions", json={"model": "big", "prompt": "x"})
        assert (big.status_code, big.json()["error"]["code"]) == (503, "no_room")
        assert "101 MiB" in big.json()["error"]["message"]
        bad = httpx.post(f"{place}/v1/completions", json={"model": "bad", "prompt": "x"})
        assert bad.status_code == 500
        assert "secret" not in bad.text
        assert loaded(place) == []


def test_who_waits_for_memory_too_long_is_refused(openings: Openings) -> None:
    async def scenario() -> None:
        sources = [openings.source(name, 60 * MIB) for name in "ab"]
        pool = ModelPool(sources, ServerLimits(context=64, seconds=0.2), 100 * MIB)
        async with pool.use(("a", None)) as target:
            with pytest.raises(APIError, match="in use") as caught:
                async with pool.use(("b", None)):
                    pass
            assert caught.value.status == 503
            assert target.engine.running == 0
        async with pool.use(("b", None)):
            assert list(pool.loaded) == ["b"]
        await pool.unload("b")
        await pool.unload("b")
        assert not pool.loaded
        pool.drain()
        with pytest.raises(APIError, match="shutting down"):
            async with pool.use(("a", None)):
                pass
        await pool.close()

    asyncio.run(scenario())
    assert openings.opened == ["a", "b"]


def test_no_more_wait_for_a_model_than_for_a_slot_and_no_longer(openings: Openings) -> None:
    async def status(pool: ModelPool) -> int:
        try:
            async with pool.use(("a", None)) as target:
                return 200 if target.name == "a" else 0
        except APIError as error:
            return error.status

    async def scenario() -> list[int]:
        openings.wait["a"] = threading.Event()
        pool = ModelPool([openings.source("a", MIB), openings.source("b", MIB)], ServerLimits(1, 64, 1, seconds=0.5))
        loading = asyncio.create_task(status(pool))
        while not openings.opened:
            await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(status(pool)) for _ in range(3)]
        late = await asyncio.gather(*waiting)
        openings.wait["a"].set()
        found = [*late, await loading, await status(pool)]
        await pool.close()
        return found

    assert asyncio.run(scenario()) == [503, 503, 429, 200, 200]
    assert openings.opened == ["a"]


def test_an_unloaded_model_leaves_no_thread(three: tuple[str, Any]) -> None:
    place, _ = three
    for name in "abcabc":
        complete(place, name)
    engines = [thread for thread in threading.enumerate() if thread.name == "edgedec-engine"]
    assert len(engines) <= len(loaded(place)) == 2


def test_keep_alive_zero_unloads(three: tuple[str, Any], openings: Openings) -> None:
    """And nothing holds the model any more."""
    place, _ = three
    complete(place, "a")
    assert openings.runtimes[0]() is not None
    gone = httpx.post(f"{place}/api/generate", json={"model": "a", "keep_alive": 0}).json()
    assert (gone["done_reason"], loaded(place)) == ("unload", [])
    wait_for(lambda: openings.runtimes[0]() is None)
    there = httpx.post(f"{place}/api/chat", json={"model": "b:latest", "messages": []}, timeout=30).json()
    assert (there["done_reason"], loaded(place)) == ("load", ["b"])


def test_metrics_name_the_model_as_vllm_does(three: tuple[str, Any]) -> None:
    place, _ = three
    complete(place, "a", ignore_eos=True)
    complete(place, "b", ignore_eos=True, max_tokens=4)
    found = metrics(place)
    assert found['vllm:generation_tokens_total{model_name="a"}'] == 6
    assert found['vllm:generation_tokens_total{model_name="b"}'] == 4
    assert found["edgedec_generated_tokens_total"] == 10
    assert found['vllm:request_success_total{model_name="a",finished_reason="length"}'] == 1
    assert found['vllm:num_requests_running{model_name="a"}'] == 0
    assert found['vllm:time_to_first_token_seconds_count{model_name="b"}'] == 1
    assert found['vllm:e2e_request_latency_seconds_bucket{model_name="b",le="+Inf"}'] == 1
    assert 0 <= found['vllm:kv_cache_usage_perc{model_name="a"}'] <= 1
    assert found["edgedec_models_loaded"] == found["edgedec_model_loads_total"] == 2
    parser = pytest.importorskip("prometheus_client.parser")
    assert list(parser.text_string_to_metric_families(fetch(f"{place}/metrics")))


@pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="four minutes of load; set EDGEDEC_SLOW_TESTS")
def test_every_door_under_load() -> None:
    """200 streams to three models, of which two fit, and an adapter: every text is what it is alone, memory is flat."""
    script = Path(__file__).parents[1] / "bench" / "serve_mixed.py"
    command = [sys.executable, str(script), "--streams", "200", "--seconds", "240"]
    paths = os.pathsep.join([str(script.parent), str(script.parents[1])])
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["loads"] > 6
    assert report["ended"] > 200
    third, fourth = report["memory_quarters"][2:]
    assert fourth < 1.1 * third


# -- the command


@pytest.fixture(scope="module")
def folder(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles, and what is none."""
    found = tmp_path_factory.mktemp("models")
    for name in ("first", "second"):
        shutil.copytree(nano, found / name, copy_function=os.link)
        manifest = found / name / "edgedec.json"
        content = json.loads(manifest.read_text("utf-8"))
        manifest.unlink()
        manifest.write_text(json.dumps({**content, "name": name}), "utf-8")
    (found / "notes").mkdir()
    (found / "notes.txt").write_text("x")
    return found


def test_a_folder_of_models_is_served(folder: Path) -> None:
    with started(folder, "--models-memory", "4", "--slots", "2", "-c", "256", models=True) as (place, _):
        listed = httpx.get(f"{place}/v1/models").json()["data"]
        assert [card["id"] for card in listed] == ["first", "second"]
        assert complete(place, "second")["choices"][0]["text"] == complete(place, "first")["choices"][0]["text"]
        assert loaded(place) == ["second", "first"]


def test_gguf_files_of_the_folder_are_served(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Converted once; the later parts of a split file are none of their own, and what cannot be read is named."""
    pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
    import vocabularies

    from edgedec.cli._model_opening import bundles

    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    mixed = tmp_path / "mixed"
    shutil.copytree(folder / "first", mixed / "first", copy_function=os.link)
    vocabularies.tiny(mixed / "small-Q8_0.gguf")
    (mixed / "split-00002-of-00002.gguf").write_bytes(b"a later part")
    (mixed / "broken.gguf").write_bytes(b"GGUX")
    assert [path.name.partition("-")[0] for path in bundles(mixed)] == ["first", "small"]
    said = [line for line in capsys.readouterr().err.splitlines() if "is not served" in line]
    assert len(said) == 1
    assert said[0].startswith("edgedec: broken.gguf is not served: ")
    (mixed / "broken.gguf").unlink()
    with started(mixed, "--slots", "2", "-c", "64", models=True) as (place, _):
        assert [card["id"] for card in httpx.get(f"{place}/v1/models").json()["data"]] == ["first", "small-Q8_0"]
        assert complete(place, "small-Q8_0")["usage"]["completion_tokens"] > 0
        assert loaded(place) == ["small-Q8_0"]


def test_a_bundle_that_cannot_be_opened_is_passed_over(folder: Path, tmp_path: Path) -> None:
    """As a file that cannot be converted; what is packed is served."""
    mixed = tmp_path / "mixed"
    for name in ("first", "second"):
        shutil.copytree(folder / name, mixed / name, copy_function=os.link)
    pack(Bundle.open(folder / "second"), mixed / "second.edb")
    shutil.rmtree(mixed / "second")
    shutil.copytree(folder / "first", mixed / "broken", copy_function=os.link)
    (mixed / "broken" / "tokenizer.json").unlink()
    with started(mixed, "--slots", "2", "-c", "64", models=True) as (place, _):
        assert [card["id"] for card in httpx.get(f"{place}/v1/models").json()["data"]] == ["first", "second"]
        assert complete(place, "second")["usage"]["completion_tokens"] > 0
    shutil.rmtree(mixed / "first")
    (mixed / "second.edb").unlink()
    command = [sys.executable, "-m", "edgedec", "serve", "--port", "0", "--models", str(mixed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("edgedec: broken is not served: ")
    assert second == f"edgedec: --models {mixed}: none of its models can be served"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--models", "nowhere"], "--models nowhere: no such folder"),
        (["--models", "{folder}/notes"], "no bundle and no GGUF file in it"),
        (["--models", "{folder}", "--lora", "x=y.lora"], "--lora x: with --models it is MODEL/NAME=FILE"),
        (["--lora", "x"], "--lora 'x': must be NAME=FILE"),
        (["--lora", "x=nowhere.lora"], "nowhere.lora"),
        (["--max-total-tokens", "5"], "a text of"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_one_line(folder: Path, options: list[str], says: str) -> None:
    given = [option.replace("{folder}", str(folder)) for option in options]
    command = [sys.executable, "-m", "edgedec", "serve", "--port", "0", "-t", "1", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
