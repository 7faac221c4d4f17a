"""What federation is compared with: training alone, and pooled data."""
