"""Parts of drafters that read the target's hidden states: readers of states, tree levels, online learning."""
