"""FedCurv."""
