"""Reserved names in messages; importable without torch."""

from __future__ import annotations

POOL = "(pool)"
"""The name of the single site that holds all samples when a study pools them; no other site can have it."""

CONFUSION = "confusion"
"""The tensor in a reply to `evaluate` with the confusion counts of the site's test rows."""

LARGEST_MATRIX = 100
"""The number of answers up to which confusion counts are sent and written as a matrix; of more, as cells."""

CALIBRATION = "calibration"
"""The tensor in a reply to `examine` with the calibration curve."""

SILENT = "silent"
"""The word in a reply from a site that has nothing to send this round: it is skipped, not dropped."""

COMPUTED = "computed"
"""The number in a reply that counts per-sample gradients; a sample used twice counts twice."""

NOT_BATCHED = "not batched"
"""The word in a reply of a site that trained alone because training together failed: the reason."""
