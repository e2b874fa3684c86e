"""`--chat-template`: a template in the place of the bundle's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli._flags.option import option
from edgedec.cli._flags.texts import read_text

if TYPE_CHECKING:
    import edgedec

# Templates that many models share, by llama.cpp's names.
NAMED = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "gemma": "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
}


@dataclass(frozen=True)
class TemplateFlags:
    """A chat template in the place of the bundle's own."""

    chat_template: Annotated[
        str | None,
        option(
            "--chat-template", metavar="NAME|TEXT", help="Instead of the bundle's: Jinja, or chatml, llama3, gemma."
        ),
    ] = None
    chat_template_file: Annotated[
        Path | None, option("--chat-template-file", metavar="FILE", help="The same, from a file.")
    ] = None

    @property
    def given(self) -> bool:
        return self.chat_template is not None or self.chat_template_file is not None

    def apply(self, model: edgedec.Model) -> None:
        """Make the model use what the flags name."""
        if self.chat_template is not None and self.chat_template_file is not None:
            raise typer.BadParameter("--chat-template and --chat-template-file: give one of them")
        if self.chat_template_file is not None:
            model.chat_template = read_text(self.chat_template_file)
        elif self.chat_template is not None:
            model.chat_template = _text(self.chat_template)


def _text(template: str) -> str:
    if template in NAMED:
        return NAMED[template]
    if "{{" not in template and "{%" not in template:
        raise typer.BadParameter(
            f"--chat-template {template}: give Jinja text, one of {', '.join(NAMED)}, or --chat-template-file FILE"
        )
    return template
