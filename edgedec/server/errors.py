"""The answer to a failed request: OpenAI's error object, or Ollama's under `/api/`."""

from __future__ import annotations

from typing import Any

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class APIError(Exception):
    """An answer other than 200. `param`: the invalid parameter; `wait`: seconds until a retry."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None, wait: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.wait = status, message, param, code, wait

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def body_for(self, path: str) -> dict[str, Any]:
        """The error body in the format of this path's API."""
        return {"error": self.message} if path.startswith("/api/") else self.body

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.wait is None else {"Retry-After": str(self.wait)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})
