"""Schedules of diffusion decoding: which masked positions a pass fills."""

from edgedec.diffusion.host import MethodFacts
from edgedec.plugins import Family

FAMILY = Family("edgedec.diffusion.schedules", "schedule", where="--diffusion schedule", facts=MethodFacts)
