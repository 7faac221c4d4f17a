"""Many replies become one model."""
