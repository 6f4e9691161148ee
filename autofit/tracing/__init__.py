"""The memory of a training step, traced with fake tensors: nothing is computed, no device memory is used."""
