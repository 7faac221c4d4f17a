"""Messages between server and sites, and the checks on replies."""
