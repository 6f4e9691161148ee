"""Plain PyTorch: a module with a training loop, generated from templates."""
