"""What comes in and is meant to hurt: the inputs, the attacks, their tests, and the measured table (`python -m
tests.hostile --report`)."""
