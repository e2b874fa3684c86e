"""What drafters that run a part of the target's own stack are made of: exits, sets of blocks, their costs."""
