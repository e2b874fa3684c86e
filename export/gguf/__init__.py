"""GGUF, llama.cpp's format of files: read as a checkpoint, and written for comparison with llama.cpp."""

from edgedec.export.gguf.write import interleaved, nibbles, write_gguf

__all__ = ["interleaved", "nibbles", "write_gguf"]
