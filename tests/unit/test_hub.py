"""`edgedec pull`, `list`, `rm` and `-m hf:…` beside a stand-in of the Hub: the real client, real interruptions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from checkpoints import write_llama
from hub_server import HubServer, serving_hub

from edgedec.bundle.cached import HubName
from edgedec.errors import UsageError

pytest.importorskip("huggingface_hub", reason="pulling needs huggingface_hub")
pytest.importorskip("onnx", reason="exporting needs onnx")
ID, WEIGHTS = "someone/tiny-llama", "model.safetensors"


@dataclass
class World:
    """A hub, and a home with empty caches; each command is a process of its own, as the client reads its environment
    once."""

    hub: HubServer
    home: Path
    environment: dict[str, str]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "edgedec", *arguments]
        every = {**self.environment, **environment}
        return subprocess.run(command, env=every, capture_output=True, text=True, cwd=self.home, check=False)

    def ok(self, *arguments: str, **environment: str) -> str:
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fails(self, *arguments: str, **environment: str) -> str:
        """The one line that says why."""
        done = self.run(*arguments, **environment)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 1
        assert lines[-1].startswith("edgedec: ")
        assert "Traceback" not in done.stderr
        return lines[-1]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_llama(tmp_path_factory.mktemp("hub") / "tiny-llama")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle" * 1000)
    (folder / "modeling_tiny.py").write_text("raise SystemExit('code of a model')")
    return folder


@pytest.fixture
def world(checkpoint: Path, tmp_path: Path) -> Iterator[World]:
    folder = shutil.copytree(checkpoint, tmp_path / "repository")
    with serving_hub({ID: folder}) as (address, hub):
        caches = {"HF_HOME": str(tmp_path / "hf"), "EDGEDEC_CACHE": str(tmp_path / "cache")}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        more = {"HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
        yield World(hub, tmp_path, {**kept, **caches, **more})


def test_pull_then_run_without_a_network(world: World) -> None:
    said = json.loads(world.ok("pull", ID, "--json"))
    assert (said["name"], said["commit"], said["new"]) == (f"hf:{ID}", world.hub.commit(ID), True)
    taken = {path.rpartition("/")[2] for method, path, _ in world.hub.asked if method == "GET" and "/resolve/" in path}
    assert {"config.json", WEIGHTS, "tokenizer.json"} <= taken
    assert not taken & {"pytorch_model.bin", "modeling_tiny.py"}
    world.hub.asked.clear()
    assert len(world.ok("run", "-m", f"hf:{ID}", "-p", "the", "-n", "4", "--temp", "0", HF_HUB_OFFLINE="1")) > 3
    assert world.hub.asked == []
    again = json.loads(world.ok("pull", ID, "--json"))
    assert (again["new"], world.hub.fetched(WEIGHTS)) == (False, [])
    listed = json.loads(world.ok("list", "--json"))
    assert [(one["name"], one["path"]) for one in listed] == [(f"hf:{ID}", said["path"])]
    assert ID in world.ok("rm", ID, "--checkpoint")
    assert json.loads(world.ok("list", "--json")) == []
    assert not list((world.home / "hf").rglob("*.safetensors"))
    assert not list((world.home / "cache" / "hub").iterdir())


def test_the_cache_is_that_of_other_clients(world: World) -> None:
    script = f"import huggingface_hub as h; print(h.snapshot_download({ID!r}))"
    command = [sys.executable, "-c", script]
    subprocess.run(command, env=world.environment, check=True, capture_output=True)
    assert len(world.hub.fetched(WEIGHTS)) == 1
    world.ok("pull", ID)
    assert len(world.hub.fetched(WEIGHTS)) == 1


def test_run_downloads_and_exports_when_it_is_first_asked_for(world: World) -> None:
    done = world.run("run", "-m", f"hf:{ID}", "-p", "the", "-n", "4", "--temp", "0")
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("edgedec: ")]
    first, second = said
    assert first.startswith(f"edgedec: hf:{ID} is downloaded, this first time only, into {world.home / 'hf'}")
    assert second.startswith(f"edgedec: hf:{ID} is converted, this first time only, into {world.home / 'cache'}")
    again = world.run("run", "-m", f"hf:{ID}", "-p", "the", "-n", "4", "--temp", "0")
    assert (again.stdout, again.stderr) == (done.stdout, "")
    assert len(world.hub.fetched(WEIGHTS)) == 1


def test_an_interrupted_download_goes_on_where_it_ended(world: World) -> None:
    write_llama(world.hub.repositories[ID], intermediate_size=24_576)  # the client writes 10 MiB at a time
    size = (world.hub.repositories[ID] / WEIGHTS).stat().st_size
    assert size > 21 << 20
    world.hub.cut.add(WEIGHTS)
    if world.run("pull", ID).returncode:
        world.ok("pull", ID)
    first, *others = world.hub.fetched(WEIGHTS)
    assert (first, world.hub.cut) == ("", set())
    starts = [int(span.removeprefix("bytes=").split("-")[0]) for span in others if span]
    assert starts
    assert all(0 < start <= size // 2 for start in starts)
    world.ok("verify", f"hf:{ID}")


def test_a_newer_revision_is_exported_anew_and_other_weights_too(world: World) -> None:
    first = json.loads(world.ok("pull", ID, "--json"))
    write_llama(world.hub.repositories[ID], seed=9)
    second = json.loads(world.ok("pull", ID, "--json"))
    assert first["commit"] != second["commit"]
    assert second["new"]
    digests = [json.loads(world.ok("inspect", f"hf:{ID}", "--json"))["digest"]]
    assert json.loads(world.ok("pull", ID, "--weights", "int8", "--json"))["new"]
    digests.append(json.loads(world.ok("inspect", f"hf:{ID}", "--json"))["digest"])
    assert len(set(digests)) == 2


def test_what_is_damaged_is_not_used(world: World) -> None:
    data = (world.hub.repositories[ID] / WEIGHTS).read_bytes()
    world.hub.wrong[WEIGHTS] = data[:-1] + bytes([data[-1] ^ 1])
    assert f"{WEIGHTS}: content differs from its hash" in world.fails("pull", ID)
    assert json.loads(world.ok("list", "--json")) == []
    world.hub.wrong.clear()
    world.ok("pull", ID)


def test_export_downloads_as_pull_does(world: World) -> None:
    world.ok("export", ID, "-o", "bundle", "--no-check")
    assert len(world.hub.fetched(WEIGHTS)) == 1
    world.ok("export", f"hf:{ID}@main", "-o", "again", "--no-check", HF_HUB_OFFLINE="1")
    assert len(world.hub.fetched(WEIGHTS)) == 1
    shutil.rmtree(world.home / "hf")
    data = (world.hub.repositories[ID] / WEIGHTS).read_bytes()
    world.hub.wrong[WEIGHTS] = data[:-1] + bytes([data[-1] ^ 1])
    assert f"{WEIGHTS}: content differs from its hash" in world.fails("export", ID, "-o", "wrong")
    assert not (world.home / "wrong").exists()
    assert "no such model on http://127.0.0.1" in world.fails("export", "nobody/nothing", "-o", "wrong")
    assert "neither a folder nor a GGUF file" in world.fails("export", "./nothing", "-o", "wrong")


def test_one_gguf_file_of_a_repository(world: World) -> None:
    """Downloaded alone, held against its hash, converted once."""
    pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
    from vocabularies import tiny

    file = tiny(world.hub.repositories[ID] / "tiny-Q8_0.gguf")
    name = f"hf:{ID}/{file.name}"
    first = world.run("run", "-m", name, "-p", "a", "-n", "4", "--temp", "0")
    assert first.returncode == 0, first.stderr
    assert first.stderr.index(f"{name} is downloaded") < first.stderr.index(f"{file.name} is converted")
    taken = {path.rpartition("/")[2] for method, path, _ in world.hub.asked if method == "GET" and "/resolve/" in path}
    assert taken == {file.name}
    assert world.ok("run", "-m", name, "-p", "a", "-n", "4", "--temp", "0", HF_HUB_OFFLINE="1") == first.stdout
    assert json.loads(world.ok("pull", name, "--json"))["bytes"] == file.stat().st_size
    world.ok("export", f"{ID}/{file.name}", "-o", "bundle", "--no-check")
    assert world.hub.fetched(file.name) == [""]
    assert "no such file" in world.fails("run", "-m", f"hf:{ID}/other.gguf", "-p", "a")


def test_a_gguf_file_in_parts_is_fetched_whole(world: World) -> None:
    folder = world.hub.repositories[ID]
    parts = [f"m-{i:05}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        (folder / part).write_bytes(part.encode())
    world.ok("pull", f"{ID}/{parts[1]}")
    assert [world.hub.fetched(part) for part in parts] == [[""], [""]]
    (folder / parts[0]).unlink()
    assert f"{parts[0]}: no such file in it" in world.fails("pull", f"{ID}@main/{parts[0]}".replace("@main", ""))


def test_a_repository_of_gguf_files_names_them(world: World) -> None:
    folder = world.hub.repositories[ID]
    for path in folder.iterdir():
        path.unlink()
    assert "reads no pickles; choose another" in world.fails("pull", ID)
    for kind in ("Q4_0", "Q8_0"):
        (folder / f"tiny-{kind}.gguf").write_bytes(b"GGUF")
    said = world.fails("run", "-hf", ID, "-p", "a")
    assert f"name one of its GGUF files: hf:{ID}/tiny-Q4_0.gguf, hf:{ID}/tiny-Q8_0.gguf" in said
    assert "name the file: ORG/NAME/FILE.gguf" in world.fails("run", "-hf", f"{ID}:Q4_0", "-p", "a")


def test_errors_say_what_to_do(world: World) -> None:
    assert "no such model on http://127.0.0.1" in world.fails("pull", "nobody/nothing")
    assert "no such revision" in world.fails("pull", f"{ID}@missing")
    assert "HF_HUB_OFFLINE is set" in world.fails("pull", ID, HF_HUB_OFFLINE="1")
    assert "expected ORG/NAME" in world.fails("pull", "just-a-name")
    assert "`edgedec list` shows them" in world.fails("rm", "nobody/nothing")
    folder = world.hub.repositories[ID]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "xglm"}))
    assert f"edgedec export {ID} --via optimum -o tiny-llama" in world.fails("pull", ID)
    (folder / WEIGHTS).unlink()
    assert "no safetensors" in world.fails("pull", ID)
    assert json.loads(world.ok("list", "--json")) == []


@pytest.mark.parametrize(
    ("environment", "why"),
    [({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached")],
    ids=["told so", "no network"],
)
@pytest.mark.parametrize("command", ["run", "pull", "export", "one file"])
def test_offline_nothing_is_said_to_be_downloaded(
    world: World, command: str, environment: dict[str, str], why: str
) -> None:
    """One line: what is missing, why it cannot come, what to do."""
    name = f"hf:{ID}/a.gguf" if command == "one file" else f"hf:{ID}"
    words = {"pull": ["pull", ID], "export": ["export", name, "-o", "out"]}.get(command, ["run", "-m", name, "-p", "x"])
    done = world.run(*words, **environment)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"edgedec: {name}: not in the cache, and ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path for path in (world.home / "cache").rglob("*") if path.is_file()] == []


def test_what_the_hub_refuses_is_not_announced_either(world: World) -> None:
    done = world.run("run", "-m", "hf:nobody/nothing", "-p", "x")
    assert done.stderr.startswith("edgedec: hf:nobody/nothing: no such model on http://127.0.0.1")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["a", "a/b/c", "../b", "a/..", "hf:", "a/b@", "a/b@c/d", "/a/b", "a/b/../c.gguf", "a b/c"]
)
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="not a model of the Hub"):
        HubName.parse(text)


def test_names() -> None:
    assert HubName.parse("hf:a/b@v1.0") == HubName("a/b", "v1.0")
    assert str(HubName.parse("a/b/c-Q4_0.gguf")) == "hf:a/b/c-Q4_0.gguf"
    assert str(HubName("a/b")) == "hf:a/b"
