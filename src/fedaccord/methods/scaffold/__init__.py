"""SCAFFOLD."""
