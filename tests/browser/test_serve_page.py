"""The chat page before the real `edgedec serve`: what is seen is what the server says, and stopping frees its slot."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import Chat
from serving import fetch, metrics, started, wait_for

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason=f"`edgedec serve` needs {package}")
FIGURES = re.compile(r"[\d,.]+ tokens/s · [\d.]+ tokens? a call · (\d+) tokens( · .*)?")


@pytest.fixture(scope="module")
def quick(nano: Path) -> Iterator[str]:
    """Drafts whatever it can, so that there is something to colour."""
    with started(nano, "--slots", "1", "--spec", "copy:fixed=6+recycling") as (place, _):
        yield place


@pytest.fixture(scope="module")
def slow(nano: Path) -> Iterator[str]:
    """Some tens of tokens a second: there is time to see an answer come, and to stop it."""
    with started(nano, "--slots", "1", "--engine", "reference", "--spec", "off") as (place, _):
        yield place


@pytest.fixture
def chat(browser: Any, quick: str) -> Iterator[Chat]:
    opened = Chat(browser, f"{quick}/")
    settle(opened, temperature=0, max_tokens=60)
    yield opened
    opened.close()


@pytest.fixture
def slowly(browser: Any, slow: str) -> Iterator[Chat]:
    opened = Chat(browser, f"{slow}/")
    yield opened
    opened.close()


def settle(chat: Chat, **fields: float) -> None:
    chat.click("Settings")
    for name, value in fields.items():
        chat.page.fill(f"[name={name}]", str(value))
    chat.click("Save")


def said(place: str, *turns: str, **more: Any) -> dict[str, Any]:
    """The whole answer to a conversation, without a page."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"model": "nano", "messages": messages, "temperature": 0, "max_tokens": 60, **more}
    request = urllib.request.Request(
        f"{place}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return dict(json.load(answer))


def running(place: str) -> int:
    return int(json.loads(fetch(f"{place}/health"))["running"])


def legend(chat: Chat) -> dict[str, int]:
    script = "[...document.querySelectorAll('#legend > span')].map(e => [...e.children].map(c => c.textContent))"
    return {name: int(n) for name, n in chat.page.evaluate(script)}


def test_an_answer_is_the_servers_with_its_figures_and_colours(chat: Chat, quick: str) -> None:
    before = metrics(quick)
    chat.page.click("#text")
    chat.page.keyboard.type("Tell me about a cat named Tom")
    chat.page.click("#go")
    chat.ends()
    after = metrics(quick)
    expected = said(quick, "Tell me about a cat named Tom")
    assert chat.answers() == [expected["choices"][0]["message"]["content"]]
    assert chat.page.title() == "nano · edgedec"
    figures = FIGURES.fullmatch(chat.page.text_content(".answer .meta"))
    assert figures is not None
    assert int(figures[1]) == expected["usage"]["completion_tokens"]
    # Every token that a drafter is named for was an accepted guess, and each of those is named.
    counts = legend(chat)
    own = counts.pop("the model itself")
    accepted = after["edgedec_accepted_tokens_total"] - before["edgedec_accepted_tokens_total"]
    assert set(counts) <= {"copy", "recycling"}
    assert sum(counts.values()) == accepted > 0
    assert own + accepted == int(figures[1])
    marked = chat.page.evaluate("[...document.querySelectorAll('#log .by')].map(e => [e.title, e.className])")
    assert len(marked) == accepted
    assert {title.removeprefix("drafted by ").split("+")[0] for title, _ in marked} == set(counts)
    assert {name for _, name in marked} <= {"by k0", "by k1"}


def test_the_page_says_what_nano_is_and_offers_openings(chat: Chat) -> None:
    chat.wait("document.querySelectorAll('#openings button').length === 3")
    assert "little stories" in chat.page.text_content("#about")
    assert chat.page.is_visible("#about")
    opening = chat.page.text_content("#openings button")
    chat.page.click("#openings button")
    chat.ends()
    assert chat.page.text_content(".user .body") == opening
    assert len(chat.answers()[0]) > 20
    assert not chat.page.is_visible("#about")


@pytest.mark.parametrize("hand", ["button", "Escape"])
def test_an_answer_streams_and_stopping_frees_its_slot(slowly: Chat, slow: str, hand: str) -> None:
    chat, before = slowly, metrics(slow)
    chat.say("Tell me about a cat named Tom")
    length = 0
    for _ in range(4):
        chat.wait(f"document.querySelector('.live .body')?.textContent.length > {length}")
        length = len(chat.answers()[0])
    assert running(slow) == 1
    if hand == "button":
        assert chat.page.text_content("#go") == "Stop"
        chat.page.click("#go")
    else:
        chat.page.keyboard.press(hand)
    chat.ends()
    (text,) = chat.answers()
    assert text
    wait_for(lambda: running(slow) == 0)
    cancelled = 'edgedec_texts_total{reason="cancelled"}'
    assert metrics(slow)[cancelled] == before.get(cancelled, 0) + 1
    assert chat.page.text_content(".answer .meta").endswith("stopped")
    assert chat.answers() == [text], "nothing comes after the stop"
    # The only slot serves the next message.
    settle(chat, temperature=0, max_tokens=3)
    chat.say("And then?")
    chat.ends()
    expected = said(slow, "Tell me about a cat named Tom", text, "And then?", max_tokens=3)
    assert chat.answers()[1] == expected["choices"][0]["message"]["content"]
    assert chat.page.locator(".answer .meta").last.text_content().endswith("ended by the token limit")


def test_an_edited_message_is_answered_anew(chat: Chat, quick: str) -> None:
    for text in ("One day, a fox", "And a dog?"):
        chat.say(text)
        chat.ends()
    assert len(chat.answers()) == 2
    first = chat.page.locator(".user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    chat.page.fill(".edit textarea", "One day, a bird")
    chat.page.locator(".edit").get_by_role("button", name="Send").click()
    chat.ends()
    assert chat.users() == ["One day, a bird"]
    assert chat.answers() == [said(quick, "One day, a bird")["choices"][0]["message"]["content"]]


def test_no_mouse_is_needed(chat: Chat, quick: str) -> None:
    chat.page.reload()
    assert chat.focus() == "text"
    chat.page.keyboard.type("Lily had a ball")
    chat.press("Enter")
    chat.ends()
    chat.press("ArrowUp", "End")
    chat.page.keyboard.type(".")
    chat.press("Enter")
    chat.ends()
    assert chat.users() == ["Lily had a ball."]
    assert chat.answers() == [said(quick, "Lily had a ball.")["choices"][0]["message"]["content"]]
    for button, key in (("show", "Space"), ("set", "Enter")):
        for _ in range(20):
            if chat.focus() == button:
                break
            chat.press("Shift+Tab")
        assert chat.focus() == button
        chat.press(key)
    assert chat.page.get_attribute("#show", "aria-pressed") == "false"
    assert chat.page.is_visible("#settings")
    chat.press("Escape")
    assert not chat.page.is_visible("#settings")


@pytest.mark.parametrize("width", [320, 1240])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_shows_it(browser: Any, quick: str, width: int, scheme: str) -> None:
    chat = Chat(browser, f"{quick}/", width, scheme)
    settle(chat, temperature=0, max_tokens=60)
    chat.say("A long word: " + "m" * 100)
    chat.ends()
    assert chat.dark() == (scheme == "dark")
    assert chat.fits()
    for selector in (".answer .body", ".user .body", ".answer .meta", "#legend small", "#speed"):
        assert chat.contrast(selector) >= 4.5, selector
    chat.click("Settings")
    assert chat.fits()
    chat.close()
