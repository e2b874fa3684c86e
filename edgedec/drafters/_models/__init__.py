"""What drafters with a second model are made of: opening it, reading along, drawing trees, other vocabularies."""
