"""FedHarmony: several labels at once, with harmonised label correlations."""
