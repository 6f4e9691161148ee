"""Plays nights over recorded jobs with planted changes, and shows what the nightly jobs say of them."""
