"""Names that mean something to the server; importable without torch."""

from __future__ import annotations

POOL = "(pool)"
"""The one place that holds all samples when a study pools them; no site can be named so."""

SILENT = "silent"
"""The word in a reply of a site that has nothing to send this round: it is left out without being dropped."""

COMPUTED = "computed"
"""The number in a reply that says of how many samples the site took gradients, a sample seen twice counted twice."""
