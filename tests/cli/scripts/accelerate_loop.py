"""Trains with Accelerate: a prepared model, optimizer and loader, a criterion that is a module, and accumulation."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
inputs = torch.randn(256, 32)
loader = DataLoader(TensorDataset(inputs, inputs[:, :5].argmax(1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for batch, targets in loader:
    with accelerator.accumulate(model):
        loss = criterion(model(batch), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.print(f"loss {loss.item():.4f}")
