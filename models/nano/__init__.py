"""nano: the bundled story model and the recipe that trains it (see README.md)."""
