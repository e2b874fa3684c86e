"""`edgedec serve`: OpenAI's HTTP interface to one model."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._replicas import ReplicaCommand, shared_words, threads_of_each
from edgedec.cli._serve_flags import AccessFlags, EngineFlags, LimitFlags, ListenFlags, RoomFlags, SourceFlags
from edgedec.errors import UsageError
from edgedec.extras import install_command
from edgedec.text import template as chat_templates

if TYPE_CHECKING:
    from edgedec.server.access import AccessPolicy
    from edgedec.server.limits import ConnectionLimits
    from edgedec.server.replicas.router import RouterSettings
    from edgedec.server.service import Server

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def serve(
    *,
    context: typer.Context,
    sources: SourceFlags,
    place: ListenFlags,
    room: RoomFlags,
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
    limits: LimitFlags,
    access: AccessFlags,
    machine: EngineFlags,
    template: o.TemplateFlags,
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
    _check_packages()
    policy = access.policy(place.host)
    if log_requests:
        _log_requests()
    if replicas > 1:
        from edgedec.server.replicas.router import RouterSettings

        each, folder = threads_of_each(machine.threads, replicas), str(room.offload or "")
        memory = sources.memory // replicas
        command = ReplicaCommand(shared_words(context), each, memory, folder, machine.device, machine.engine)
        settings = RouterSettings(policy, room.slots, limits.max_body, limits.connections)
        _listen_for(command, replicas, settings, place)
    else:
        _serve_here(_server(sources, room, limits, machine, template, policy), place)


def _check_packages() -> None:
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: {install_command('serve')}")


def _log_requests() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("edgedec.requests").setLevel(logging.INFO)


def _server(
    sources: SourceFlags,
    room: RoomFlags,
    limits: LimitFlags,
    machine: EngineFlags,
    template: o.TemplateFlags,
    access: AccessPolicy,
) -> Server:
    """The server of one model, or of a folder of them."""
    from edgedec.server.limits import ServerLimits
    from edgedec.server.memory import share_pools
    from edgedec.server.service import MOST, ROUTED, Server, Settings

    share_pools()
    chat_templates.start()
    opening = machine.opening(template, int(room.device_cache * 2**30))
    most = ServerLimits(
        slots=room.slots,
        context=machine.ctx_size,
        queue=limits.queue,
        seconds=limits.timeout,
        speculate=machine.speculate,
        tokens=room.max_total_tokens,
        offload=room.aside,
        scorers=limits.allow_scorers,
    )
    lora = sources.lora or []
    if sources.models is None:
        *models, most = opening.only(sources.model or "nano", lora, most)
    else:
        models = opening.folder(sources.models, sources.model, lora, most)
    settings = Settings(
        most,
        access,
        limits.max_body,
        limits.max_tokens or MOST,
        memory=sources.memory,
        connections=limits.connections,
        routed=os.environ.get(ROUTED) == "1",
    )
    return Server(models, settings)


def _serve_here(server: Server, place: ListenFlags) -> None:
    """Serve in this process, which ends if a device is lost."""
    from edgedec.server.app import build
    from edgedec.server.turns import shorten_turns

    shorten_turns()
    limits = server.settings.connections
    _listen(build(server), server.drain, server.title, place, limits, lambda: bool(server.lost))
    if server.lost:
        print(f"edgedec: the device is lost: {server.lost}; the server ends", file=sys.stderr, flush=True)
        os._exit(1)  # a lost device's resources cannot be freed, and an attempt may hang


def _listen_for(command: ReplicaCommand, count: int, settings: RouterSettings, place: ListenFlags) -> None:
    """Serve with replicas."""
    from edgedec.server.listen import GRACE
    from edgedec.server.replicas.router import Router

    router = Router(command.make, count, settings, GRACE)
    router.start()
    _listen(router.app(), router.drain, f"{count} replicas", place, settings.connections)


def _listen(
    app: Callable[..., Awaitable[None]],
    drain: Callable[[], None],
    title: str,
    place: ListenFlags,
    limits: ConnectionLimits,
    failed: Callable[[], bool] = lambda: False,
) -> None:
    """Serve until SIGTERM or SIGINT, or until it has failed; then reject new requests, and give running ones ten
    seconds."""
    from edgedec.server.listen import listen

    def ready(port: int) -> None:
        shown = f"[{place.host}]" if ":" in place.host else place.host
        print(f"edgedec: {title} at http://{shown}:{port}/v1 (pid {os.getpid()})", file=sys.stderr)
        print(
            f"edgedec: chat page http://{shown}:{port}/, API http://{shown}:{port}/openapi.json",
            file=sys.stderr,
            flush=True,
        )

    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a requested end is not a failure
    listen(app, drain, place.host, place.port, ready, failed, limits)
