"""Ollama's API as a second door: the same models, scheduler and options behind `/api/`."""
