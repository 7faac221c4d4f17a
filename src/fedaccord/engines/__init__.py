"""Engines, which run the sites' tasks in this process, in worker processes or on other machines."""
