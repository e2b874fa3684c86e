"""The server's OpenAPI description, made from the tables that requests are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgedec.server import fields, rerank
from edgedec.server.ollama import fields as ollama
from edgedec.server.plugins import LISTED
from edgedec.server.responses.fields import RESPONSE

Json = dict[str, Any]


def _object(*required: str) -> Json:
    return {"type": "object", "required": list(required)}


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
    "404": "No such model, adapter or response.",
    "408": "The request's body came too slowly.",
    "413": "The request's body is too large.",
    "415": "The request's body is not application/json.",
    "429": "Too many requests wait; see Retry-After.",
    "500": "The server failed.",
    "501": "The model cannot do this.",
    "503": "The server is shutting down, or has no room for the model.",
    "504": "The request took too long.",
}


_OLLAMA_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_LISTED = {"type": "object", "required": ["object", "data"]}
_ANSWER = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "choices": {"type": "array", "items": {"type": "object", "required": ["index", "finish_reason"]}},
        "usage": {"type": "object"},
    },
}
_RESPONSE = _object("id", "object", "created_at", "model", "status", "output", "usage")
_EVENTS, _LINES = "text/event-stream", "application/x-ndjson"


def document(version: str, secured: bool, models: Sequence[str] = (), adapters: Sequence[str] = ()) -> Json:
    """OpenAPI 3.1; models, adapters: the names that a request may give."""
    described: Json = {
        "openapi": "3.1.0",
        "info": {"title": "edgedec serve", "version": version},
        "paths": {**_openai(), **_responses(), **_ollama(), **_monitoring()},
    }
    for path in described["paths"].values():
        if models and "post" in path:
            _name(path["post"]["requestBody"]["content"]["application/json"], models, adapters)
    if models:
        described["paths"]["/v1/models/{model}"] |= _named("model", [*models, *adapters])
    if secured:
        described["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        described["security"] = [{"key": []}]
    return described


def _openai() -> Json:
    card = _object("id", "object")
    return {
        "/v1/chat/completions": {"post": _post("chat", fields.CHAT, _ANSWER, _EVENTS)},
        "/v1/completions": {"post": _post("completion", fields.COMPLETION, _ANSWER, _EVENTS)},
        "/v1/embeddings": {"post": _post("embedding", fields.EMBEDDING, _LISTED)},
        "/v1/rerank": {"post": _post("rerank", rerank.JINA, _object("model", "usage", "results"))},
        "/v2/rerank": {"post": _post("rerankAsCohere", rerank.COHERE, _object("id", "results", "meta"))},
        "/v1/models": {"get": _get("models", "The models and their adapters.", _LISTED)},
        "/v1/models/{model}": {"get": _get("model", "A model, by name.", card), **_named("model")},
        "/v1/plugins": {"get": _get("plugins", "Families of plug-ins, and the names of each one's.", _LISTED)},
        "/v1/plugins/{family}": {
            "get": _get("pluginsOfFamily", "The plug-ins of a family, with their options.", _LISTED),
            **_named("family", LISTED),
        },
        "/tokenize": {"post": _post("tokenize", fields.TOKENIZE, _object("count", "max_model_len", "tokens"))},
        "/detokenize": {"post": _post("detokenize", fields.DETOKENIZE, _object("prompt"))},
    }


def _responses() -> Json:
    named = _named("response_id")
    return {
        "/v1/responses": {"post": _post("response", RESPONSE, _RESPONSE, _EVENTS)},
        "/v1/responses/{response_id}": {
            "get": _get("responseById", "A response that is kept.", _RESPONSE),
            "delete": _get("dropResponse", "It is dropped.", _object("id", "object", "deleted")),
            **named,
        },
        "/v1/responses/{response_id}/input_items": {"get": _get("inputItems", "Its input.", _LISTED), **named},
    }


def _ollama() -> Json:
    made, models = _object("model", "created_at", "done"), _object("models")
    paths = {
        "/api/generate": {"post": _post("ollamaGenerate", ollama.GENERATE, made, _LINES)},
        "/api/chat": {"post": _post("ollamaChat", ollama.CHAT, made, _LINES)},
        "/api/embed": {"post": _post("ollamaEmbed", ollama.EMBED, _object("model", "embeddings"))},
        "/api/embeddings": {"post": _post("ollamaEmbeddings", ollama.EMBEDDINGS, _object("embedding"))},
        "/api/tags": {"get": _get("ollamaTags", "The models.", models)},
        "/api/ps": {"get": _get("ollamaLoaded", "The models in memory.", models)},
        "/api/show": {"post": _post("ollamaShow", ollama.SHOW, _object("details", "model_info", "capabilities"))},
        "/api/version": {"get": _get("ollamaVersion", "The version of this API.", _object("version"))},
    }
    for path in paths.values():
        for operation in path.values():
            operation["responses"] |= _whys(_OLLAMA_ERROR)
    return paths


def _monitoring() -> Json:
    return {
        "/health": {"get": _get("health", "Is it up?", _object("status"))},
        "/metrics": {"get": {"operationId": "metrics", "responses": {"200": _text("Prometheus metrics.")} | _whys()}},
    }


def _post(name: str, body: Json, answer: Json, streams: str = "") -> Json:
    content: Json = {"application/json": {"schema": answer}}
    if streams:
        content[streams] = {"schema": {"type": "object"}}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "The answer.", "content": content}} | _whys(),
    }


def _named(name: str, values: Sequence[str] = ()) -> Json:
    schema = {"type": "string"} | ({"enum": list(values)} if values else {})
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": schema}]}


def _name(content: Json, models: Sequence[str], adapters: Sequence[str]) -> None:
    """Insert the available names into a body's schema."""
    schema = content["schema"]
    known = schema["properties"]
    named = {"model": [*models, *adapters], "adapter": list(adapters)}
    own = {name: _one_of(known[name], values) for name, values in named.items() if name in known}
    content["schema"] = {**schema, "properties": {**known, **own}}


def _one_of(schema: Json, values: Sequence[str]) -> Json:
    return {**schema, "enum": [*values, *([None] if "null" in schema["type"] else [])]}


def _get(name: str, about: str, answer: Json) -> Json:
    found = {"200": {"description": about, "content": {"application/json": {"schema": answer}}}}
    return {"operationId": name, "responses": found | _whys()}


def _text(about: str) -> Json:
    return {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _whys(error: Json = _ERROR) -> Json:
    content = {"application/json": {"schema": error}}
    return {status: {"description": why, "content": content} for status, why in _WHY.items()}
