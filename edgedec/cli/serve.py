"""`edgedec serve`: OpenAI's HTTP interface to one model."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import options as o
from edgedec.cli._lossy_flags import CacheWords
from edgedec.cli._template import ChatTemplate, ChatTemplateFile, set_template
from edgedec.errors import EdgedecError, UsageError
from edgedec.extras import install_command
from edgedec.text import template

if TYPE_CHECKING:
    import edgedec
    from edgedec.runtime import Adapter
    from edgedec.server.engine import ServerLimits
    from edgedec.server.pool import ModelSource
    from edgedec.server.service import Server

app = typer.Typer(add_completion=False, rich_markup_mode=None)
# A split GGUF file is opened by its first part.
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")


@app.command()
def serve(
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
      edgedec serve -m ./smol --port 9000 --slots 64 --max-total-tokens 65536
      edgedec serve -m ./smol --lora pirate=pirate.lora
      edgedec serve --models ./bundles --models-memory 8
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: {install_command('serve')}")
    from edgedec.server.access import AccessPolicy, is_local
    from edgedec.server.engine import ServerLimits
    from edgedec.server.service import MOST, Server, Settings

    if api_key == "":
        raise UsageError("--api-key: is empty; leave it out for a server without a key")
    template.start()
    opening = ModelOpening(engine, threads, kv, speculate, (chat_template, chat_template_file), cache)
    if offload is not None:
        offload.mkdir(parents=True, exist_ok=True)
    aside = ("", 0) if offload is None else (str(offload), int(offload_size * 2**30))
    limits = ServerLimits(slots, ctx_size, queue, timeout, speculate, max_total_tokens, aside)
    if models is None:
        *sources, limits = opening.only(model or "nano", lora or [], limits)
    else:
        sources = opening.folder(models, model, lora or [], limits)
    access = AccessPolicy(api_key, cors, is_local(host))
    if not access.local and api_key is None:
        print(f"edgedec: listening on {host} without --api-key: everyone who reaches it may use it", file=sys.stderr)
    if log_requests:
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("edgedec.requests").setLevel(logging.INFO)
    memory = 0 if models is None else int(models_memory * 2**30) or _three_quarters()
    _listen(Server(sources, Settings(limits, access, max_body, max_tokens or MOST, memory=memory)), host, port)


@dataclass(frozen=True)
class ModelOpening:
    """How models are opened to be served."""

    engine: str
    threads: int
    kv: o.KVFormat
    speculate: str
    template: tuple[str | None, Path | None]
    cache: str = "full"

    def only(self, name: str, lora: Sequence[str], limits: ServerLimits) -> tuple[ModelSource, ServerLimits]:
        """The only model, and limits that memory has room for: what would fail at the first request fails now."""
        from edgedec.server.pool import ModelSource, fitted

        opened = o.open_model(name, self.engine, self.threads, self.kv, cache=self.cache)
        set_template(opened, *self.template)
        adapters = {item: self._adapter(opened, path) for item, path in _named_files(lora).items()}
        self._try(opened, limits.context)
        return ModelSource.of(opened, adapters), fitted(limits, opened)

    def folder(self, folder: Path, more: str | None, lora: Sequence[str], limits: ServerLimits) -> list[ModelSource]:
        """Every bundle in a folder, and one more perhaps, opened when they are needed."""
        from edgedec.bundle.locate import find

        if not folder.is_dir():
            raise UsageError(f"--models {folder}: no such folder")
        if self.template != (None, None):
            raise UsageError("--chat-template: with --models every model has its own; leave it out")
        paths = [*_bundles(folder), *([] if more is None else [find(more)])]
        if not paths:
            raise UsageError(f"--models {folder}: no bundle and no GGUF file in it; make one with `edgedec export`")
        files = _named_files(lora)
        sources = [self._source(path, files, limits) for path in paths]
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"--models {folder}: two bundles are called {twice[0]!r}; rename or remove one")
        known = {name for source in sources for name in source.adapters}
        unknown = sorted(set(files) - known)
        if unknown:
            raise UsageError(f"--lora {unknown[0]}: with --models it is MODEL/NAME=FILE; models: {', '.join(names)}")
        return sources

    def _source(self, path: Path, lora: Mapping[str, Path], limits: ServerLimits) -> ModelSource:
        from edgedec.bundle import Bundle
        from edgedec.cache import kv_bytes_per_token
        from edgedec.server.pool import ModelSource, limits_of

        bundle = Bundle.open(path)
        name, manifest = bundle.manifest.name, bundle.manifest
        own = {item: file for item, file in lora.items() if item.rpartition("/")[0] == name}

        def opened() -> tuple[edgedec.Model, Mapping[str, Adapter]]:
            model = o.open_model(str(path), self.engine, self.threads, self.kv, cache=self.cache)
            self._try(model, 0)
            return model, {item: self._adapter(model, file) for item, file in own.items()}

        per_token = kv_bytes_per_token(manifest.spec, self.kv or manifest.kv_formats[0])
        caches = limits_of(limits, manifest.spec).room * per_token
        memory = caches + sum(file.size for file in manifest.files.values())
        return ModelSource(name, bundle, opened, tuple(own), memory, int(path.stat().st_mtime))

    def _adapter(self, model: edgedec.Model, file: Path) -> Adapter:
        return model.adapter(file)

    def _try(self, model: edgedec.Model, context: int) -> None:
        """Errors of a model that could not be used."""
        model.session(context=context or None, speculate=self.speculate)
        _ = model.tokenizer


def _bundles(folder: Path) -> Iterator[Path]:
    """The bundles in a folder, and those of its GGUF files, which are converted now if they never were; a file that
    cannot be is named and passed over."""
    from edgedec.bundle.locate import GGUF, find
    from edgedec.bundle.manifest import MANIFEST

    for path in sorted(folder.iterdir()):
        if (path / MANIFEST).is_file():
            yield path
        elif path.suffix == GGUF and path.is_file() and not _LATER_PART.search(path.stem):
            try:
                yield find(path)
            except EdgedecError as error:
                print(f"edgedec: {path.name} is not served: {error}", file=sys.stderr)


def _named_files(lora: Sequence[str]) -> dict[str, Path]:
    """NAME=FILE of --lora."""
    found: dict[str, Path] = {}
    for item in lora:
        name, equals, file = item.partition("=")
        if not (name and equals and file):
            raise UsageError(f"--lora {item!r}: must be NAME=FILE, as in pirate=pirate.lora")
        if name in found:
            raise UsageError(f"--lora {item!r}: the name {name!r} is given twice")
        found[name] = Path(file)
    return found


def _three_quarters() -> int:
    """Bytes of three quarters of this machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 8 << 30


def _listen(server: Server, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; then refuse new requests, and give running ones ten seconds."""
    from edgedec.server.listen import listen

    def ready(port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"edgedec: {server.title} at http://{shown}:{port}/v1 (pid {os.getpid()})", file=sys.stderr)
        print(
            f"edgedec: chat page http://{shown}:{port}/, API http://{shown}:{port}/openapi.json",
            file=sys.stderr,
            flush=True,
        )

    listen(server, host, port, ready)
