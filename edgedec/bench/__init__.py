"""Measurements: speed, peers, perplexity, traces."""
