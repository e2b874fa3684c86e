"""Parts of drafters that run a part of the target's own stack: exits, sets of blocks, their costs."""
