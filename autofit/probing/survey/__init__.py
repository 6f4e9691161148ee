"""The survey before the first probe: knobs and gates."""
