"""Deployments: folders for the server and the sites of an experiment, and the run on their machines."""
