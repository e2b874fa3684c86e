"""The chat page: one self-contained file that connects to this server only."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from starlette.responses import Response

PAGE = Path(__file__).with_name("page.html")


def page() -> Response:
    """The page, with a policy that allows its own scripts and styles by hash and nothing else."""
    text = PAGE.read_text("utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hashes(text, "script"),
        "style-src": _hashes(text, "style"),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(text.encode(), media_type="text/html", headers=headers)


def _hashes(text: str, tag: str) -> str:
    """As a policy writes them."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() for inside in found]
    return " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
