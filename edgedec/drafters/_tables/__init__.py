"""Parts of table drafters: indexes of the text, ranked next tokens, their compiled versions."""
