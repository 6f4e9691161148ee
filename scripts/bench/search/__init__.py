"""Scores of searchers: whole searches on recorded and synthetic tables, without a device."""
