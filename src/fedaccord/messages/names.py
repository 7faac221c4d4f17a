"""Names that mean something to the server; importable without torch."""

from __future__ import annotations

POOL = "(pool)"
"""The one place that holds all samples when a study pools them; no site can be named so."""
