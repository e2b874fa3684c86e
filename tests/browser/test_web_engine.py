"""The engine of `edgedec web` in a browser: its bytes, with threads too, nano's stories, structured output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from weblibrary import WHY_NOT, constraints_module, write_adapter
from websites import Isolating, Quiet, served, write_nano_site

import edgedec

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
PROMPT = "Once upon a time"
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "nano_native.json").read_text("utf-8"))
PROMPT = "Once upon a time"
# The hash of tests/golden/test_nano.py, made in the page.
HASH = """async ([isa, kv, prompt]) => {
  const { open } = await import(new URL("edgedec/edgedec.js", location.href));
  const site = await (await fetch("site.json")).json();
  const model = await open(site.bundle, { isa, kv, cache: false }), parts = [];
  const session = model.session({ speculate: "off" });
  const ids = model.encode(prompt);
  ids.forEach((id, i) => {
    if (i) session.step(id); else session.prefill([id]);
    parts.push(new Uint8Array(session.logits().buffer));
  });
  const told = [];
  for await (const token of model.session().generate(ids, { maxTokens: 30 })) told.push(token.id);
  parts.push(new Uint8Array(new Int32Array(told).buffer));
  const digest = await crypto.subtle.digest("SHA-256", await new Blob(parts).arrayBuffer());
  return [model.isa, [...new Uint8Array(digest)].map(b => b.toString(16).padStart(2, "0")).join("")];
}"""


# The same with threads, which need a worker.
SHARED = """async ([isa, kv, prompt, threads]) => {
  const { open } = await import(new URL("edgedec/client.js", location.href));
  const site = await (await fetch("site.json")).json(), base = new URL("edgedec/", location.href).href;
  const model = await open(site.bundle, { isa, kv, threads, base, cache: false }), parts = [];
  const session = await model.session({ speculate: "off" }), ids = await model.encode(prompt);
  for (const [i, id] of ids.entries()) {
    if (i) await session.step(id); else await session.prefill([id]);
    parts.push(new Uint8Array((await session.logits()).buffer));
  }
  const told = [];
  for await (const token of (await model.session()).generate(ids, { maxTokens: 30 })) told.push(token.id);
  parts.push(new Uint8Array(new Int32Array(told).buffer));
  const digest = await crypto.subtle.digest("SHA-256", await new Blob(parts).arrayBuffer());
  model.close();
  return [model.threads, [...new Uint8Array(digest)].map(b => b.toString(16).padStart(2, "0")).join("")];
}"""


STORIES = """async ([prompts, threads]) => {
  const { open } = await import(new URL("edgedec/client.js", location.href));
  const site = await (await fetch("site.json")).json(), base = new URL("edgedec/", location.href).href, told = [];
  const model = await open(site.bundle, { threads, base, cache: false });
  for (const prompt of prompts) {
    const session = await model.session({ speculate: "copy+recycling", draft: 4 }), ids = [];
    for await (const { id } of session.generate(prompt, { maxTokens: 48 })) ids.push(id);
    told.push([model.threads, ids]);
  }
  model.close();
  return told;
}"""


ADAPTED = """async prompt => {
  const { open } = await import(new URL("edgedec/client.js", location.href));
  const site = await (await fetch("site.json")).json(), base = new URL("edgedec/", location.href).href, ids = [];
  const model = await open(site.bundle, { base, cache: false });
  const adapter = await model.adapter("a.lora", { cache: false });
  const session = await model.session({ adapter }), other = await model.session({ adapter });
  await adapter.free();
  for await (const { id } of session.generate(prompt, { maxTokens: 14 })) ids.push(id);
  await other.load(await session.save());
  for await (const { id } of other.generate(null, { maxTokens: 16 })) ids.push(id);
  model.close();
  return ids;
}"""


# Adapters that a session must not be made without: one that was freed, one of another model.
WRONG_ADAPTERS = """async () => {
  const { open } = await import(new URL("edgedec/client.js", location.href)), said = [];
  const site = await (await fetch("site.json")).json(), base = new URL("edgedec/", location.href).href;
  const options = { base, cache: false };
  const model = await open(site.bundle, options), other = await open(site.bundle, options);
  const freed = await model.adapter("a.lora", { cache: false });
  const foreign = await other.adapter("a.lora", { cache: false });
  await freed.free();
  for (const adapter of [freed, foreign, undefined])
    said.push(await model.session({ adapter }).then(() => "made", error => [error.code, error.message]));
  model.close();
  other.close();
  return said;
}"""


CONSTRAINED = """async ([prompt, schema, threads]) => {
  const { open } = await import(new URL("edgedec/client.js", location.href));
  const site = await (await fetch("site.json")).json(), base = new URL("edgedec/", location.href).href, ids = [];
  const model = await open(site.bundle, { threads, base, cache: false }), session = await model.session();
  let text = "";
  for await (const token of session.generate(prompt, { maxTokens: 60, temperature: 0.8, seed: 4, schema })) {
    if (token.id >= 0) ids.push(token.id);
    text += token.text;
  }
  model.close();
  return [text, ids];
}"""


@pytest.fixture(scope="module")
def folder(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nano_site(nano, tmp_path_factory)


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with served(folder, Quiet) as found:
        yield found


@pytest.mark.parametrize(("isa", "kv"), [("wasm", "f32"), ("wasm", "int8"), *(("wasm-relaxed", kv) for kv in GOLDEN)])
def test_the_engines_bytes(browser: Any, url: str, isa: str, kv: str) -> None:
    page = browser.new_page()
    page.goto(f"{url}site.json")  # of the site, but without the page's own fetch
    assert page.evaluate(HASH, [isa, kv, PROMPT]) == [isa, GOLDEN[kv]]
    page.close()


@pytest.mark.parametrize(("isa", "kv", "threads"), [("wasm", "f32", 2), ("wasm-relaxed", "int8", 3)])
def test_the_engines_bytes_on_threads(browser: Any, folder: Path, isa: str, kv: str, threads: int) -> None:
    with served(folder, Isolating) as url:
        page = browser.new_page()
        page.goto(f"{url}site.json")
        assert page.evaluate("crossOriginIsolated")
        assert page.evaluate(SHARED, [isa, kv, PROMPT, threads]) == [threads, GOLDEN[kv]]
        page.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_nano_tells_its_stories(browser: Any, nano: Path, folder: Path, threads: int) -> None:
    """Drafted in the browser, and by the native engine without."""
    prompts, python = [PROMPT, "One day, a little fox", '"Can I help you?" asked'], edgedec.open(nano, engine="native")
    ids = [python.tokenizer.encode(prompt) for prompt in prompts]
    want = [[int(t) for t in python.session(speculate="off").tokens(each, max_tokens=48)] for each in ids]
    with served(folder, Isolating) as url:
        page = browser.new_page()
        page.goto(f"{url}site.json")
        told = page.evaluate(STORIES, [prompts, threads])
        page.close()
    assert told == [[threads, story] for story in want]
    assert all(len(story) == 48 for story in want)


@pytest.mark.parametrize("threads", [1, 3])
def test_structured_output(browser: Any, nano: Path, folder: Path, tmp_path: Path, threads: int) -> None:
    """The tokens of Python's constraint, in the worker that has the engine."""
    constraints = pytest.importorskip("edgedec.constraints")
    pytest.importorskip("llguidance")
    shutil.copytree(folder, tmp_path / "site")
    shutil.copy(constraints_module(), tmp_path / "site" / "edgedec")
    python = edgedec.open(nano, engine="native")
    options = {"max_tokens": 60, "temperature": 0.8, "seed": 4}
    schema = {"type": "object", "properties": {"name": {"maxLength": 9, "type": "string"}}, "required": ["name"]}
    closed = schema | {"additionalProperties": False}
    ids, constraint = python.tokenizer.encode(PROMPT), constraints.json_schema(python, closed)
    want = [int(t) for t in python.session(speculate="off").tokens(ids, constraint=constraint, **options)]
    with served(tmp_path / "site", Isolating) as url:
        page = browser.new_page()
        page.goto(f"{url}site.json")
        text, told = page.evaluate(CONSTRAINED, [PROMPT, closed, threads])
        page.close()
    assert told == want
    assert list(json.loads(text)) == ["name"]


def test_an_adapter(browser: Any, nano: Path, folder: Path, tmp_path: Path) -> None:
    """By its URL, in the worker; and a session that is saved goes on in another."""
    shutil.copytree(folder, tmp_path / "site")
    python = edgedec.open(nano, engine="native")
    write_adapter(tmp_path / "site" / "a.lora", python)
    ids, adapter = python.tokenizer.encode(PROMPT), python.adapter(tmp_path / "site" / "a.lora")
    want = [int(t) for t in python.session(speculate="off", adapter=adapter).tokens(ids, max_tokens=30)]
    with served(tmp_path / "site", Quiet) as url:
        page = browser.new_page()
        page.goto(f"{url}site.json")
        assert page.evaluate(ADAPTED, PROMPT) == want
        freed, foreign, none = page.evaluate(WRONG_ADAPTERS)
        assert freed == ["usage", "the adapter was freed"]
        assert foreign == ["usage", "adapter: of another model"]
        assert none == "made"
        page.close()


def test_threads_need_an_isolated_page(browser: Any, url: str) -> None:
    page = browser.new_page()
    page.goto(f"{url}site.json")
    with pytest.raises(Exception, match="not isolated from others"):
        page.evaluate(SHARED, ["auto", "f32", PROMPT, 2])
    assert page.evaluate(SHARED, ["auto", "f32", PROMPT, 0]) == [1, GOLDEN["f32"]]
    page.close()
