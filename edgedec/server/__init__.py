"""`edgedec serve`: OpenAI's and Ollama's HTTP interfaces to one model or to several.

    access -> app -> routes, responses, ollama -> service -> pool -> engine (one thread and one batch a model)
                     stream, answer <- choice <-----------------------+

`api`, `bodies` and `fields` read requests, `completions` converts them to generations, `choice` reads each text from
the engine's events. Needs the extra `serve` (starlette, uvicorn); nothing else in edgedec imports this package.
"""
