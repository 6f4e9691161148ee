"""A bench in a child process."""
