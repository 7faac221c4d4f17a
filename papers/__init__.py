"""Tables of papers: rerun cell by cell, and compared with the published figures."""
