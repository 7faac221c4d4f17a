"""Federated averaging and the classic methods derived from it: FedProx, SCAFFOLD, FedNova, FedCurv."""
