"""The flags of `edgedec serve`, in groups."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._model_opening import ModelOpening, three_quarters
from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.server.access import AccessPolicy
    from edgedec.server.limits import ConnectionLimits


@dataclass(frozen=True)
class SourceFlags:
    """The models that are served."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            show_default=False,
            help=f"{o.MODEL_HELP} By default `nano`, unless --models is given.",
        ),
    ] = None
    models: Annotated[
        Path | None,
        typer.Option(
            "--models",
            metavar="DIR",
            show_default=False,
            help="A folder of bundles and GGUF files: each is loaded when a request names it.",
        ),
    ] = None
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
    ] = 0
    lora: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="NAME=FILE",
            show_default=False,
            help="An adapter that requests may name as the model (repeatable; of several with one NAME each token "
            "takes two); with --models: MODEL/NAME=FILE.",
        ),
    ] = None

    @property
    def memory(self) -> int:
        """Bytes for loaded models; 0 where one model is served."""
        return 0 if self.models is None else int(self.models_memory * 2**30) or three_quarters()


@dataclass(frozen=True)
class ListenFlags:
    """Where to listen."""

    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8080


@dataclass(frozen=True)
class RoomFlags:
    """The number of texts, and the room of their caches."""

    slots: Annotated[
        int, typer.Option("--slots", min=1, max=1024, help="Texts that are generated at the same time.")
    ] = 4
    max_total_tokens: Annotated[
        int,
        typer.Option(
            "--max-total-tokens",
            min=0,
            help="Tokens that the caches of all texts together may hold; more texts wait. 0: slots x context.",
        ),
    ] = 0
    device_cache: Annotated[
        float,
        typer.Option(
            "--device-cache",
            min=0,
            metavar="GIB",
            help="GiB of a GPU's memory for a model's caches; idle pages beyond that lie in the host's memory. 0: all "
            "that is free.",
        ),
    ] = 0
    offload: Annotated[
        Path | None,
        typer.Option(
            "--offload",
            metavar="DIR",
            show_default=False,
            help="Where ended texts go that the caches have no room for.",
        ),
    ] = None
    offload_size: Annotated[
        float, typer.Option("--offload-size", min=0.001, metavar="GIB", help="Most that a model may put there.")
    ] = 4.0

    @property
    def aside(self) -> tuple[str, int]:
        """The folder for ended texts, made if it is missing, and its bytes at most; ("", 0) for none."""
        if self.offload is None:
            return "", 0
        self.offload.mkdir(parents=True, exist_ok=True)
        return str(self.offload), int(self.offload_size * 2**30)


@dataclass(frozen=True)
class LimitFlags:
    """The limits of a request."""

    queue: Annotated[
        int, typer.Option("--queue", min=0, help="Requests that may wait for a slot; further ones get status 429.")
    ] = 64
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a request may take.")] = 600.0
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=0, help="Most tokens that a request may ask for; 0: no limit.")
    ] = 0
    allow_scorers: Annotated[
        bool,
        typer.Option(
            "--allow-scorers",
            help="Requests may name searches that run programs of this machine or open its files: only for clients "
            "that you trust with both.",
        ),
    ] = False
    max_body: Annotated[
        int, typer.Option("--max-body", min=0, help="Bytes that a request may have. 0: 1 MiB and 32 for each token.")
    ] = 0
    header_timeout: Annotated[
        float, typer.Option("--header-timeout", min=0.1, help="Seconds that the header of a request may take.")
    ] = 10.0
    body_timeout: Annotated[
        float,
        typer.Option("--body-timeout", min=0.1, help="Seconds without progress of a body, or of an unread answer."),
    ] = 30.0
    idle_timeout: Annotated[
        float, typer.Option("--idle-timeout", min=0.1, help="Seconds that a connection is kept without a request.")
    ] = 60.0

    @property
    def connections(self) -> ConnectionLimits:
        from edgedec.server.limits import ConnectionLimits

        return ConnectionLimits(self.header_timeout, self.body_timeout, self.idle_timeout)


@dataclass(frozen=True)
class AccessFlags:
    """Access to the server."""

    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="EDGEDEC_API_KEY",
            show_default=False,
            show_envvar=False,
            help="Clients must send it (Authorization: Bearer KEY); better in EDGEDEC_API_KEY, hidden from `ps`.",
        ),
    ] = None
    cors: Annotated[
        str | None,
        typer.Option(
            "--cors", metavar="ORIGIN", show_default=False, help="A web origin that CORS allows, as https://a.example."
        ),
    ] = None

    def policy(self, host: str) -> AccessPolicy:
        """The access policy of this address, with a warning if it is open."""
        from edgedec.server.access import AccessPolicy, is_local

        if self.api_key == "":
            raise UsageError("--api-key: is empty; leave it out for a server without a key")
        access = AccessPolicy(self.api_key, self.cors, is_local(host))
        if not access.local and self.api_key is None:
            print(
                f"edgedec: listening on {host} without --api-key: everyone who reaches it may use it", file=sys.stderr
            )
        return access


@dataclass(frozen=True)
class EngineFlags:
    """The engine of the models."""

    threads: o.Threads = 0
    ctx_size: o.CtxSize = 0
    kv: o.KVFormat = None
    engine: o.Engine = "auto"
    device: o.DeviceWord = ""
    speculate: o.Speculate = "auto"
    cache: o.CacheWords = "full"
    diffusion: o.DiffusionWords = ""
    fuse: o.FuseWords = ""

    def opening(self, template: o.TemplateFlags, device_cache: int) -> ModelOpening:
        """How models are opened. device_cache: bytes of a GPU's memory for the caches of one, 0: all that is free."""
        return ModelOpening(
            engine=self.engine,
            threads=self.threads,
            kv=self.kv,
            speculate=self.speculate,
            template=template,
            cache=self.cache,
            device=self.device,
            device_cache=device_cache,
            diffusion=self.diffusion,
            fuse=self.fuse,
        )
