"""What is trained: the workload, its loss, its batches, its training step, and how it is loaded from a file."""
