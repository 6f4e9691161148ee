"""`autofit estimate`: what a training will need on a device, from traces alone."""
