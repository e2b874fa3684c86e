"""llama.cpp's flags, which `run`, `chat`, `serve`, `batch` and `bench` accept too."""
