"""Writes what the Kotlin library is held to: `python tests/kotlin_golden.py` (after nano or the templates changed)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from chat_templates import CHATS, TEMPLATES

import edgedec
from edgedec import Sampling
from edgedec.text.template import render_chat

GOLDEN = Path(__file__).parents[1] / "android_demo" / "edgedec-kotlin" / "src" / "test" / "resources" / "golden.json"
PROMPTS = ["Once upon a time", "One day, a little fox", '"Can I help you?" asked']
REPEATS = "The cat sat on the mat. The dog sat on the mat. The cat sat on the"
CACHES = ("f32", "f16", "int8", "int4")
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 7},
    {"temperature": 1.2, "top_k": 20, "seed": 1},
    {"temperature": 0.9, "top_p": 0.8, "seed": 2**40 + 5},
    {"temperature": 1.0, "min_p": 0.05, "seed": 3},
    {"temperature": 1.0, "typical_p": 0.7, "seed": 4},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 5},
    {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    {"temperature": 0.6, "logit_bias": {12: -2.5, 14: 1.5}, "seed": 6},
]
SEEDS = (0, 1, 7, 2**40 + 5, 2**63 - 1)
TEXTS = [
    "",
    " ",
    "Hello, world! It's 2024-01-31, isn't it?\n\tTabs  and   spaces.",
    "Grüße, Ελλάδα, привет, שלום, مرحبا, नमस्ते, 你好，世界, こんにちは, 안녕",
    "🙂👩‍👩‍👧‍👦\u200b\u0301\x00\x7f\ufffd𝔘𝔫𝔦",
    "def f(x):\n    return {'a': [x ** 2, \"b\"]}  # <|endoftext|> </s> <0x41>",
    "a" * 300,
    " " * 40,
    "\r\n\n ab\n",
    "Über\u00a0Nacht\u3000x",
]


def stories(session: Any) -> list[dict[str, Any]]:
    """Greedy continuations with their texts."""
    encode = session.model.tokenizer.encode
    return [
        {"prompt": p, "ids": list(encode(p)), "tokens": [int(t) for t in session.tokens(encode(p), max_tokens=48)],
         "text": "".join(session.generate(p, max_tokens=48))}
        for p in PROMPTS
    ]  # fmt: skip


def drawn(session: Any) -> list[dict[str, Any]]:
    """Sampled continuations by setting."""
    ids = session.model.tokenizer.encode(PROMPTS[0])
    return [
        {"sampling": s, "tokens": [int(t) for t in session.tokens(ids, max_tokens=40, sampling=Sampling(**s))]}
        for s in SETTINGS
    ]


def settings(pick: Any, seed: int) -> dict[str, Any]:
    """Random sampling settings."""
    return {
        "temperature": pick(0.0, 0.5, 0.8, 1.0, 1.3),
        "top_k": pick(0, 0, 5, 40),
        "top_p": pick(1.0, 0.95, 0.7),
        "min_p": pick(0.0, 0.0, 0.02),
        "typical_p": pick(1.0, 1.0, 0.9),
        "repetition_penalty": pick(1.0, 1.0, 1.1),
        "presence_penalty": pick(0.0, 0.0, 0.3),
        "frequency_penalty": pick(0.0, 0.0, 0.2),
        "seed": seed,
    }


def requests(n: int = 200) -> list[dict[str, Any]]:
    """Random settings, cache formats and drafters on random prompts, a few tokens each; `more`: what follows, in the
    session itself, a fork, one that loaded it from a file, or on its text but for 3 tokens."""
    rng, models = np.random.default_rng(15), {kv: edgedec.open("nano", engine="native", kv=kv) for kv in CACHES}
    found = []
    for i in range(n):
        pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
        kv, drafts, then = pick(*CACHES), pick("off", "copy", "auto"), pick("on", "fork", "saved", "cut")
        sampling = settings(pick, i)
        session = models[kv].session(speculate=drafts)
        ids = models[kv].tokenizer.encode(pick(*PROMPTS, "The dog", "Tom and Ben", "It was dark.", REPEATS))
        tokens = [int(t) for t in session.tokens(ids, max_tokens=16, sampling=Sampling(**sampling))]
        goes_on, text = continued(session, then, drafts), session.ids[:-3] if then == "cut" else None
        more = [int(t) for t in goes_on.tokens(text, max_tokens=10, sampling=Sampling(**(sampling | {"seed": None})))]
        found.append({"ids": ids, "kv": kv, "drafts": drafts, "sampling": sampling, "tokens": tokens,
                      "then": then, "more": more})  # fmt: skip
    return found


def continued(session: Any, then: str, drafts: str) -> Any:
    """The session in which the text goes on."""
    if then == "fork":
        return session.fork()
    if then != "saved":
        return session
    with tempfile.TemporaryDirectory() as folder:
        session.save(Path(folder) / "s")
        other = session.model.session(speculate=drafts)
        other.load(Path(folder) / "s")
        return other


def rendered() -> list[dict[str, Any]]:
    """Chats through templates; `error` where a template refuses."""
    found = []
    for name, template in TEMPLATES.items():
        for chat in CHATS:
            case: dict[str, Any] = {"name": name, "template": template, "messages": chat}
            try:
                case["text"] = render_chat(template, chat, bos_token="<s>", eos_token="</s>")
            except edgedec.errors.TextError as error:
                case["error"] = str(error)
            found.append(case)
    return found


def golden() -> dict[str, Any]:
    """Everything, from the native engine."""
    session = edgedec.open("nano", engine="native").session(speculate="off")
    tokenizer = session.model.tokenizer
    return {
        "stories": stories(session),
        "drawn": drawn(session),
        "requests": requests(),
        "random": [{"seed": s, "values": np.random.default_rng(s).random(5).tolist()} for s in SEEDS],
        "encoded": [
            {"text": t, "ids": tokenizer.encode(t), "plain": tokenizer.encode(t, special=False)} for t in TEXTS
        ],
        "templates": rendered(),
    }


if __name__ == "__main__":
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, items)) + "\n]" for name, items in golden().items()]
    GOLDEN.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")
