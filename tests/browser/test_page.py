"""The chat page of `edgedec serve` in a browser: what is seen, what hands do, and that nothing goes wrong.

A server of canned chunks stands in for the real one, which test_serve_page.py asks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pages import Chat

import edgedec

PAGE = (Path(edgedec.__file__).parent / "server" / "page.html").read_text("utf-8")
# What the fake model says, and who had guessed it.
STORY = [
    ("There was a girl", ""),
    (" named Lily", "recycling+trigram"),
    (".", "copy"),
    (" <b>&amp;</b>", ""),
    ("\n\n<script>document.title = 'x'</script>", "trigram"),
    (" ünï ☃", "copy+suffix"),
    ("", "hydra"),
    (" end", ""),
]
TOLD = "".join(text for text, _ in STORY)


def hashed(tag: str) -> str:
    """What a content security policy calls the page's only script or style."""
    (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"


class Fake(ThreadingHTTPServer):
    """Says `story` to whoever asks, waiting for `gate` after `holds` chunks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.story, self.holds, self.gate = list(STORY), -1, threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, dict[str, str], str]] = []
        self.key, self.cut, self.lost = "", False, threading.Event()
        self.ending, self.thoughts = "stop", list[str]()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: object, address: object) -> None:
        """Clients that leave are what is tested."""


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def log_message(self, *about: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.path == "/":
            policy = f"default-src 'none'; script-src {hashed('script')}; style-src {hashed('style')}"
            policy += "; connect-src 'self'; img-src data:"
            self.reply(200, PAGE, "text/html; charset=utf-8", {"Content-Security-Policy": policy})
        elif self.allowed():
            self.reply(200, json.dumps({"object": "list", "data": [{"id": "fake <i>one</i>", "object": "model"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        self.server.asked.append(body)
        if self.server.refusals:
            status, headers, message = self.server.refusals.pop(0)
            self.reply(status, json.dumps({"error": {"message": message}}), headers=headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.stream()
        except OSError:
            self.server.lost.set()

    def stream(self) -> None:
        self.wfile.write(b": a comment keeps the line open\n\n")
        for thought in self.server.thoughts:
            self.send({"choices": [{"index": 0, "delta": {"reasoning_content": thought}, "finish_reason": None}]})
        for i, (text, by) in enumerate(self.server.story):
            if i == self.server.holds:
                self.wait()
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            self.send({"choices": [choice | ({"edgedec": {"by": by}} if by else {})]})
        if self.server.cut:
            return
        self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": self.server.ending}]})
        usage = {"prompt_tokens": 3, "completion_tokens": len(self.server.story)}
        self.send({"choices": [], "usage": usage, "edgedec": {"tokens_per_second": 507.25, "tokens_per_call": 1.67}})
        self.wfile.write(b"data: [DONE]\n\n")

    def wait(self) -> None:
        """For the gate; a client that leaves meanwhile is noticed by what is written to it."""
        while not self.server.gate.wait(0.01):
            self.wfile.write(b": waiting\n\n")

    def send(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def allowed(self) -> bool:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.reply(401, json.dumps({"error": {"message": "no key"}}))
            return False
        return True

    def reply(
        self, status: int, text: str, kind: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def chat(browser: Any, fake: Fake) -> Iterator[Chat]:
    opened = Chat(browser, fake.url)
    yield opened
    opened.close()


def test_thoughts_are_shown_while_they_last_and_are_no_part_of_the_talk(fake: Fake, chat: Chat) -> None:
    fake.thoughts, fake.holds = ["Hm", ", <b>so</b>"], 0
    chat.say("Hi")
    chat.wait("document.querySelector('.thought div')?.textContent === 'Hm, <b>so</b>'")
    assert chat.page.evaluate("document.querySelector('.thought').open")
    assert chat.page.text_content(".thought summary") == "Thinking…"
    assert chat.answers() == [""]
    fake.gate.set()
    chat.ends()
    assert not chat.page.evaluate("document.querySelector('.thought').open")
    assert str(chat.page.text_content(".thought summary")).startswith("Thought for ")
    assert chat.answers() == [TOLD]
    fake.thoughts = []
    chat.say("Again")
    chat.ends()
    assert [m["content"] for m in fake.asked[1]["messages"]] == ["Hi", TOLD, "Again"]
    assert chat.page.evaluate("document.querySelectorAll('.thought').length") == 1
    assert chat.complaints == []


def test_an_answer_streams(chat: Chat, fake: Fake) -> None:
    fake.holds = 2
    assert chat.page.get_attribute("#go", "disabled") is not None
    chat.page.click("#text")
    chat.page.keyboard.type("Tell me <b>more</b>")
    chat.page.click("#go")
    chat.wait("document.querySelector('.answer .body').textContent === 'There was a girl named Lily'")
    assert chat.page.locator(".live").count() == 1
    assert chat.page.text_content("#go") == "Stop"
    fake.gate.set()
    chat.ends()
    assert chat.answers() == [TOLD]
    assert chat.users() == ["Tell me <b>more</b>"]
    assert chat.page.locator("#log :is(b, i, script), h1 i").count() == 0
    assert chat.page.title() == "fake <i>one</i> · edgedec"
    assert chat.page.text_content(".answer .meta") == "507 tokens/s · 1.67 tokens a call · 8 tokens"
    assert chat.page.text_content("#said") == f"Answer: {TOLD}"
    assert chat.page.text_content("#go") == "Send"
    assert chat.complaints == []
    (asked,) = fake.asked
    assert asked == {
        "model": "fake <i>one</i>",
        "messages": [{"role": "user", "content": "Tell me <b>more</b>"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tokens_have_the_colour_of_their_drafter(chat: Chat) -> None:
    chat.say("Go")
    chat.ends()
    script = "[...document.querySelectorAll('#log .by')].map(e => [e.textContent, e.title, e.className])"
    known = {"recycling": "k0", "copy": "k1", "trigram": "k2"}
    assert chat.page.evaluate(script) == [
        [text, f"drafted by {by}", f"by {known[by.split('+')[0]]}"] for text, by in STORY if by and text
    ]
    legend = chat.page.locator("#legend > span").all_text_contents()
    assert legend == ["copy2", "recycling1", "trigram1", "hydra1", "the model itself3"]
    mark = "getComputedStyle(document.querySelector('#log .by.k1')).textDecorationLine"
    assert chat.page.evaluate(mark) == "underline"
    chat.click("Drafters")
    assert chat.page.evaluate(mark) == "none"
    assert not chat.page.is_visible("#legend")
    chat.page.reload()
    assert chat.page.get_attribute("#show", "aria-pressed") == "false"


def test_unknown_drafters_take_colours_that_are_free(chat: Chat, fake: Fake) -> None:
    fake.story = [(f" {name}", name) for name in ("copy", "new", "newer", "recycling", *"abcdefgh")]
    chat.say("Go")
    chat.ends()
    found = chat.page.evaluate("[...document.querySelectorAll('#log .by')].map(e => e.className.slice(3))")
    assert found[:2] == ["k1", "k0"]
    taken = [name for name in found if name != "kx"]
    assert len(set(taken)) == len(taken)
    assert found[-1] == "kx"


@pytest.mark.parametrize("hand", ["button", "Escape", "Enter on the button"])
def test_stopping_frees_the_server(chat: Chat, fake: Fake, hand: str) -> None:
    fake.holds = 3
    chat.say("Go")
    chat.wait("document.querySelector('.answer .body')?.textContent.endsWith('Lily.')")
    if hand == "button":
        chat.page.click("#go")
    elif hand == "Escape":
        chat.page.keyboard.press("Escape")
    else:
        chat.page.keyboard.press("Tab")
        chat.page.keyboard.press("Enter")
    assert fake.lost.wait(5), "the stream was not closed"
    chat.ends()
    assert chat.answers() == ["There was a girl named Lily."]
    assert chat.page.text_content(".answer .meta").endswith("stopped")
    assert not chat.page.is_visible("#notice")
    assert chat.focus() == "text"
    fake.holds = -1
    chat.say("And then?")
    chat.ends()
    assert [m["content"] for m in fake.asked[-1]["messages"]] == ["Go", "There was a girl named Lily.", "And then?"]
    assert [m["role"] for m in fake.asked[-1]["messages"]] == ["user", "assistant", "user"]


def test_stopping_before_the_first_token_leaves_no_answer(chat: Chat, fake: Fake) -> None:
    fake.holds = 0
    chat.say("Go")
    chat.page.wait_for_selector(".live")
    chat.page.keyboard.press("Escape")
    chat.ends()
    assert chat.answers() == []
    assert chat.users() == ["Go"]


def test_an_earlier_message_is_edited_and_sent_again(chat: Chat, fake: Fake) -> None:
    for text in ("One", "Two", "Three"):
        chat.say(text)
        chat.ends()
    chat.page.locator(".user").nth(1).hover()
    chat.page.locator(".user").nth(1).get_by_role("button", name="Edit").click()
    assert chat.page.input_value(".edit textarea") == "Two"
    chat.page.keyboard.press("Escape")
    assert chat.page.locator(".edit").count() == 0
    assert chat.focus() == "Edit"
    chat.page.keyboard.press("Enter")
    chat.page.keyboard.press("End")
    chat.page.keyboard.type(" and")
    chat.page.keyboard.press("Shift+Enter")
    chat.page.keyboard.type("more")
    chat.page.keyboard.press("Enter")
    chat.ends()
    assert chat.users() == ["One", "Two and\nmore"]
    assert len(chat.answers()) == 2
    assert [m["content"] for m in fake.asked[-1]["messages"]] == ["One", TOLD, "Two and\nmore"]
    assert chat.focus() == "text"


def test_the_last_message_is_one_key_away(chat: Chat, fake: Fake) -> None:
    chat.say("One")
    chat.ends()
    chat.page.keyboard.press("ArrowUp")
    chat.page.keyboard.press("End")
    chat.page.keyboard.type("!")
    chat.page.locator(".edit").get_by_role("button", name="Send").click()
    chat.ends()
    assert chat.users() == ["One!"]
    assert fake.asked[-1]["messages"] == [{"role": "user", "content": "One!"}]


def test_an_answer_is_made_again_also_while_it_runs(chat: Chat, fake: Fake) -> None:
    chat.say("One")
    chat.ends()
    fake.story = [("Other", "")]
    chat.click("Regenerate")
    chat.ends()
    assert chat.answers() == ["Other"]
    assert fake.asked[-1] == fake.asked[0]
    fake.story, fake.holds = [("Half", ""), (" whole", "")], 1
    chat.click("Regenerate")
    chat.wait("document.querySelector('.answer .body')?.textContent === 'Half'")
    fake.holds = -1
    chat.click("Regenerate")
    chat.ends()
    assert chat.answers() == ["Half whole"]


def test_clearing_can_be_undone(chat: Chat, fake: Fake) -> None:
    chat.say("One")
    chat.ends()
    chat.click("Clear")
    assert chat.users() == chat.answers() == []
    assert chat.page.is_visible("#empty")
    assert chat.notice() == "Cleared."
    chat.click("Undo")
    assert (chat.users(), chat.answers()) == (["One"], [TOLD])
    chat.click("Clear")
    chat.say("Two")
    chat.ends()
    assert fake.asked[-1]["messages"] == [{"role": "user", "content": "Two"}]
    assert not chat.page.is_visible("#notice")


def test_settings_are_sent_and_kept(chat: Chat, fake: Fake) -> None:
    chat.click("Settings")
    chat.page.fill("[name=temperature]", "5")
    chat.click("Save")
    assert chat.page.is_visible("#settings"), "5 is no temperature"
    chat.page.fill("[name=temperature]", "0.7")
    chat.page.fill("[name=seed]", "0")
    chat.page.fill("[name=max_tokens]", "40")
    chat.page.fill("[name=system]", "Be <brief>")
    chat.click("Save")
    for reload in (False, True):
        if reload:
            chat.page.reload()
        chat.say("Go")
        chat.ends()
        asked = fake.asked[-1]
        assert (asked["temperature"], asked["seed"], asked["max_tokens"]) == (0.7, 0, 40)
        assert asked["messages"][0] == {"role": "system", "content": "Be <brief>"}
    chat.click("Settings")
    assert chat.page.input_value("[name=seed]") == "0"
    chat.page.fill("[name=seed]", "9")
    chat.page.keyboard.press("Escape")
    assert not chat.page.is_visible("#settings")
    assert chat.focus() == "set"
    assert chat.page.evaluate("settings.seed") == 0


@pytest.mark.parametrize(
    "kept", ["{", "null", "[1]", '{"temperature": "hot", "seed": 1.5, "max_tokens": -1, "system": {}, "show": 3}']
)
def test_settings_of_somebody_else_do_no_harm(chat: Chat, fake: Fake, kept: str) -> None:
    chat.page.evaluate("text => localStorage.setItem('edgedec', text)", kept)
    chat.page.reload()
    chat.say("Go")
    chat.ends()
    assert set(fake.asked[-1]) == {"model", "messages", "stream", "stream_options"}
    assert len(fake.asked[-1]["messages"]) == 1


def test_a_browser_that_keeps_nothing_will_do(browser: Any, fake: Fake) -> None:
    chat = Chat(browser, "about:blank")
    chat.page.add_init_script("for (const s of ['localStorage', 'sessionStorage']) delete window[s]")
    chat.page.add_init_script(
        "for (const s of ['localStorage', 'sessionStorage'])"
        " Object.defineProperty(window, s, { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    chat.page.goto(fake.url)
    chat.click("Drafters")
    chat.say("Go")
    chat.ends()
    assert chat.answers() == [TOLD]
    assert chat.complaints == []
    chat.context.close()


def test_keys_do_everything(chat: Chat, fake: Fake) -> None:
    assert chat.focus() == "text"
    chat.page.keyboard.type("a")
    chat.page.keyboard.press("Shift+Enter")
    chat.page.keyboard.type("b")
    assert fake.asked == []
    chat.page.keyboard.press("Enter")
    chat.ends()
    assert chat.users() == ["a\nb"]
    assert chat.page.input_value("#text") == ""
    chat.page.keyboard.press("Enter")
    assert len(fake.asked) == 1, "an empty message was sent"
    reached = []
    for _ in range(6):
        chat.page.keyboard.press("Shift+Tab")
        reached.append(chat.focus())
    assert reached[:2] == ["Copy", "Regenerate"]
    assert "Edit" in reached


def test_an_input_method_may_end_a_word_with_enter(chat: Chat, fake: Fake) -> None:
    chat.page.fill("#text", "日本")
    press = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true})"
    assert chat.page.evaluate(f"document.getElementById('text').dispatchEvent({press})") is True
    assert fake.asked == []


def test_a_key_is_asked_for_once(browser: Any, fake: Fake) -> None:
    fake.key = "s3cret"
    chat = Chat(browser, fake.url)
    assert chat.notice() == "This server wants an API key; enter it to go on."
    chat.page.fill("[name=key]", "wrong")
    chat.page.keyboard.press("Enter")
    chat.wait("document.querySelector('#notice span').textContent.startsWith('The server refused this API key')")
    chat.page.fill("[name=key]", "s3cret")
    chat.page.keyboard.press("Enter")
    chat.wait("document.title.startsWith('fake')")
    assert not chat.page.is_visible("#notice")
    for reload in (False, True):
        if reload:
            chat.page.reload()
        chat.say("Go")
        chat.ends()
        assert chat.answers()[-1] == TOLD
    assert chat.page.evaluate("localStorage.getItem('edgedec-key')") is None
    assert not any("s3cret" in url for url in chat.asked)
    chat.context.close()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((429, {"Retry-After": "3"}, "full"), "The server is busy; try again in 3 s."),
        ((503, {}, "full"), "The server is busy; try again in a moment."),
        ((400, {}, "seed: must\nbe a number"), "The server refused this (400): seed: must be a number; change the"),
        ((403, {}, "wrong host"), "The server refused this (403): wrong host; change the"),
        ((500, {}, "<b>bug</b>"), "The server failed (500): <b>bug</b>; its own log says more. Try again."),
    ],
)
def test_refusals_say_what_to_do(chat: Chat, fake: Fake, refusal: tuple[int, dict[str, str], str], said: str) -> None:
    fake.refusals = [refusal]
    chat.say("Go")
    assert chat.notice().startswith(said)
    assert chat.answers() == []
    chat.click("Try again")
    chat.ends()
    assert (chat.users(), chat.answers()) == (["Go"], [TOLD])
    assert fake.asked[0] == fake.asked[1]


def test_a_server_that_goes_away_is_told(chat: Chat, fake: Fake) -> None:
    fake.cut = True
    chat.say("Go")
    assert chat.notice().startswith("The answer broke off: the server at 127.0.0.1")
    assert chat.answers() == [TOLD], "what came stays"
    fake.shutdown()
    fake.server_close()
    chat.click("Try again")
    chat.wait("document.querySelector('#notice span').textContent.startsWith('The server at')")
    assert "start it again (edgedec serve), then try again." in chat.notice()
    assert chat.users() == ["Go"]


def test_the_conversation_stays_over_a_reload(chat: Chat, fake: Fake) -> None:
    chat.say("Go")
    chat.ends()
    chat.page.reload()
    assert (chat.users(), chat.answers()) == (["Go"], [TOLD])
    chat.say("On")
    chat.ends()
    assert [m["content"] for m in fake.asked[-1]["messages"]] == ["Go", TOLD, "On"]
    chat.click("Clear")
    chat.page.reload()
    assert chat.users() == []


@pytest.mark.parametrize(
    "kept", ["{", "null", "7", '[null, {"role": "system", "text": "x"}, {"role": "user", "text": 3}]']
)
def test_a_conversation_of_somebody_else_does_no_harm(chat: Chat, fake: Fake, kept: str) -> None:
    chat.page.evaluate("text => sessionStorage.setItem('edgedec-talk', text)", kept)
    chat.page.reload()
    assert chat.users() == []
    chat.say("Go")
    chat.ends()
    assert len(fake.asked[-1]["messages"]) == 1


def test_why_it_ended_is_told(chat: Chat, fake: Fake) -> None:
    fake.ending = "length"
    chat.say("Go")
    chat.ends()
    assert chat.page.text_content(".answer .meta").endswith("ended by the token limit")
    fake.ending, fake.story = "stop", []
    chat.say("Go")
    chat.ends()
    assert chat.page.locator(".answer .meta").last.text_content().endswith("the model ended at once")


def test_a_long_answer_stays_light(chat: Chat, fake: Fake) -> None:
    """No more elements than drafted tokens, blocks of bounded length, and what stands is never touched."""
    fake.story = [(f" w{i}" + "\n" * (i % 40 == 39), "copy" if i % 4 == 0 else "") for i in range(12000)]
    fake.holds = 3000
    chat.say("Go")
    chat.wait("turns[1]?.tokens === 3000")
    chat.page.evaluate(
        "() => { window.touched = 0; const old = document.querySelectorAll('.line')[2];"
        " new MutationObserver(m => touched += m.length).observe(old,"
        " {childList: true, characterData: true, subtree: true, attributes: true}); }"
    )
    fake.gate.set()
    chat.ends()
    assert chat.answers() == ["".join(text for text, _ in fake.story)]
    assert chat.page.evaluate("touched") == 0
    assert chat.page.evaluate("document.querySelectorAll('#log *').length") < 3000 + 150
    assert (
        chat.page.evaluate("Math.max(...[...document.querySelectorAll('.line')].map(e => e.textContent.length))") < 1400
    )
    chat.wait("scrollY + innerHeight >= document.documentElement.scrollHeight - 4")
    chat.page.mouse.wheel(0, -2000)
    chat.wait("!stuck")
    before = chat.page.evaluate("scrollY")
    chat.page.evaluate("follow()")
    chat.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert chat.page.evaluate("scrollY") == before, "whoever reads above is left there"


@pytest.mark.parametrize("width", [320, 375, 1240])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_shows_it(browser: Any, fake: Fake, width: int, scheme: str) -> None:
    chat = Chat(browser, fake.url, width, scheme)
    chat.say("A long word: " + "m" * 300)
    chat.ends()
    assert chat.dark() == (scheme == "dark")
    for opener in (None, "Settings"):
        if opener:
            chat.click(opener)
        assert chat.fits(), "it does not fit the width"
    chat.page.keyboard.press("Escape")
    for selector in (".answer .body", ".user .body", ".answer .meta", "#legend small", "#log .by.k0", ".acts button"):
        assert chat.contrast(selector) >= 4.5, selector
    assert chat.complaints == []
    chat.context.close()


def test_the_page_needs_nothing_but_itself() -> None:
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)""", PAGE)
    assert not re.findall(r"""\s(?:style|on[a-z]+)\s*=\s*["']""", PAGE.split("<script>")[0]), (
        "hashes cannot allow those"
    )
    assert "innerHTML" not in PAGE
    assert len(PAGE.encode()) < 40_000
