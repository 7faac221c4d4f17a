"""How well a model does: on the server's data, per site and per class."""
