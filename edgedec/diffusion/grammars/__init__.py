"""Context-free grammars over bytes, and texts with gaps: whether a grammar has a member that fits one."""

from edgedec.diffusion.grammars.made import grammar_of
from edgedec.diffusion.grammars.places import GrammarPlace
from edgedec.diffusion.grammars.rules import Grammar

__all__ = ["Grammar", "GrammarPlace", "grammar_of"]
