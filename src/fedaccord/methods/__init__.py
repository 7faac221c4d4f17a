"""Recipes: which parts a method fills the beats with."""
