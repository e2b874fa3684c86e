"""A page in a browser, as tests see it: what stands there, what it complained of, what it asked for."""

from __future__ import annotations

from typing import Any


class Opened:
    """A page of its own context, so that nothing is kept from page to page."""

    def __init__(
        self, browser: Any, url: str, width: int = 1240, scheme: str = "light", height: int = 900, **more: Any
    ) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        self.url, self.page = url, self.context.new_page()
        self.page.set_default_timeout(5000)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def fits(self) -> bool:
        """Is nothing wider than the screen?"""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def dark(self) -> bool:
        ground = self.page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")
        return sum(map(int, ground[:3])) < 200

    def contrast(self, selector: str) -> float:
        """WCAG contrast of an element's ink on the ground below it (marks of drafters are too faint to count)."""
        script = (
            "s => { let e = document.querySelector(s), ink = getComputedStyle(e).color, on;"
            " do { on = getComputedStyle(e).backgroundColor; e = e.parentElement; } while (!on.startsWith('rgb('));"
            " return [ink, on].map(c => c.match(/[\\d.]+/g).slice(0, 3).map(Number)) }"
        )
        light, dark = sorted(map(_luminance, self.page.evaluate(script, selector)), reverse=True)
        return (light + 0.05) / (dark + 0.05)


class Chat(Opened):
    """The page of `edgedec serve`."""

    def __init__(self, browser: Any, url: str, width: int = 1000, scheme: str = "light", **more: Any) -> None:
        super().__init__(browser, url, width, scheme, height=700, **more)

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.keyboard.press("Enter")

    def ends(self) -> None:
        self.wait("running === null && !document.querySelector('.live')")

    def wait(self, script: str) -> None:
        """Until it is so. (Playwright's own waiting evaluates text in the page, which the policy forbids.)"""
        for _ in range(250):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"never came: {script}")

    def answers(self) -> list[str]:
        return list(self.page.locator(".answer .body").all_text_contents())

    def users(self) -> list[str]:
        return list(self.page.locator(".user .body").all_text_contents())

    def notice(self) -> str:
        self.page.wait_for_selector("#notice:not([hidden])")
        return str(self.page.text_content("#notice span"))

    def focus(self) -> str:
        return str(self.page.evaluate("document.activeElement.id || document.activeElement.textContent"))

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).last.click()

    def close(self) -> None:
        """It complained of nothing (a refusal is no complaint) and asked nobody but its server."""
        self.context.close()
        assert [c for c in self.complaints if "Failed to load resource" not in c] == []
        assert all(url.startswith(self.url) or url == "data:," for url in self.asked), self.asked


def _luminance(rgb: list[float]) -> float:
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
