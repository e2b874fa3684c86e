"""Fitting of diffusion decoding: which token may stand where, where earlier ones are not known."""

from edgedec.diffusion.host import MethodFacts
from edgedec.plugins import Family

FAMILY = Family("edgedec.diffusion.fits", "way of fitting", where="--diffusion fits", facts=MethodFacts)
