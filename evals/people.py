"""Names that occur neither in the filler sentences nor in the standard library's prose."""

NAMES = ("Yasmin", "Bruno", "Katja", "Dmitri", "Ingrid", "Kofi", "Leila", "Mateo", "Nadia", "Omar", "Priya", "Rashid")
