"""What the tests of the stand-in run in a process of their own; prints one JSON object."""

import json
import sys
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from autofit.core.plan import Plan
from autofit.memory.trace import Kind
from autofit.tracing.cuda import device_spoofing, standin
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.temporaries import temporary_steps as steps_of
from autofit.tracing.recorder import Recorder
from autofit.tracing.tracing import trace
from tests.tracing.test_tracing import peaks
from tests.tracing.tiny import Block, Cnn, Gpt, images, words, workload


def peaks_of(kind: str, values: dict[str, str | int]) -> dict[str, int]:
    """Returns the peaks of the third step's phases, without workspaces."""
    dropout = float(values.pop("dropout", 0))
    model, batch = (Gpt(dropout=dropout), words(4)) if kind == "gpt" else (Cnn(), images(4))
    made, rule = workload(model, batch)
    wanted = Plan(values={"micro_batch_size": 4, **values})
    found = trace(made, rule, wanted, batch, standin.install(), Chip())
    sizes = [
        0 if kind is Kind.WORKSPACE else size
        for size, kind in zip(found.tensors.sizes, found.tensors.kinds, strict=True)
    ]
    without = found.model_copy(update={"tensors": found.tensors.model_copy(update={"sizes": tuple(sizes)})})
    return {name: most for name, most in peaks(without).items() if name.startswith("step 3")}


def kernels() -> dict[str, str | None]:
    """Returns which attention operator runs, by chip, type, mask and width."""
    device = standin.install()
    found: dict[str, str | None] = {}

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        if "attention" in func.name() or "softmax" in func.name():
            ran.append(func.name().removeprefix("aten::_scaled_dot_product_").removesuffix("_attention"))
        return func(*args, **kwargs)

    for capability in ((7, 5), (8, 0), (9, 0)):
        for dtype in (torch.float32, torch.bfloat16):
            for masked in (False, True):
                ran: list[str] = []
                with FakeTensorMode(), Recorder("standin", run), standin.attending(Chip(capability=capability)):
                    x = torch.empty(2, 4, 32, 64, dtype=dtype, device=device, requires_grad=True)
                    mask = torch.ones(32, 32, dtype=torch.bool, device=device) if masked else None
                    F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
                found[f"{capability[0]}{capability[1]} {dtype} {masked}"] = ran[0]
    return found


def casts() -> dict[str, object]:
    """Returns types under autocast, and whether the converted weight is kept just as long as the context."""
    device, masks = standin.install(), []

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        if func.name() == "aten::_scaled_dot_product_efficient_attention":
            masks.append(str(args[3].dtype))
        return func(*args, **kwargs)

    recorder = Recorder("standin", run)
    with FakeTensorMode(), recorder:
        layer, x = nn.Linear(8, 24, device=device), torch.empty(5, 8, device=device)
        with torch.no_grad(), torch.autocast("standin", dtype=torch.float16):
            y = layer(x)
            before = len(recorder.sizes)
            layer(x)
            again = recorder.sizes[before:]
            softened, summed = y.softmax(-1), y.sum()
            before = len(recorder.sizes)
            joined = torch.cat([y, x], 1)
            joining = recorder.sizes[before:]
            before = len(recorder.sizes)
            norms = [torch.ops.aten.norm.Scalar(y), torch.ops.aten.norm.ScalarOpt_dim(y, 2, [0, 1])]
            normed = [str(norm.dtype) for norm in norms], recorder.sizes[before:]
            enlarged = F.interpolate(y.view(1, 5, 4, 6), scale_factor=2, mode="bilinear")
            try:
                F.binary_cross_entropy(y, y)
                refused = ""
            except RuntimeError as error:
                refused = str(error)
            held = [handle for handle in recorder.live() if recorder.sizes[handle] == 8 * 24 * 2]
        kept = [handle for handle in recorder.live() if recorder.sizes[handle] == 8 * 24 * 2]
        with standin.attending(Chip()), torch.autocast("standin", dtype=torch.float16):
            heads, numbers = torch.empty(2, 4, 32, 64, device=device), torch.empty(32, 32, device=device)
            F.scaled_dot_product_attention(heads, heads, heads, numbers)
    made = {"linear": y, "softmax": softened, "sum": summed, "cat": joined, "interpolate": enlarged}
    return {
        "types": {name: str(tensor.dtype) for name, tensor in made.items()},
        "again": again, "masks": masks, "held": len(held), "kept": len(kept),
        "joining": joining, "normed": normed, "refused": refused,
    }  # fmt: skip


def lists() -> list[list[str]]:
    """Returns the operators that autocast converts on CUDA and not on the stand-in, and the other way round."""
    standin.install()
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    on_cuda, here = ({name for name in names if known(name, f"Autocast{key}")} for key in ("CUDA", "PrivateUse1"))
    return [sorted(on_cuda - here), sorted(here - on_cuda)]


def released() -> list[int]:
    """Returns the results of attention and group norm that nobody keeps, in the order of their release."""
    recorder, device = Recorder("standin", lambda func, args, kwargs: func(*args, **kwargs)), standin.install()
    with FakeTensorMode(), torch.no_grad():
        heads = torch.empty(2, 4, 32, 64, dtype=torch.bfloat16, device=device)
        pixels, weight = torch.empty(2, 4, 8, 8, device=device), torch.empty(4, device=device)
        with recorder, standin.attending(Chip()):
            mixed, normed = F.scaled_dot_product_attention(heads, heads, heads), F.group_norm(pixels, 2, weight, weight)
            found = [~event for event in recorder.events if event < 0]
    assert mixed is not normed
    return found


def disguised_as_cuda() -> dict[str, object]:
    """Returns what the user's code is told, and which operators run, on a device that passes for CUDA's."""
    stand_in, ran = standin.install(), list[str]()

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        ran.append(func.name())
        return func(*args, **kwargs)

    user: dict[str, Any] = {"F": F, "torch": torch, "SDPBackend": SDPBackend, "sdpa_kernel": sdpa_kernel}
    exec(compile(USERS_CODE, "/users/train.py", "exec"), user)
    with (
        FakeTensorMode(),
        Recorder("standin", run, partial(steps_of, Chip())),
        standin.attending(Chip()),
        device_spoofing.disguised(stand_in, Chip()),
    ):
        x = torch.empty(2, 4, 32, 64, device=stand_in, requires_grad=True)
        told: dict[str, object] = user["told"](x)
        ran.clear()
        user["normed"](x)
        told["norm"] = [name for name in ran if "norm" in name]
        ran.clear()
        user["forced"](x)
        told["forced"] = [name for name in ran if "attention" in name]
        told["buffer"] = torch.ops.aten.log_sigmoid_forward(x)[1].numel()
    told["after"] = [x.device.type, x.is_cuda]
    return told


class Dropping(Block):
    """A block that makes a mask of its own, as stochastic depth does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (0.9 + torch.rand((len(x), 1, 1), dtype=x.dtype, device=x.device)).floor()
        return x + super().forward(x) * kept


def recomputed() -> list[int]:
    """Returns how many tensors a step makes as it is, and with blocks that are computed again."""
    model, batch, counts = Gpt(), words(4), []
    model.blocks = nn.ModuleList(Dropping(64, 2) for _ in range(2))
    made, rule = workload(model, batch)
    for blocks in (0, 2):
        plan = Plan(values={"micro_batch_size": 4, "checkpointed_blocks": blocks})
        counts.append(len(trace(made, rule, plan, batch, standin.install(), Chip()).tensors.sizes))
    return counts


USERS_CODE = """
def told(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        low = (x @ x.transpose(2, 3)).dtype
        enabled = torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", enabled=False):
            full = (x @ x.transpose(2, 3)).dtype
    made = torch.zeros(3, device=x.device) + torch.zeros(3, device="cuda") + torch.zeros(3).to("cuda") + x.new_zeros(3)
    return {
        "capability": torch.cuda.get_device_capability(x.device),
        "is_cuda": x.is_cuda, "type": x.device.type, "same": x.to(x.device) is x and x.cuda() is x,
        "low": str(low), "enabled": enabled, "full": str(full), "made": made.device.type,
        "host": [torch.zeros(1).is_cuda, torch.zeros(1).device.type],
    }

def normed(x):
    F.rms_norm(x, (64,))
    F.rms_norm(x, (64,), torch.ones(64, device=x.device, dtype=torch.bfloat16))

def forced(x):
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(x, x, x)
"""


if __name__ == "__main__":
    jobs = {"peaks": peaks_of, "kernels": kernels, "casts": casts, "lists": lists, "released": released}
    jobs |= {"disguised": disguised_as_cuda, "recomputed": recomputed}
    sys.stdout.write(json.dumps([jobs[name](*arguments) for name, arguments in json.loads(sys.argv[1])]))  # type: ignore[operator]
