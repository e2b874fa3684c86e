"""Runtimes: each file is one, named as `--engine` names it. `edgedec.runtime` says what one is."""
