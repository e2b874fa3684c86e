"""What the scripts here share: the server, a function for the model, and cases that are run one after another."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

URL, MODEL = os.environ.get("EDGEDEC_URL", "http://127.0.0.1:8080"), os.environ.get("EDGEDEC_MODEL", "nano")
FIRST, SECOND = "Tell me a story.", "And then?"
FUNCTION: dict[str, Any] = {
    "name": "find",
    "description": "Finds an animal.",
    "parameters": {
        "type": "object",
        "properties": {"animal": {"type": "string", "enum": ["cat", "dog"]}},
        "required": ["animal"],
        "additionalProperties": False,
    },
}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def run(*cases: Callable[[], object]) -> None:
    """Run all; a line each, and an exit code that counts those that failed."""
    failed = 0
    for case in cases:
        try:
            case()
            print(f"{case.__name__}: ok", flush=True)
        except Exception:
            failed += 1
            print(f"{case.__name__}: failed", flush=True)
            traceback.print_exc(limit=-2, file=sys.stderr)
    sys.exit(failed)
