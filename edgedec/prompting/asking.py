"""A model as a function from a prompt to a text, which prompt programs are written over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgedec.model import Model

Ask = Callable[[str], str]


def asker(model: Model, max_tokens: int = 256, chat: bool | None = None, **options: Any) -> Ask:
    """A function that answers a prompt, each in a session of its own; what prompts have in common is read once. chat:
    whether the prompt is a message for the chat template; None: if the model has one. options: those of
    `Session.tokens`."""
    in_chat = model.chat_template is not None if chat is None else chat

    def ask(prompt: str) -> str:
        session = model.session()
        if in_chat:
            return "".join(session.chat([{"role": "user", "content": prompt}], max_tokens=max_tokens, **options))
        return "".join(session.generate(prompt, max_tokens=max_tokens, **options))

    return ask
