"""The page of `edgedec trace` in a browser: what is seen, what hands do, and that nothing goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import Opened
from traces import NASTY, spell_nasty, tape

from edgedec.bench.trace import Tape, page

ABOUT = {"model": "fake", "engine": "fake", "spec": "auto", "temperature": 0, "prompt_tokens": 3}
PROMPT = "A prompt with </script> and\na second line:"


class Shown(Opened):
    """The page of a file."""

    def __init__(self, browser: Any, file: Path, width: int = 1240, scheme: str = "light") -> None:
        super().__init__(browser, file.as_uri(), width, scheme)

    def text(self, selector: str) -> str:
        return str(self.page.evaluate("selector => document.querySelector(selector).textContent", selector))

    def tokens(self) -> list[str]:
        found: list[str] = self.page.evaluate("[...document.querySelectorAll('.tok')].map(e => e.textContent)")
        return found

    def marked(self) -> list[int]:
        """The tokens of the call that is shown."""
        found: list[int] = self.page.evaluate("[...document.querySelectorAll('.tok.in')].map(e => +e.dataset.i)")
        return found

    def heading(self) -> str:
        return self.text("#h-call")


@pytest.fixture(scope="module")
def made() -> Tape:
    return tape()


@pytest.fixture(scope="module")
def file(made: Tape, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "trace.html"
    path.write_bytes(page(made, ABOUT, PROMPT, spell_nasty).encode())
    return path


@pytest.fixture
def shown(browser: Any, file: Path) -> Iterator[Shown]:
    opened = Shown(browser, file)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert opened.asked == [file.as_uri()]


def rejecting(made: Tape) -> tuple[int, int]:
    """A call that accepted some and rejected some, and its first token."""
    token = 0
    for i, call in enumerate(made.calls):
        if i and 0 < len(call["path"]) < len(call["tokens"]):
            return i, token
        token += call["emitted"]
    raise AssertionError("no such call")


def test_the_tokens_are_the_text(shown: Shown, made: Tape) -> None:
    assert shown.tokens() == made.texts  # a lone surrogate included
    assert shown.text("#prompt") == PROMPT
    assert shown.page.title() == "fake · edgedec trace"
    assert shown.page.locator("#text b, #text img, #tree img").count() == 0


def test_colours_follow_the_drafters(shown: Shown, made: Tape) -> None:
    titles = shown.page.evaluate("[...document.querySelectorAll('.tok')].map(e => e.title)")
    known, n = [], 0
    for i, call in enumerate(made.calls):
        for k in range(call["emitted"]):
            by = f"drafted by {call['by'][call['path'][k]]}" if k < len(call["path"]) else "not drafted"
            known.append(f"{by}, call {i + 1}")
    assert titles == known
    legend = shown.page.locator("#legend button").all_text_contents()
    n = sum(len(call["tokens"]) for call in made.calls)
    assert sum(int(text.split(" of ")[1].split()[0]) for text in legend if " of " in text) == n
    assert "the model itself" in legend[-1]


def test_hovering_shows_the_rejected_branches(shown: Shown, made: Tape) -> None:
    i, token = rejecting(made)
    call = made.calls[i]
    shown.page.evaluate("t => spans[t].scrollIntoView({block: 'center'})", token)
    shown.page.evaluate("t => spans[t].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))", token)
    assert shown.heading() == f"Call {i + 1} of {len(made.calls)}"
    assert shown.marked() == list(range(token, token + call["emitted"]))
    assert shown.page.locator("#tree .chip.yes").count() == len(call["path"])
    assert shown.page.locator("#tree .chip.no").count() == len(call["tokens"]) - len(call["path"])
    chips = shown.page.locator("#tree .chip.no").all_text_contents()
    for node in set(range(len(call["tokens"]))) - set(call["path"]):
        assert any(call["by"][node] in chip and f"{call['p'][node]:.2f}" in chip for chip in chips)
    assert shown.text("#told .why") == call["why"]
    assert f"{len(call['path'])} of {len(call['tokens'])} drafted tokens accepted" in shown.text("#told")


def test_a_real_mouse_hovers_and_pins(shown: Shown, made: Tape) -> None:
    at = [i for i, text in enumerate(made.texts) if text == " the"]
    shown.page.locator(".tok").nth(at[0]).hover()
    before = shown.heading()
    assert at[0] in shown.marked()
    shown.page.locator(".tok").nth(at[0]).click()
    shown.page.locator(".tok").nth(at[-1]).hover()
    assert shown.heading() == before
    assert shown.page.get_attribute("#pin", "aria-pressed") == "true"
    shown.press("Escape")
    shown.page.locator(".tok").nth(at[0]).hover()
    shown.page.locator(".tok").nth(at[-1]).hover()
    assert at[-1] in shown.marked()
    assert shown.heading() != before


def test_keys_walk_tokens_and_calls(shown: Shown, made: Tape) -> None:
    shown.page.locator(".tok").nth(0).focus()
    assert shown.marked()[0] == 0
    shown.press("ArrowDown")
    second = made.calls[0]["emitted"]
    assert shown.marked()[0] == second
    shown.press("ArrowRight", "ArrowLeft", "ArrowLeft")
    assert shown.marked()[-1] == second - 1
    shown.press("End")
    assert shown.marked()[-1] == len(made.texts) - 1
    shown.press("ArrowDown", "ArrowRight")
    assert shown.marked()[-1] == len(made.texts) - 1
    shown.press("Home", "ArrowUp", "ArrowLeft")
    assert shown.marked()[0] == 0
    assert shown.page.evaluate("document.querySelectorAll('.tok[tabindex=\"0\"]').length") == 1


def test_the_page_can_be_walked_by_tab(shown: Shown) -> None:
    reached = []
    for _ in range(12):
        shown.press("Tab")
        reached.append(shown.page.evaluate("(document.activeElement.id || document.activeElement.className)"))
    assert "chart" in reached
    assert "pin" in reached
    assert sum("tok" in name.split() for name in reached) == 1


def test_the_chart_leads_to_calls(shown: Shown, made: Tape) -> None:
    n = len(made.calls)
    shown.page.locator("#chart").focus()
    shown.press("End")
    assert shown.page.get_attribute("#chart", "aria-valuenow") == str(n)
    assert shown.heading() == f"Call {n} of {n}"
    shown.press("ArrowLeft")
    assert shown.heading() == f"Call {n - 1} of {n}"
    assert made.calls[n - 2]["why"] in shown.text("#readout")
    box = shown.page.locator("#chart").bounding_box()
    shown.page.mouse.move(box["x"] + 60, box["y"] + 40)
    assert shown.heading().startswith(f"Call 1 of {n}")
    shown.page.mouse.move(box["x"] + box["width"] - 8, box["y"] + 40)
    assert shown.heading() == f"Call {n} of {n}"


def test_the_legend_singles_out_a_drafter(shown: Shown, made: Tape) -> None:
    shown.page.locator("#legend button").last.click()
    own = shown.page.evaluate("[...document.querySelectorAll('.tok.sel')].map(e => e.title)")
    assert len(own) == sum(call["emitted"] > len(call["path"]) for call in made.calls)
    assert all(title.startswith("not drafted") for title in own)
    shown.page.locator("#legend button").last.click()
    assert shown.page.locator(".tok.sel").count() == 0


@pytest.mark.parametrize("width", [360, 1240])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_shows_it(browser: Any, file: Path, width: int, scheme: str) -> None:
    shown = Shown(browser, file, width, scheme)
    assert shown.dark() == (scheme == "dark")
    assert shown.fits(), "it does not fit the width"
    assert shown.page.locator("#chart svg path").count() >= 5
    for selector in (".tok.own", "#told p", "h2"):
        assert shown.contrast(selector) >= 4.5, selector
    assert shown.complaints == []
    shown.context.close()


def test_a_long_generation_has_as_many_elements_as_tokens(browser: Any, made: Tape, tmp_path: Path) -> None:
    times = 5000 // len(made.texts)
    long = Tape(calls=made.calls * times, texts=made.texts * times)
    (tmp_path / "long.html").write_bytes(page(long, ABOUT, PROMPT * 100, spell_nasty).encode())
    shown = Shown(browser, tmp_path / "long.html")
    assert shown.page.evaluate("document.querySelectorAll('*').length") < 5000 + 400
    assert "…" in shown.text("#prompt")
    assert shown.text("#whole pre") == PROMPT * 100
    shown.page.locator("#chart").focus()
    shown.press("End")
    assert shown.heading().startswith(f"Call {len(long.calls):,} of")
    assert shown.complaints == []
    shown.context.close()


def test_nothing_generated_is_a_page_too(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "none.html").write_bytes(page(Tape(), ABOUT, PROMPT, spell_nasty).encode())
    shown = Shown(browser, tmp_path / "none.html")
    assert shown.tokens() == []
    assert shown.text("#prompt") == PROMPT
    shown.page.mouse.move(400, 300)
    shown.page.locator("#chart").focus()
    shown.press("ArrowRight", "End", "Enter")
    shown.page.locator("#chart").click()
    assert shown.complaints == []
    shown.context.close()


def test_the_spellings_are_as_bad_as_they_claim(made: Tape) -> None:
    """All of them are in the text, or the tests above prove little."""
    shown = set(made.texts) | {NASTY[token] for call in made.calls for token in call["tokens"]}
    assert shown == set(NASTY)


def test_a_table_has_the_state_of_each_drafter(browser: Any, made: Tape, tmp_path: Path) -> None:
    file, states = tmp_path / "trace.html", {"copy": "waits 64 calls", "eagle3": "hopeless: <b>it takes longer</b>"}
    file.write_bytes(page(made, ABOUT, PROMPT, spell_nasty, states).encode())
    opened = Shown(browser, file)
    rows: list[str] = opened.page.evaluate("[...document.querySelectorAll('#states tr')].map(e => e.textContent)")
    assert rows == [name + state for name, state in states.items()]
    opened.context.close()
    assert opened.complaints == []
