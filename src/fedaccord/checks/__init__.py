"""Is this federation sound? What can be said before any training."""
