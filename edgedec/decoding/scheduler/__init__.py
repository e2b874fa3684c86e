"""Continuous batching: texts in the making, admitted and run together, one forward a step."""
