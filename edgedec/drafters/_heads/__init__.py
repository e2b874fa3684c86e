"""What drafters that read the target's states are made of: readers of states, levels, online learning."""
