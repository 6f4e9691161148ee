"""Listeners of a search."""
