"""The decoding loop, continuous batching, verification."""
