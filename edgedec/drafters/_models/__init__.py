"""Parts of drafters with a second model: opening it, reading the text, drawing trees, other vocabularies."""
