"""Ollama's API: the same models, scheduler and options under `/api/`."""
