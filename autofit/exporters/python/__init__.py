"""Plain PyTorch: a module with a training loop, and the templates that it is written from."""
