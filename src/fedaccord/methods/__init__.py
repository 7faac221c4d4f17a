"""Methods, one folder per family; README.md is the map."""
