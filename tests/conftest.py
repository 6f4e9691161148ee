"""What every test shares."""

import torch

# Two threads on a machine that also does other work wait for each other at every operator: one is faster and steadier.
torch.set_num_threads(1)
