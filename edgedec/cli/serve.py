"""`edgedec serve`: OpenAI's HTTP interface to one model."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import options as o
from edgedec.cli._template import ChatTemplate, ChatTemplateFile, set_template
from edgedec.errors import UsageError
from edgedec.extras import install_command
from edgedec.text import template

if TYPE_CHECKING:
    from edgedec.server.app import Server

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def serve(
    model: o.ModelName = "nano",
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8080,
    slots: Annotated[int, typer.Option("--slots", min=1, max=1024, help="Texts that run at a time.")] = 4,
    max_total_tokens: Annotated[
        int,
        typer.Option(
            "--max-total-tokens",
            min=0,
            help="Tokens that the caches of all texts together may hold; more texts wait. 0: slots x context.",
        ),
    ] = 0,
    queue: Annotated[int, typer.Option("--queue", min=0, help="How many more may wait; others get a 429.")] = 64,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a request may take.")] = 600.0,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=0, help="Most tokens of a text; 0: no limit.")
    ] = 0,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Bytes that a request may have.")] = 4 << 20,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="EDGEDEC_API_KEY",
            show_default=False,
            show_envvar=False,
            help="Clients must send it (Authorization: Bearer KEY); better in EDGEDEC_API_KEY, hidden from `ps`.",
        ),
    ] = None,
    cors: Annotated[
        str | None,
        typer.Option(
            "--cors", metavar="ORIGIN", show_default=False, help="A web origin that CORS allows, as https://a.example."
        ),
    ] = None,
    threads: o.Threads = 0,
    ctx_size: o.CtxSize = 0,
    kv: o.KVFormat = None,
    engine: o.Engine = "auto",
    speculate: o.Speculate = "auto",
    chat_template: ChatTemplate = None,
    chat_template_file: ChatTemplateFile = None,
) -> None:
    """Serve OpenAI's HTTP interface from this machine.

    \b
    Examples:
      edgedec serve
      edgedec serve -m ./smol --port 9000 --slots 8 -c 4096
      edgedec serve -m ./smol --slots 64 --max-total-tokens 65536
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: {install_command('serve')}")
    from edgedec.server.access import AccessPolicy, is_local
    from edgedec.server.app import MOST, Server, Settings
    from edgedec.server.engine import ServerLimits

    if api_key == "":
        raise UsageError("--api-key: is empty; leave it out for a server without a key")
    template.start()
    opened = o.open_model(model, engine, threads, kv)
    set_template(opened, chat_template, chat_template_file)
    context = ctx_size or opened.spec.context_length
    limits = ServerLimits(slots, context, queue, timeout, speculate, max_total_tokens)
    # What would fail at the first request fails now.
    opened.session(context=context, speculate=speculate)
    _ = opened.tokenizer
    access = AccessPolicy(api_key, cors, is_local(host))
    if not access.local and api_key is None:
        print(f"edgedec: listening on {host} without --api-key: everyone who reaches it may use it", file=sys.stderr)
    _listen(Server(opened, Settings(limits, access, max_body, max_tokens or MOST)), host, port)


def _listen(server: Server, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; then refuse new requests, and give running ones ten seconds."""
    from edgedec.server.listen import listen

    def ready(port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"edgedec: {server.name} at http://{shown}:{port}/v1 (pid {os.getpid()})", file=sys.stderr, flush=True)

    listen(server, host, port, ready)
