"""What the drafters with tables of the text are made of: indexes, ranked next tokens, their compiled twins."""
