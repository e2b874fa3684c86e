"""`edgedec serve`: one model behind OpenAI's HTTP interface.

    gate ── app ── api ── plans ──> engine (one thread: a batch, and a pool of sessions)
                    └── stream <──────┘

Needs the extra `serve` (starlette, uvicorn); nothing else in edgedec imports this package.
"""
