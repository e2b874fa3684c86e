"""`edgedec serve` as a deployment of Ray Serve: replicas on the machines of a cluster, its proxy in front of them.

    serve run edgedec.server.ray_serve:application model=/models/smol replicas=4 threads=8

Every machine needs edgedec and the bundle at the same path. Ray chooses replicas by their queues alone, not by cached
prefixes; `edgedec serve --replicas` on each machine does both within it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette


@dataclass(frozen=True)
class Deployment:
    """The settings of a replica, and the number of replicas; the names of `edgedec serve`'s options. gpus: of each
    replica. device_cache: GiB. api_key: EDGEDEC_API_KEY of the program that deploys."""

    model: str = "nano"
    replicas: int = 1
    threads: int = 1
    gpus: float = 0.0
    slots: int = 4
    ctx_size: int = 0
    queue: int = 64
    timeout: float = 600.0
    max_total_tokens: int = 0
    kv: str = ""
    engine: str = "auto"
    device: str = ""
    device_cache: float = 0.0
    spec: str = "auto"
    api_key: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Deployment:
        """A deployment from strings, as from Ray's command line; UsageError names an unknown option or an invalid
        number."""
        known: dict[str, type[Any]] = {field.name: type(field.default) for field in fields(cls)}
        found = dict[str, Any]()
        for name, value in given.items():
            if name not in known:
                raise UsageError(f"{name}: no such option; there are {', '.join(known)}")
            try:
                found[name] = known[name](value)
            except ValueError:
                raise UsageError(f"{name}={value}: must be a number") from None
        return cls(**{"api_key": os.environ.get("EDGEDEC_API_KEY", ""), **found})

    def app(self) -> Starlette:
        """The application of one replica; opens its model."""
        import edgedec
        from edgedec.server.access import AccessPolicy
        from edgedec.server.app import build
        from edgedec.server.limits import ServerLimits
        from edgedec.server.pool import ModelSource, fitted
        from edgedec.server.service import Server, Settings

        model = edgedec.open(
            self.model,
            engine=self.engine,
            threads=self.threads,
            kv=self.kv or None,
            device=self.device,
            device_cache=int(self.device_cache * 2**30),
        )
        limits = ServerLimits(self.slots, self.ctx_size, self.queue, self.timeout, self.spec, self.max_total_tokens)
        # Ray's proxy stands before it, under whatever name.
        access = AccessPolicy(self.api_key or None, local=False)
        return build(Server([ModelSource.of(model)], Settings(fitted(limits, model), access)))


def application(given: Mapping[str, Any]) -> Any:
    """The application that `serve run` and `serve.run` take; `given`: options of `Deployment`."""
    try:
        from ray import serve
    except ImportError:
        raise RuntimeUnavailable('Ray Serve is not installed: pip install "ray[serve]"') from None
    wanted = Deployment.of(given)

    def build_app() -> Starlette:
        try:
            return wanted.app()
        except EdgedecError as error:
            raise RuntimeError(str(error)) from None  # Ray shows it with the deployment that failed

    made = serve.deployment(
        serve.ingress(build_app)(),
        name="edgedec",
        num_replicas=wanted.replicas,
        # One more than may run or wait, so that further requests get the server's 429 instead of waiting in Ray's
        # unbounded queue.
        max_ongoing_requests=wanted.slots + wanted.queue + 1,
        ray_actor_options={"num_cpus": wanted.threads, "num_gpus": wanted.gpus},
    )
    return made.bind()
