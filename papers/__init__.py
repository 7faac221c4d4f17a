"""A paper's tables, run cell by cell, its figures beside ours."""
