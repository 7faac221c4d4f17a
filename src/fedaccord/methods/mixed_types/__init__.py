"""FedMT and its baselines: a labelled server, coarsely labelled sites."""
