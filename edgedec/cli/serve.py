"""`edgedec serve`: OpenAI's HTTP interface to one model."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import options as o
from edgedec.cli._lossy_flags import CacheWords
from edgedec.cli._model_opening import ModelOpening, three_quarters
from edgedec.cli._place import DeviceWord
from edgedec.cli._replicas import ReplicaCommand, shared_words, threads_of_each
from edgedec.cli._template import ChatTemplate, ChatTemplateFile
from edgedec.errors import UsageError
from edgedec.extras import install_command
from edgedec.text import template

if TYPE_CHECKING:
    from edgedec.server.replicas.router import RouterSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            show_default=False,
            help=f"{o.MODEL_HELP} By default `nano`, unless --models is given.",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            "--models",
            metavar="DIR",
            show_default=False,
            help="A folder of bundles and GGUF files: each is loaded when a request names it.",
        ),
    ] = None,
    models_memory: Annotated[
        float,
        typer.Option(
            "--models-memory",
            min=0,
            metavar="GIB",
            show_default=False,
            help="With --models: memory of loaded models and their caches; those used least recently are unloaded. "
            "By default three quarters of this machine's.",
        ),
    ] = 0,
    lora: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="NAME=FILE",
            show_default=False,
            help="An adapter that requests may name as the model (repeatable); with --models: MODEL/NAME=FILE.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8080,
    slots: Annotated[
        int, typer.Option("--slots", min=1, max=1024, help="Texts that are generated at the same time.")
    ] = 4,
    max_total_tokens: Annotated[
        int,
        typer.Option(
            "--max-total-tokens",
            min=0,
            help="Tokens that the caches of all texts together may hold; more texts wait. 0: slots x context.",
        ),
    ] = 0,
    device_cache: Annotated[
        float,
        typer.Option(
            "--device-cache",
            min=0,
            metavar="GIB",
            help="GiB of a GPU's memory for a model's caches; idle pages beyond that lie in the host's memory. 0: all "
            "that is free.",
        ),
    ] = 0,
    offload: Annotated[
        Path | None,
        typer.Option(
            "--offload",
            metavar="DIR",
            show_default=False,
            help="Where ended texts go that the caches have no room for.",
        ),
    ] = None,
    offload_size: Annotated[
        float, typer.Option("--offload-size", min=0.001, metavar="GIB", help="Most that a model may put there.")
    ] = 4.0,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            min=1,
            max=64,
            help="Processes that serve the model, each with its own slots and a share of the threads; requests that "
            "begin alike go to the same one.",
        ),
    ] = 1,
    queue: Annotated[
        int, typer.Option("--queue", min=0, help="Requests that may wait for a slot; further ones get status 429.")
    ] = 64,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a request may take.")] = 600.0,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=0, help="Most tokens that a request may ask for; 0: no limit.")
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
    device: DeviceWord = "",
    speculate: o.Speculate = "auto",
    cache: CacheWords = "full",
    chat_template: ChatTemplate = None,
    chat_template_file: ChatTemplateFile = None,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Print a line for each request: method, path, status, seconds.")
    ] = False,
) -> None:
    """Serve a model over HTTP, as OpenAI and Ollama do.

    At / is a chat page, at /openapi.json the description of the API.

    \b
    Examples:
      edgedec serve
      edgedec serve -m ./smol --replicas 2 --slots 64 --max-total-tokens 65536
      edgedec serve -m ./smol --lora pirate=pirate.lora
      edgedec serve --models ./bundles --models-memory 8
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: {install_command('serve')}")
    from edgedec.server.access import AccessPolicy, is_local
    from edgedec.server.app import build
    from edgedec.server.engine import ServerLimits
    from edgedec.server.memory import share_pools
    from edgedec.server.replicas.router import RouterSettings
    from edgedec.server.service import MOST, Server, Settings

    if api_key == "":
        raise UsageError("--api-key: is empty; leave it out for a server without a key")
    access = AccessPolicy(api_key, cors, is_local(host))
    if not access.local and api_key is None:
        print(f"edgedec: listening on {host} without --api-key: everyone who reaches it may use it", file=sys.stderr)
    if log_requests:
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("edgedec.requests").setLevel(logging.INFO)
    memory = 0 if models is None else int(models_memory * 2**30) or three_quarters()
    if replicas > 1:
        each, folder = threads_of_each(threads, replicas), str(offload or "")
        command = ReplicaCommand(shared_words(context), each, memory // replicas, folder, device, engine)
        _listen_for(command, replicas, RouterSettings(access, slots, max_body), host, port)
        return
    share_pools()
    template.start()
    pages = int(device_cache * 2**30)
    opening = ModelOpening(engine, threads, kv, speculate, (chat_template, chat_template_file), cache, device, pages)
    if offload is not None:
        offload.mkdir(parents=True, exist_ok=True)
    aside = ("", 0) if offload is None else (str(offload), int(offload_size * 2**30))
    limits = ServerLimits(slots, ctx_size, queue, timeout, speculate, max_total_tokens, aside)
    if models is None:
        *sources, limits = opening.only(model or "nano", lora or [], limits)
    else:
        sources = opening.folder(models, model, lora or [], limits)
    server = Server(sources, Settings(limits, access, max_body, max_tokens or MOST, memory=memory))
    _listen(build(server), server.drain, server.title, host, port, lambda: bool(server.lost))
    if server.lost:
        print(f"edgedec: the device is lost: {server.lost}; the server ends", file=sys.stderr, flush=True)
        os._exit(1)  # nothing can be freed there, and trying may wait for ever


def _listen_for(command: ReplicaCommand, count: int, settings: RouterSettings, host: str, port: int) -> None:
    """Serve by so many replicas."""
    from edgedec.server.listen import GRACE
    from edgedec.server.replicas.router import Router

    router = Router(command.make, count, settings, GRACE)
    router.start()
    _listen(router.app(), router.drain, f"{count} replicas", host, port)


def _listen(
    app: Callable[..., Awaitable[None]],
    drain: Callable[[], None],
    title: str,
    host: str,
    port: int,
    failed: Callable[[], bool] = lambda: False,
) -> None:
    """Serve until SIGTERM or SIGINT, or until it has failed; then refuse new requests, and give running ones ten
    seconds."""
    from edgedec.server.listen import listen

    def ready(port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"edgedec: {title} at http://{shown}:{port}/v1 (pid {os.getpid()})", file=sys.stderr)
        print(
            f"edgedec: chat page http://{shown}:{port}/, API http://{shown}:{port}/openapi.json",
            file=sys.stderr,
            flush=True,
        )

    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what was asked to end, and did, failed nothing
    listen(app, drain, host, port, ready, failed)
