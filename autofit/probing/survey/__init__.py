"""What is looked at before the first probe: knobs and gates."""
