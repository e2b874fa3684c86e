"""`edgedec completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Annotated

import typer

from edgedec.cli._app import COMPLETE

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")]) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      edgedec completion bash >> ~/.bash_completion
      edgedec completion zsh > ~/.zfunc/_edgedec
      edgedec completion fish > ~/.config/fish/completions/edgedec.fish
    """
    made = import_module("typer.completion").get_completion_script
    print(made(prog_name="edgedec", complete_var=COMPLETE, shell=shell.value))
