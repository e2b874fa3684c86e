"""Continuous batching: sequences are admitted and run together, one forward per step."""
