"""Tensor parallelism: layers of a model divided among ranks by the plan that the model declares.

Models of `transformers` have a property `tp_plan`, which names modules, with `*` for the number of a layer, and the
style in which each is divided. A layer divided by columns makes a part of its outputs from whole inputs; one divided by
rows takes a part of its inputs, and its outputs are summed over the ranks. The parts are of torch's class `DTensor`,
whatever the version of `transformers`. torch's own `parallelize_module` does the same, but leaves sums to be waited for
later, which code compiled by block does not take (torch 2.13).

All ranks compute each micro batch together, so that a step runs those of all ranks one after the other. Its gradient is
the mean over ranks as in the other layouts, also if their micro batches differ in shape or weight, and activations that
are not divided are those of one micro batch.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from autofit.strategies.undo import Undo
from autofit.torch_internals import DropoutNd
from autofit.workloads.step import Ranks

if TYPE_CHECKING:  # a torch may be built without
    from torch.distributed.device_mesh import DeviceMesh

COLUMNS, ROWS = 0, 1
"""The dimension of a weight that is divided."""
STYLES: Mapping[str, tuple[type[nn.Module], int, bool]] = {
    "colwise": (nn.Linear, COLUMNS, False),
    "colwise_gather_output": (nn.Linear, COLUMNS, True),
    "colwise_rep": (nn.Linear, COLUMNS, True),
    "rowwise": (nn.Linear, ROWS, False),
    "rowwise_split_input": (nn.Linear, ROWS, True),
    "rowwise_rep": (nn.Linear, ROWS, True),
    "embedding_rowwise": (nn.Embedding, COLUMNS, True),
}
"""What each style divides: the class of its module, the dimension of the weight, and whether both inputs and outputs
are whole, so that a module that cannot be divided may be whole as well."""
SUMMED = "replicated_with_grad_allreduce"
"""The style of a module that is whole on every rank, but sees a part of the values: gradients are summed over ranks."""
HEADS = ("num_attention_heads", "num_key_value_heads")
"""Settings of a model whose heads are divided with the columns of a layer."""


def tensors_of_ranks() -> Any:
    """Returns torch's module of tensors that are divided among ranks. Its import takes long."""
    from torch.distributed import tensor  # noqa: PLC0415

    return tensor


def lack_of_layers(model: nn.Module, count: int) -> str | None:
    """Returns why the layers of a model cannot be divided among `count` ranks, or None."""
    plan = _plan_of(model)
    if not plan:
        return "the model declares no plan for it (tp_plan), as many models of transformers do"
    if unknown := sorted(set(plan.values()) - {*STYLES, SUMMED}):
        return f"the model's plan has {', '.join(unknown)}, which autofit does not know"
    names = (name for name, _ in model.named_parameters(remove_duplicate=False))
    if bare := next((name for name in names if _pattern(name) in plan), None):
        return f"the model's plan divides the parameter {bare} without its module"
    config = getattr(model, "config", None)
    config = getattr(config, "get_text_config", lambda: config)()
    heads = {name: value for name in HEADS if isinstance(value := getattr(config, name, None), int)}
    if uneven := [f"{name}={value}" for name, value in heads.items() if value % count]:
        return f"{', '.join(uneven)} cannot be divided by {count} ranks"
    layers = list(_layers(model, count))
    if reason := next((reason for _, style, reason in layers if reason and not STYLES[style][2]), ""):
        return reason
    if not any(style in STYLES and not reason for _, style, reason in layers):
        return "the model's plan names none of its layers"
    if name := next(filter(None, map(_dropout, *zip(*model.named_modules(), strict=True))), ""):
        return f"{name} draws random numbers, which would have to be the same on all ranks"
    return None


def divide_layers(model: nn.Module, undo: Undo, *, ranks: Ranks) -> None:
    """Divides the layers of a model's plan among ranks. `sharded` puts back all but what `undo` has.

    `lack_of_layers` must have found nothing. What stays whole gets the values of rank 0, so that no two ranks differ.
    """
    for module, style, reason in _layers(model, ranks.count):
        if reason:
            continue
        if style == SUMMED:
            for parameter in module.parameters():
                if parameter.requires_grad:
                    undo.callback(parameter.register_hook(_Summed(ranks)).remove)  # type: ignore[no-untyped-call]
            continue
        _divide(module, ranks.mesh, *STYLES[style])


def _divide(module: nn.Module, mesh: "DeviceMesh", kind: type[nn.Module], dimension: int, whole: bool) -> None:
    """Divides the weight of a module in a dimension, and its inputs and outputs along, unless they are `whole`."""
    tensor: Any = tensors_of_ranks()
    everywhere, parts = tensor.Replicate(), tensor.Shard(-1)
    by_columns = dimension == COLUMNS and kind is nn.Linear
    takes = everywhere if by_columns or whole else parts
    wants = everywhere if by_columns or kind is nn.Embedding else parts
    gives = parts if by_columns and not whole else everywhere

    def divide(_: str, inner: nn.Module, mesh: "DeviceMesh") -> None:
        for name, parameter in inner.named_parameters(recurse=False):
            way = everywhere if parameter.dim() == 1 and not by_columns else tensor.Shard(dimension)
            made = tensor.distribute_tensor(parameter, mesh, [way], src_data_rank=None)
            inner.register_parameter(name, nn.Parameter(made, parameter.requires_grad))

    def bring(_: nn.Module, inputs: tuple[Any, ...], mesh: "DeviceMesh") -> Any:
        return tensor.DTensor.from_local(inputs[0], mesh, [takes], run_check=False).redistribute(placements=[wants])

    def give(_: nn.Module, output: Any, mesh: "DeviceMesh") -> Any:
        return output.redistribute(placements=[gives]).to_local()

    tensor.distribute_module(module, mesh, divide, bring, give)


class _Summed:
    """A hook that sums the gradient of a parameter over ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self._group = ranks.group

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        found = gradient.clone()  # autograd may use the gradient elsewhere too
        distributed.all_reduce(found, group=self._group)
        return found


def _plan_of(model: nn.Module) -> Mapping[str, str]:
    found = getattr(model, "tp_plan", None)
    return found if isinstance(found, Mapping) else {}


def _pattern(name: str) -> str:
    """Returns a name of a module or parameter with `*` for each number, as plans have it."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _layers(model: nn.Module, count: int) -> Iterator[tuple[nn.Module, str, str]]:
    """Yields each module that the plan names with its style, and why it cannot be divided by `count` ranks, or ""."""
    plan, ways = _plan_of(model), dict[int, set[int | None]]()
    found = [(module, plan.get(_pattern(name), ""), name) for name, module in model.named_modules()]
    known = [(module, style, _obstacle(module, name, style, count)) for module, style, name in found]
    for module, style, reason in known:
        for parameter in module.parameters(recurse=False):
            ways.setdefault(id(parameter), set()).add(None if reason or style not in STYLES else STYLES[style][1])
    for (module, style, reason), (_, _, name) in zip(known, found, strict=True):
        if style in STYLES and not reason and any(len(ways[id(each)]) > 1 for each in module.parameters()):
            yield module, style, f"another module has the weight of {name}, and does not divide it in the same way"
        elif style:
            yield module, style, reason


def _obstacle(module: nn.Module, name: str, style: str, count: int) -> str:
    """Returns why a module by itself cannot be divided in a style by `count` ranks, or ""."""
    if style not in STYLES:
        return ""
    kind, dimension, _ = STYLES[style]
    if type(module) is not kind:
        return f"the model's plan divides {name} as {kind.__name__}, which is a {type(module).__name__}"
    weight = module.weight
    assert isinstance(weight, torch.Tensor), "layers of these classes have one"
    if (size := weight.shape[dimension]) % count:
        return f"the {size} {('rows', 'columns')[dimension]} of {name} cannot be divided by {count} ranks"
    return ""


def _dropout(name: str, module: nn.Module) -> str:
    """Returns what of a module drops values at random; "" if nothing does."""
    if not module.training:
        return ""
    if isinstance(module, DropoutNd):
        return name * (module.p > 0)
    rates = {key: value for key, value in vars(module).items() if "dropout" in key and isinstance(value, float)}
    return next((f"{name}.{key}" for key, value in rates.items() if value > 0), "")
