"""Kinds of constraints, a file each. What cannot be followed to the letter is refused by name when it is compiled."""
