"""Files that appear whole or not at all, and frozen dataclasses as JSON."""
