"""The survey before the first probe, which finds the knobs, and the check of a plan that is to become the answer."""
