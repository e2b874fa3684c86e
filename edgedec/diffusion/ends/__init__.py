"""Ends of diffusion decoding: how end tokens are treated."""

from edgedec.diffusion.host import MethodFacts
from edgedec.plugins import Family

FAMILY = Family("edgedec.diffusion.ends", "end rule", where="--diffusion ends", facts=MethodFacts)
