"""Sites on other machines, reached through Flower. Nothing outside this folder imports flwr."""
