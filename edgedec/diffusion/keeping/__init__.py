"""Caches of diffusion decoding: which rows a call runs again, and which it keeps."""

from edgedec.diffusion.host import MethodFacts
from edgedec.plugins import Family

FAMILY = Family("edgedec.diffusion.keeping", "way of keeping", where="--diffusion keep", facts=MethodFacts)
