"""Several labels at once: FedHarmony, with harmonised label correlations, and SphereFed."""
