"""Aggregation of replies into one model."""
