"""Rounds: the server's and the sites' side, and the parts that methods share."""
