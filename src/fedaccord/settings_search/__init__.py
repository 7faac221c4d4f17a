"""Choose settings by rows that sites keep apart from their training rows: `fedaccord tune`."""
