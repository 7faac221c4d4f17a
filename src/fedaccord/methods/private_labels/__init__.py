"""Private label sets."""
