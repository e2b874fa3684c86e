"""`edgedec serve`: OpenAI's HTTP interface to one model.

    access -> app -> api -> completions -> engine (one thread, one batch)
                     stream <----------------+

Needs the extra `serve` (starlette, uvicorn); nothing else in edgedec imports this package.
"""
