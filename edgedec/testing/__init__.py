"""Helpers for tests of decoders: ours and yours."""
