"""accord: one model from sites with different kinds of annotations."""
