"""`autofit estimate`: the memory that training will need on a device, from traces alone."""
