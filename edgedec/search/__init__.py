"""Searches: which of several texts a generation gives. One file of `edgedec.search.strategies` each.

A search is a generator over branches (`branch.py`) in a room (`room.py`) with four verbs: `extend` (one token each, one
forward), `roll` (the decode loop, several at a time), `score`, and `keep`. A runner or a batch sees one job, whose
result does not depend on what runs beside it.
"""

from edgedec.search.facts import SearchFacts
from edgedec.search.making import FAMILY, check_search, make_search, parse_search

__all__ = ["FAMILY", "SearchFacts", "check_search", "make_search", "parse_search"]
