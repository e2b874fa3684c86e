"""Lists of the plug-ins that a request may name, or that a server is started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from edgedec import families
from edgedec.plugins.about import all_about
from edgedec.server.answers import JsonAnswer
from edgedec.server.errors import APIError

if TYPE_CHECKING:
    from starlette.requests import Request

# The families that are useful to a client.
LISTED = (
    *("drafters", "policies", "constraints", "processors", "fusion", "searches"),
    *("schedules", "blocks", "keeping", "ends", "verify"),
)


def routes() -> list[Route]:
    """The endpoints."""
    return [Route("/v1/plugins", _all), Route("/v1/plugins/{family}", _family)]


async def _all(request: Request) -> Response:
    found = await run_in_threadpool(_names)
    return JsonAnswer({"object": "list", "data": [{"id": name, "plugins": names} for name, names in found.items()]})


async def _family(request: Request) -> Response:
    name = request.path_params["family"]
    if name not in LISTED:
        raise APIError(404, f"there is no family {name!r}; there are: {', '.join(LISTED)}", "family")
    # The files of a family are imported when they are first described.
    data = await run_in_threadpool(all_about, families.family(name))
    return JsonAnswer({"object": "list", "family": name, "data": data})


def _names() -> dict[str, list[str]]:
    """The plug-ins of each family: the first time files are read."""
    return {name: list(families.family(name).names()) for name in LISTED}
