"""What is trained: the workload, its loss, its batches, its training step, and how a file names it."""
