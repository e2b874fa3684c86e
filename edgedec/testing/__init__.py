"""Helpers for tests of decoders, for edgedec's own tests and for plug-ins."""
