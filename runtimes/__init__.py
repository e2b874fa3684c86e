"""Runtimes: each file is one, named as `--engine` names it. `edgedec.runtime.core` says what one is."""
