"""The group of verbs: finds them by file name, and converts errors into one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgedec.bundle.locate import Progress, announce
from edgedec.cli._ending import INTERRUPTED, ending_by_signals
from edgedec.cli._visible import visible, visible_streams
from edgedec.errors import EdgedecError

# The order of the help: texts; models; training; what is in a bundle; measurements and the machine. A verb that is not
# named here comes last.
_ORDER = (
    *("run", "chat", "serve", "batch", "embed", "rerank", "classify", "trace"),
    *("export", "quantize", "import", "pull", "list", "rm", "add", "add-draft", "adapter", "pack", "web"),
    *("train-heads", "train-lora", "train-cache", "train-subwords", "train-exits", "train-experts"),
    *("train-latent", "train-diffusion", "train-embedder"),
    *("calibrate", "datastore", "labels"),
    *("inspect", "verify", "sign", "trust"),
    *("bench", "eval", "doctor", "targets", "plugins", "cache", "sessions", "completion"),
)


def _verbs() -> tuple[str, ...]:
    """The files and folders of this package without an underscore, as verbs: `add_draft.py` is add-draft."""
    files = (module.name for module in iter_modules([str(Path(__file__).parent)]))
    found = {name.rstrip("_").replace("_", "-") for name in files if not name.startswith("_")}
    return tuple(sorted(found, key=lambda verb: (_ORDER.index(verb) if verb in _ORDER else len(_ORDER), verb)))


VERBS = _verbs()
# A shell that completes a line sets it.
COMPLETE = "_EDGEDEC_COMPLETE"
FAILED, USAGE, BROKEN_PIPE = 1, 2, 141
# Typer's own UsageError, wherever this version of it keeps that class.
_Misuse: type[Exception] = typer.BadParameter.__bases__[0]


class Verbs(TyperGroup):
    """Verbs are modules of this package; naming one imports that one only."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb and its arguments, llama.cpp's flags read as ours (`_llama_flags`)."""
        from edgedec.cli._defaults import defaults
        from edgedec.cli._llama_flags.translate import translate

        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None or ctx.resilient_parsing:
            return name, command, rest
        inner = command.context_class(command, info_name=name, parent=ctx)
        try:
            meant, given = translate(name, command, rest)
            if meant != name:
                name, command = meant, self.get_command(ctx, meant)
                _, given = translate(meant, command, rest)
        except _Misuse as error:
            error.ctx = inner  # type: ignore[attr-defined]
            raise
        verbs = {verb: partial(self.get_command, ctx, verb) for verb in VERBS}
        ctx.default_map = {name: defaults(str(name), command, verbs)}
        return name, command, given

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        module = cmd_name.replace("-", "_") + "_" * iskeyword(cmd_name)
        command = typer.main.get_command(import_module(f"edgedec.cli.{module}").app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """The verb; a broken pipe shows only when the last of the output is flushed."""
        announce.set(_converting)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except EdgedecError as error:
            complain("edgedec", str(error))
            raise typer.Exit(FAILED) from None
        except MemoryError as error:
            complain("edgedec", f"out of memory: {error}" if str(error) else "out of memory")
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _drop_stdout()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:  # a full disk, a forbidden folder
            where = "" if error.filename is None else f"{error.filename}: "
            complain("edgedec", f"{where}{error.strerror or error}")
            raise typer.Exit(FAILED) from None

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Typer's `main`, with a usage error as one line instead of a box. SIGTERM ends it as an interrupt does, so
        that partial files are removed."""
        try:
            with ending_by_signals():
                code = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            code = INTERRUPTED
        except _Misuse as error:
            complain(*_misuse(error))
            code = USAGE
        code = code if isinstance(code, int) else 0
        if standalone_mode:
            sys.exit(code)
        return code


app = typer.Typer(
    name="edgedec",
    cls=Verbs,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def edgedec(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and leave.")] = False,
) -> None:
    """On-device LLM inference: quantized models on the CPU.

    \b
    Examples:
      edgedec run -p "Once upon a time"
      edgedec export ./SmolLM2-135M-Instruct -o smol
      edgedec chat -m smol
    """
    if version:
        from edgedec.version import __version__

        print(f"edgedec {__version__}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit(USAGE)


def run_app(argv: list[str]) -> int:
    """The exit code of `edgedec ARGV…`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows "?", instead of ending the text.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if COMPLETE in os.environ:
        import_module("typer.completion").completion_init()
    group = typer.main.get_command(app)
    with visible_streams():
        code: int = group.main(argv, prog_name="edgedec", standalone_mode=False, complete_var=COMPLETE)
    return code


@contextmanager
def _converting(what: str, folder: Path) -> Iterator[Progress]:
    """Show that a model is downloaded or converted, with its progress."""
    from edgedec.cli._output import progress_bar

    complain("edgedec", f"{what}, this first time only, into {folder}")
    with progress_bar() as show:
        yield show


def complain(name: str, message: str) -> None:
    """One line on stderr."""
    print(f"{name}: {visible(' '.join(message.split()))}", file=sys.stderr)


def _misuse(error: Any) -> tuple[str, str]:
    """The command and the message of a usage error: ("edgedec run", "No such option: --foo (see edgedec run
    --help)")."""
    path = error.ctx.command_path if getattr(error, "ctx", None) else "edgedec"
    message = error.format_message().rstrip(".").replace("Value error, ", "").removeprefix("Invalid value: ")
    return path, f"{message} (see {path} --help)"


def _drop_stdout() -> None:
    """Silence the flush at exit after the reader of stdout has closed the pipe."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
