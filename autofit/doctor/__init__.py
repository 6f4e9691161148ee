"""The doctor: what wastes memory or time in a training step, with the line, the holder and the size."""
