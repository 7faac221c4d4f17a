"""FedMT: Federated Learning with Mixed-type Labels (Zhang et al. 2024)."""
