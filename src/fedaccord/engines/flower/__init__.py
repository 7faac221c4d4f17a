"""Runs sites on other machines through Flower; nothing outside this folder imports flwr."""
