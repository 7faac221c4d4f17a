"""Federated averaging and FedProx."""
