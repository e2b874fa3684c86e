"""`edgedec web` in a browser: the page's answers, what it asks for; isolated, and offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import Chat
from typer.testing import CliRunner
from weblibrary import WHY_NOT
from websites import Quiet, served, write_nano_site

import edgedec
from edgedec.cli._app import app
from edgedec.export import web

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
PROMPT = "Once upon a time"
# Stops an answer when its first words are there: who looks from outside may come too late.
STOPPING = """() => {
  const [log, go, text] = ["log", "go", "text"].map(id => document.getElementById(id));
  const escape = { key: "Escape", bubbles: true };
  const watch = new MutationObserver(() => {
    if (!document.querySelector(".answer.live .line")) return;
    watch.disconnect();
    STOP;
  });
  watch.observe(log, { subtree: true, childList: true, characterData: true });
}"""


@pytest.fixture(scope="module")
def folder(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nano_site(nano, tmp_path_factory)


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with served(folder, Quiet) as found:
        yield found


class Site(Chat):
    """The page as a static site. Its script is a module: what it holds is not seen from outside."""

    def ends(self) -> None:
        ended = "#log[aria-busy=false] .answer:last-child:not(.live)"  # there from the moment that a message is sent
        self.page.locator(ended).wait_for(timeout=20000)

    def settle(self, **fields: float) -> None:
        self.page.click("text=Settings")
        for name, value in fields.items():
            self.page.fill(f"[name={name}]", str(value))
        self.page.click("text=Save")


@pytest.fixture
def site(browser: Any, url: str) -> Iterator[Site]:
    opened = Site(browser, url)
    opened.page.locator("h1", has_text="nano").wait_for(timeout=20000)
    yield opened
    opened.context.close()


def test_the_page_isolates_itself(site: Site) -> None:
    """Its server says nothing of it: the service worker does, and the page loads itself once more."""
    assert site.page.evaluate("crossOriginIsolated")
    assert sum(asked == site.url for asked in site.asked) == 2
    site.page.locator("html[data-threads]").wait_for()
    site.page.reload()
    site.page.locator("html[data-threads]").wait_for()
    assert sum(asked == site.url for asked in site.asked) == 3
    assert site.complaints == []


class Moved(Quiet):
    """A server that sends on who asks for what the site was called before."""

    def do_GET(self) -> None:  # noqa: N802
        if not self.path.startswith("/old"):
            return super().do_GET()
        self.send_response(302)
        self.send_header("Location", "/")
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_redirect_is_followed(browser: Any, folder: Path) -> None:
    with served(folder, Moved) as url:
        site = Site(browser, url)
        site.page.locator("html[data-threads]").wait_for()
        assert site.page.evaluate("navigator.serviceWorker.controller !== null")
        site.page.goto(f"{url}old")
        site.page.locator("h1", has_text="nano").wait_for(timeout=20000)
        assert site.page.url == url
        site.context.close()


def test_an_answer_is_pythons_with_marks_of_drafts(site: Site, nano: Path) -> None:
    session = edgedec.open(nano, engine="native").session(speculate="off")
    ids = session.model.chat_ids([{"role": "user", "content": PROMPT}])
    options = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "max_tokens": 120, "seed": 5}
    want = session.model.tokenizer.decode([int(token) for token in session.tokens(ids, **options)])
    site.settle(temperature=0.8, seed=5, max_tokens=120)
    site.say(PROMPT)
    site.ends()
    assert site.answers() == [want]
    marked = site.page.locator(".answer .by")
    assert marked.count() > 0
    assert {mark.get_attribute("title") for mark in marked.all()} == {"drafted by drafts"}
    assert "tokens/s" in site.page.locator(".answer .meta").inner_text()
    assert site.complaints == []


def test_a_second_message_and_stop(site: Site) -> None:
    site.settle(temperature=0, max_tokens=20)
    site.say("A dog")
    site.ends()
    site.settle(max_tokens=800)
    for text, stop in {
        "A cat": "go.click()",
        "A bird": "text.dispatchEvent(new KeyboardEvent('keydown', escape))",
    }.items():
        site.page.evaluate(STOPPING.replace("STOP", stop))
        site.say(text)
        site.ends()
        assert "stopped" in site.page.locator(".answer:last-child .meta").inner_text()
    assert len(site.answers()) == 3
    assert site.complaints == []


def test_nothing_leaves_the_folder(site: Site, url: str) -> None:
    site.settle(max_tokens=5)
    site.say(PROMPT)
    site.ends()
    assert len(site.asked) > 5
    assert all(asked.startswith(url) for asked in site.asked)
    with pytest.raises(Exception, match="Failed to fetch"):
        site.page.evaluate(
            "() => navigator.sendBeacon && new Promise((y, n) => { const x = new XMLHttpRequest();"
            " x.onerror = () => n(new Error('Failed to fetch')); x.onload = y;"
            " x.open('GET', 'http://127.0.0.1:9/'); x.send(); })"
        )
    assert any("Content Security Policy" in words for words in site.complaints)


def test_it_works_offline_after_the_first_load(site: Site, folder: Path, browser: Any) -> None:
    site.settle(temperature=0, max_tokens=12)
    site.say(PROMPT)
    site.ends()
    want = site.answers()
    site.page.evaluate("async () => { await navigator.serviceWorker.ready; }")
    site.page.click("text=Clear")
    site.context.set_offline(True)
    site.page.reload()
    site.page.locator("h1", has_text="nano").wait_for()
    site.say(PROMPT)
    site.ends()
    assert site.answers() == want


def test_it_can_be_installed_as_an_app(site: Site) -> None:
    """By Chromium's own rules; that its windows here are private ones is the one thing that is not the page's."""
    site.page.evaluate("async () => { await navigator.serviceWorker.ready; }")
    browser = site.context.new_cdp_session(site.page)
    manifest = browser.send("Page.getAppManifest")
    assert manifest["errors"] == []
    assert json.loads(manifest["data"])["short_name"] == "nano"
    found = {error["errorId"] for error in browser.send("Page.getInstallabilityErrors")["installabilityErrors"]}
    assert found <= {"in-incognito"}
    assert site.complaints == []


def test_the_command(nano: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "wasm_modules", lambda: [folder / "edgedec" / name for name in web.MODULES])
    out = tmp_path / "site"
    done = CliRunner().invoke(app, ["web", str(nano), "-o", str(out), "--kv", "int8", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["bytes"] > 1 << 20
    assert json.loads((out / "site.json").read_text("utf-8"))["kv"] == "int8"
    assert len(list(out.glob("*.edb"))) == 1
    for wrong in (["--kv", "int2"], ["--spec", "magic"], ["--draft", "65"], ["--threads", "2"], []):
        refused = CliRunner().invoke(app, ["web", str(nano), "-o", str(out), *wrong])
        assert refused.exit_code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
