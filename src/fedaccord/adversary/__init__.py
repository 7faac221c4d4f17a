"""Attacks on a federation and the detection of hostile sites, as functions of tensors."""
