"""Blocks of diffusion decoding: where a block ends."""

from edgedec.diffusion.host import MethodFacts
from edgedec.plugins import Family

FAMILY = Family("edgedec.diffusion.blocks", "block rule", where="--diffusion blocks", facts=MethodFacts)
