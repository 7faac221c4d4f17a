"""Networks with a named encoder and head."""
