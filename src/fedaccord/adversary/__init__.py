"""Attacks on a federation, and what tells hostile sites from honest ones: functions of tensors."""
