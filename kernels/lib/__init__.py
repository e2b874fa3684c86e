"""libedgedec: the engine with sessions, sampling and text as a C library. `build.py` compiles it."""
