"""FedNova."""
