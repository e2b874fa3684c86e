"""A chat template as a table: what it gives is what Jinja gives, and what is no table is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chat_templates import TEMPLATES

from edgedec.bundle.folder import Bundle
from edgedec.errors import TextError
from edgedec.export.chat_table import chat_table
from edgedec.text.template import render_chat

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def with_template(bundle: Bundle, template: str) -> Bundle:
    text = replace(bundle.manifest.text, chat_template=template, **NAMES)
    return replace(bundle, manifest=replace(bundle.manifest, text=text))


def written(table: dict[str, str], messages: list[dict[str, str]]) -> str:
    """As runtimes/web/page/local.js writes them."""
    text, before = "", ""
    for message in messages:
        content = message["content"].strip() if message["role"] in table["trim"].split() else message["content"]
        text += table[f"{before}>{message['role']}"] + content
        before = message["role"]
    return text + table[f"{before}>"]


def talk(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": f" {role} says {i}\n"} for i, role in enumerate(roles)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_it_writes_what_the_template_writes(nano: Path, name: str) -> None:
    template = TEMPLATES[name]
    try:
        table = chat_table(with_template(Bundle.open(nano), template))
    except TextError:
        assert name == "blocks"
        return
    talks = [talk("user"), talk(*("user", "assistant") * 3, "user")]
    if ">system" in table:
        talks.append(talk("system", "user", "assistant", "user"))
    for messages in talks:
        assert written(table, messages) == render_chat(template, messages, **NAMES)


def test_nanos_is_one(nano: Path) -> None:
    assert chat_table(Bundle.open(nano))["user>assistant"] == "\n\n"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}[{{ m.content | upper }}]{% endfor %}",
        "{{ messages[-1].content }}",
        "{% for m in messages %}[{{ m.content | replace(' ', '_') }}]{% endfor %}",
    ],
)
def test_what_is_no_table_is_refused(nano: Path, template: str) -> None:
    with pytest.raises(TextError, match="no plain sequence"):
        chat_table(with_template(Bundle.open(nano), template))
