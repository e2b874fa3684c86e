"""Verification of diffusion decoding: which states of a block a call tries."""

from edgedec.diffusion.host import MethodFacts
from edgedec.plugins import Family

FAMILY = Family("edgedec.diffusion.verify", "verification", where="--diffusion verify", facts=MethodFacts)
