"""What crosses the boundary between server and site, and the checks on it."""
