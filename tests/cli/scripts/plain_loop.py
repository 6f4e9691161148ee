"""Trains an image classifier in a plain loop, as a tutorial would: dropout, batch norm, a loss by a function."""

import argparse
import hashlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 3, 8, 8), torch.randint(10, (256,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(576, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader) * args.epochs)
for _ in range(args.epochs):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
weights = b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())
print(f"{__name__} {loss.item():.6f} {hashlib.sha256(weights).hexdigest()}")
