"""From an experiment file to folders that can be carried to the machines of a federation, and run there."""
