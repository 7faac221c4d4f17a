"""Search for settings by rows that sites keep apart from training: `fedaccord tune`."""
