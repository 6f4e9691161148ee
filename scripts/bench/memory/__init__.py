"""Memory estimates compared with measured peaks."""
