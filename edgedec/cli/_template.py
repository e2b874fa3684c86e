"""`--chat-template`: a template in the place of the bundle's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli.options import read_text

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
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="NAME|TEXT",
        show_default=False,
        help="Instead of the bundle's: Jinja, or chatml, llama3, gemma.",
    ),
]
ChatTemplateFile = Annotated[
    Path | None, typer.Option("--chat-template-file", metavar="FILE", show_default=False, help="The same, from a file.")
]


def set_template(model: edgedec.Model, template: str | None, file: Path | None) -> None:
    """Make the model use what the flags name."""
    if template is not None and file is not None:
        raise typer.BadParameter("--chat-template and --chat-template-file: give one of them")
    if file is not None:
        model.chat_template = read_text(file)
    elif template is not None:
        model.chat_template = _text(template)


def _text(template: str) -> str:
    if template in NAMED:
        return NAMED[template]
    if "{{" not in template and "{%" not in template:
        raise typer.BadParameter(
            f"--chat-template {template}: give Jinja text, one of {', '.join(NAMED)}, or --chat-template-file FILE"
        )
    return template
