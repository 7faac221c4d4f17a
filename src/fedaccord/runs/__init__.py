"""The run folder: metrics, checkpoints, the report."""
