"""Constraints whose state is a value: automata over bytes, followed through a vocabulary's tokens as a tree of bytes.

A state is hashable and never changed, so a fork or a rollback copies nothing, and the mask of a state is computed once
for all texts and all their drafts.
"""
