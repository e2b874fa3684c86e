"""`edgedec serve`: OpenAI's and Ollama's HTTP interfaces to one model or to several.

    access -> app -> routes, responses, ollama -> service -> pool -> engine (one thread and one batch a model)
                     stream, answer <- choice <-----------------------+

`api`, `bodies` and `fields` read requests, `completions` makes texts to generate of them, `choice` reads what the
engine's events say of each. Needs the extra `serve` (starlette, uvicorn); nothing else in edgedec imports this package.
"""
