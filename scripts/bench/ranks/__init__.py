"""Searches on several ranks, which communicate by gloo on this machine's processors."""
