"""Baselines without federation: local training and pooled training."""
