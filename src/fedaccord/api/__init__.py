"""FedAccord from Python: sites with data in memory, one call to train, and a result object."""
