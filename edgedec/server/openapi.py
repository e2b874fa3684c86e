"""The server's OpenAPI description, made from the tables that requests are checked against."""

from __future__ import annotations

from typing import Any

from edgedec.server import fields

Json = dict[str, Any]
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_WHY = {
    "400": "What is wrong with the request; `param` names the parameter.",
    "401": "The API key is missing or wrong.",
    "403": "The host is not a local name.",
    "404": "No such model.",
    "408": "The request's body came too slowly.",
    "413": "The request's body is too large.",
    "415": "The request's body is not application/json.",
    "429": "Too many requests wait; see Retry-After.",
    "500": "The server failed.",
    "501": "The model cannot do this.",
    "503": "The server is shutting down.",
    "504": "The request took too long.",
}


def document(version: str, secured: bool) -> Json:
    """OpenAPI 3.1."""
    choice = {"type": "object", "required": ["index", "finish_reason"]}
    answer = {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {"choices": {"type": "array", "items": choice}, "usage": {"type": "object"}},
    }
    listed = {"type": "object", "required": ["object", "data"]}
    described: Json = {
        "openapi": "3.1.0",
        "info": {"title": "edgedec serve", "version": version},
        "paths": {
            "/v1/chat/completions": {"post": _post("chat", fields.CHAT, answer, streams=True)},
            "/v1/completions": {"post": _post("completion", fields.COMPLETION, answer, streams=True)},
            "/v1/embeddings": {"post": _post("embedding", fields.EMBEDDING, listed)},
            "/v1/models": {"get": _get("models", "The model.", listed)},
            "/v1/models/{model}": {
                "get": _get("model", "The model, by name.", {"type": "object", "required": ["id", "object"]})
                | {"parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]}
            },
            "/health": {"get": _get("health", "Is it up?", {"type": "object", "required": ["status"]})},
            "/metrics": {
                "get": {"operationId": "metrics", "responses": {"200": _text("Prometheus metrics.")} | _whys()}
            },
        },
    }
    if secured:
        described["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        described["security"] = [{"key": []}]
    return described


def _post(name: str, body: Json, answer: Json, streams: bool = False) -> Json:
    content: Json = {"application/json": {"schema": answer}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "object", "properties": {"data": {"type": "string"}}}}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "The answer.", "content": content}} | _whys(),
    }


def _get(name: str, about: str, answer: Json) -> Json:
    found = {"200": {"description": about, "content": {"application/json": {"schema": answer}}}}
    return {"operationId": name, "responses": found | _whys()}


def _text(about: str) -> Json:
    return {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _whys() -> Json:
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": why, "content": content} for status, why in _WHY.items()}
