"""Layout: how parameters, gradients and optimizer state are divided among the ranks that train together."""

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autofit.core.errors import SpaceError, WorkloadError
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, KnobValue, Plan
from autofit.core.space import Refusal
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.blocks import has_compiled_part
from autofit.strategies.optimizer_state import check_alike, part_state, undividable
from autofit.strategies.precision import format_of, lack_of
from autofit.strategies.shards import (
    Blocks,
    any_used,
    discard_pass,
    in_bf16,
    in_blocks,
    is_without_data,
    kept_apart,
    noted_wholes,
    sharded,
    sharding,
    takes_unused,
)
from autofit.strategies.tensor_parallel import divide_layers, lack_of_layers, tensors_of_ranks
from autofit.strategies.torch_optimizers import grouped_parameters, has_own_step, lacks_fused_parts, lacks_parts
from autofit.strategies.undo import Undo
from autofit.strategies.unused_parameters import Unused
from autofit.torch_internals import NormBase, is_traceable_wrapper_subclass, is_view, issued, pytree
from autofit.workloads.divided import divided_already
from autofit.workloads.step import PER_MACHINE, Draft, Ranks, rows_of
from autofit.workloads.workload import OptimizerSet

KNOB, VIEWS, RESHARD, GATHER = "layout", "gradient_as_bucket_view", "reshard_after_forward", "gather_precision"
SYNC, UNUSED = "sync_each_batch", "find_unused_parameters"
REPLICATED, OPTIMIZER, FULL, HYBRID, TENSOR = "replicated", "optimizer", "full", "hybrid", "tensor"
LAYOUTS = (REPLICATED, OPTIMIZER, FULL, HYBRID, TENSOR)
BUCKETED = (REPLICATED, OPTIMIZER)
"""The layouts that average gradients in buckets."""
SHARDED = (FULL, HYBRID)
"""The layouts that gather the parameters of a block when it runs."""
FP32, BF16 = "fp32", "bf16"
"""Formats in which weights are gathered."""
_TOO_OLD = (
    "a pass leaves parameters without a gradient, or may, and ranks that divide them can leave out different ones from "
    f"torch 2.13 on. If all leave out the same ones, pin {UNUSED}=False"
)
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
"""Size at which `DistributedDataParallel` closes its first bucket of gradients, and any other one, by default."""


def divides_parameters(plan: Plan) -> str | None:
    """Returns the layout of a plan that divides parameters among ranks, in words; None if each rank has them all."""
    return f"{KNOB}={plan.values[KNOB]}" if plan.values.get(KNOB) in (*SHARDED, TENSOR) else None


class RankLayout(Strategy):
    """The division of a training among ranks, each with its own samples.

    Replicated: each rank has everything, and gradients are averaged in buckets (`DistributedDataParallel`). Optimizer:
    also, but each rank has the optimizer state of a part of the parameters, and updates these
    (`ZeroRedundancyOptimizer`, ZeRO-1). Full: each rank has a part of every parameter, gradient and optimizer
    state, and gathers the parameters of one block at a time (`fully_shard`, FSDP2). Hybrid: so do the ranks of a row,
    such as a machine, and rows replicate the model (HSDP), from four ranks on. Tensor: each rank has a part of the
    layers that the model's plan names, and all ranks compute each micro batch of each of them together.
    """

    name = "layout"
    about = "replicates the model on all ranks, or divides its optimizer state, or all of it, among them"
    cost = "communication between ranks"
    effect = "rounding"
    phase = Phase.RANKS
    owns = {KNOB: None, VIEWS: False, RESHARD: True, GATHER: FP32, SYNC: True, UNUSED: False}
    for_ranks = True
    unsearched = {KNOB: REPLICATED}

    def offer(self, facts: Facts) -> Offer:
        """Returns the layouts that this model admits; with a fixed layout also the knobs that belong to it."""
        if facts.ranks == 1:
            return self.refuse("there is one rank")
        if facts.optimizer is None:
            return self.refuse("inference exchanges nothing between ranks")
        if reason := _undividable(facts.model):
            return self.refuse(reason)
        for load in (sharding, zero_redundancy_optimizer, tensors_of_ranks):  # once, not by each process of a trace
            load()
        known = tuple(each for each in LAYOUTS if each != HYBRID or rows_of(facts.ranks) > 1)
        asked = known if facts.layout is None else (facts.layout,)
        missing = {value: why for value in asked if (why := _lack(value, facts.model, facts.optimizer, facts.ranks))}
        left_out = Unused() if facts.layout == TENSOR else Unused.of(facts, UNUSED)
        if reason := _apart(left_out):
            missing |= {value: reason for value in asked if value in SHARDED and value not in missing}
        refused = tuple(Refusal(name=f"{KNOB}={value}", reason=why) for value, why in missing.items())
        values = tuple(value for value in asked if value not in missing)
        if not values:
            return Offer(refused=refused)
        knob = Knob(name=KNOB, values=values, default=values[0], about="what of the model each rank has")
        beside = _beside(facts)
        return Offer((knob, *left_out.knobs, *beside.knobs), (*refused, *beside.refused))

    def conflict(self, plan: Plan) -> str | None:
        """Returns why other values of a plan do not go together with its layout, or None."""
        layout = plan.values.get(KNOB)
        if layout is None:
            return None
        if plan.values.get(VIEWS, False) is True and layout not in BUCKETED:
            return f"{VIEWS}=True is for gradients that every rank has, and {KNOB}={layout} divides them"
        for name, value in ((RESHARD, False), (GATHER, BF16), (SYNC, False)):
            if layout not in SHARDED and plan.values.get(name, self.owns[name]) == value:
                return f"{name}={value} is for weights that are gathered, and {KNOB}={layout} gathers none"
        if plan.values.get(SYNC, True) is False and plan.values.get(ACCUMULATION_STEPS) == 1:
            return f"{SYNC}=False is for steps of several micro batches, and the plan has one"
        return self._conflict_of_formats(plan, str(layout))

    def _conflict_of_formats(self, plan: Plan, layout: str) -> str | None:
        """Returns why the number formats of a plan do not go together with its layout, or None."""
        precision = format_of(plan)
        if layout == TENSOR and precision == "fp16":
            return f"{KNOB}={layout} has gradients of two kinds, and the scaler of {precision} takes one"
        if not self.rounds(plan):
            return None
        if precision not in (FP32, BF16):
            return f"{GATHER}={BF16} computes with weights in bfloat16, and the precision {precision} in another format"
        if plan.values.get(SYNC, True) is False and plan.values.get(UNUSED, False) is True:
            return f"torch fails with {SYNC}=False and {GATHER}={BF16} where a pass leaves a block out, as it may here"
        return None

    def rounds(self, plan: Plan) -> bool:
        """Returns whether weights are gathered in bfloat16."""
        return plan.values.get(GATHER, FP32) == BF16

    def heaviest_rank(self, plan: Plan, optimizer: Optimizer, count: int) -> int:
        """Returns the rank with the largest part of the optimizer state, or 0, whose shards are the largest."""
        if plan.values.get(KNOB) != OPTIMIZER:
            return 0
        loads = [0] * count
        for group in optimizer.param_groups:  # as `ZeroRedundancyOptimizer._partition_parameters` does it
            for size in sorted((parameter.numel() for parameter in group["params"]), reverse=True):
                loads[loads.index(min(loads))] += size
        return loads.index(max(loads))

    def needs_rows(self, plan: Plan) -> bool:
        """Returns whether a row of ranks divides the model, and rows replicate it."""
        return plan.values.get(KNOB) == HYBRID

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Divides the model, the gradients and the optimizer of a draft among its ranks until the context is left.

        Raises:
            SpaceError: a value is unknown, there is one rank, or this model or optimizer does not admit the layout.
        """
        layout, views, reshard, gather, sync, unused = (plan.values.get(name, idle) for name, idle in self.owns.items())
        if layout is not None and layout not in LAYOUTS:
            raise unknown_value(KNOB, layout, f"one of {', '.join(LAYOUTS)}")
        for name, value in ((VIEWS, views), (RESHARD, reshard), (SYNC, sync), (UNUSED, unused)):
            if type(value) is not bool:
                raise unknown_value(name, value, "False or True")
        if gather not in (FP32, BF16):
            raise unknown_value(GATHER, gather, f"{FP32} or {BF16}")
        return self._divided(plan, draft, layout)

    @contextmanager
    def _divided(self, plan: Plan, draft: Draft, layout: KnobValue | None) -> Iterator[None]:
        ranks, model, optimizer = draft.ranks, draft.model, draft.optimizer
        reason = _refusal_of_draft(draft, layout) or self.conflict(plan)
        reason = reason or (_statistics(model) if self.rounds(plan) else None)
        if ranks is None or reason is not None:
            raise SpaceError(
                f"{KNOB}={layout} cannot be applied: {reason}; expected several ranks, and a plan and a "
                "model for which the layout was offered. Choose another layout."
            )
        if ranks.train and optimizer is not None:
            check_alike(optimizer, ranks)
        with Undo() as undo:
            if layout in BUCKETED:
                _replicate(draft, ranks, undo, **{name: plan.values.get(name) is True for name in (VIEWS, UNUSED)})
            elif layout == TENSOR:
                undo.enter_context(sharded(model, optimizer, ranks, partial(divide_layers, ranks=ranks)))
                undo.set(draft, "together", True)
            else:
                self._shard(plan, draft, ranks, undo)
            if layout == OPTIMIZER and optimizer is not None:
                made = _partitioned(optimizer, ranks)
                part_state(optimizer, made.optim, ranks, undo)
                undo.set(draft, "optimizer", made)
            if layout in BUCKETED and draft.optimizer is not None and not ranks.is_fake:
                averaged = _Average(model, ranks, issued(ranks.group), _trained(model))
                undo.callback(draft.optimizer.register_step_pre_hook(averaged.check).remove)
                undo.callback(draft.optimizer.register_step_post_hook(averaged.note).remove)
            undo.set(draft, "gathers", layout != REPLICATED and ranks.train)
            yield

    def _shard(self, plan: Plan, draft: Draft, ranks: Ranks, undo: Undo) -> None:
        """Shards the blocks of a draft's model."""
        in_rows = self.needs_rows(plan)
        mesh = ranks.grid if in_rows else ranks.mesh
        assert mesh is not None, "these ranks have been put in rows"
        formats = in_bf16(autocast=draft.autocast is not nullcontext) if self.rounds(plan) else (None, None)
        divide = in_blocks(mesh, reshard=plan.values.get(RESHARD, True) is True, formats=formats)
        undo.enter_context(sharded(draft.model, draft.optimizer, ranks, divide))
        undo.enter_context(any_used(draft, ranks, look=plan.values.get(UNUSED) is True))
        kept: Mapping[int, torch.Tensor] = {}
        if plan.values.get(SYNC, True) is False:
            kept = noted_wholes(draft.model, undo)
            undo.set(draft, "accumulating", partial(kept_apart, draft.model, in_rows=in_rows))
        else:
            undo.set(draft, "exchange", Blocks.of(draft.model))
        if ranks.train and hasattr(draft.model, "reset_iter_state"):
            undo.set(draft, "discard", partial(discard_pass, draft.model, kept))


def _apart(left_out: Unused) -> str | None:
    """Returns why ranks that divide parameters may wait for each other in vain, or None."""
    if left_out.some and not takes_unused():
        return _TOO_OLD
    if left_out.block:
        return (
            f"a pass may skip {left_out.block}, and ranks that do not all run a block wait for each other for ever. If "
            f"they always skip the same ones, pin {UNUSED}=True"
        )
    return None


def _beside(facts: Facts) -> Offer:
    """Returns the knobs that belong to one layout; none while layouts are compared.

    In a search, a layout that divides parameters is the only one to consider if it is pinned.
    """
    pinned = facts.pinned.get(KNOB)
    layout = facts.layout or (pinned if pinned not in BUCKETED else None)
    if layout in (None, TENSOR):
        return Offer()
    if layout not in SHARDED:
        about = "whether gradients are parts of the buckets in which they are averaged, instead of copies"
        return Offer((Knob(name=VIEWS, values=(False, True), default=False, about=about),))
    about = "whether weights gathered in the forward pass are released, and gathered again in the backward pass"
    knobs = [Knob(name=RESHARD, values=(True, False), default=True, about=about)]
    if facts.accumulation_steps > 1 or (facts.resizable and (facts.global_batch_size or 1) > 1):
        about = "whether gradients are exchanged after each micro batch of a step, instead of after the last"
        knobs.append(Knob(name=SYNC, values=(True, False), default=True, accumulated=(False,), about=about))
    if reason := _statistics(facts.model) or lack_of(BF16, facts):
        origin: Any = "" if BF16 in facts.capabilities else "device"
        return Offer((*knobs,), (Refusal(name=f"{GATHER}={BF16}", reason=reason, origin=origin),))
    about = "number format of gathered weights, in which everything computes unless precision=bf16 casts by operator"
    return Offer((*knobs, Knob(name=GATHER, values=(FP32, BF16), default=FP32, about=about)))


def _statistics(model: nn.Module) -> str | None:
    """Returns why the weights of a model cannot be in bfloat16, or None."""
    for name, module in model.named_modules():
        if isinstance(module, NormBase) and module.running_mean is not None:
            return f"{name or 'the model'} keeps statistics in float32, which do not go with weights in bfloat16"
    return None


def _undividable(model: nn.Module) -> str | None:
    """Returns why a model cannot be divided among ranks at all, or None."""
    if reason := divided_already(model):
        return reason
    parameters = list(model.parameters())
    if any(is_traceable_wrapper_subclass(parameter) for parameter in parameters):
        return "it holds sharded or quantized parameters; pass the model before it is sharded"
    if has_compiled_part(model):
        return "the model is compiled; pass it uncompiled"
    if not any(parameter.requires_grad for parameter in parameters):
        return "no parameter of the model is trainable"
    return None


def _lack(layout: str, model: nn.Module, optimizer: Optimizer, count: int) -> str | None:
    """Returns why a model with this optimizer does not admit a layout on `count` ranks, or None."""
    if layout == HYBRID and rows_of(count) < 2:
        return f"{count} ranks do not form rows of several: it takes four, or machines with as many ranks each"
    if layout == TENSOR and int(os.environ.get(PER_MACHINE, count)) < count:
        return "the ranks are on several machines, and each layer would wait for the links between them"
    if layout in (*SHARDED, TENSOR):
        lack = lack_of_layers(model, count) if layout == TENSOR else None
        return lack or _sparse(model) or _lack_of_update(optimizer) or _lack_of_shards(model, optimizer)
    if layout != OPTIMIZER:
        return None
    if isinstance(optimizer, OptimizerSet) or has_own_step(optimizer):
        return f"{type(optimizer).__name__} is not an optimizer of torch.optim, which could be made for a part"
    if len({parameter.dtype for _, parameter in grouped_parameters(optimizer)}) > 1:
        return "ZeroRedundancyOptimizer needs parameters of one dtype"
    return None


def _sparse(model: nn.Module) -> str | None:
    """Returns which gradient is sparse, and what to do; None if none is."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            return f"the gradient of {name or 'the model'} is sparse; make the embedding with sparse=False"
    return None


def _lack_of_shards(model: nn.Module, optimizer: Optimizer) -> str | None:
    """Returns why the parameters of a model cannot be sharded, or None."""
    known = set()
    for name, parameter in model.named_parameters():
        known.add(id(parameter))
        if parameter.dim() == 0:
            return f"the parameter {name} is a single number without dimensions; make it of shape (1,)"
        if not parameter.is_contiguous():
            return f"the parameter {name} is not contiguous in memory"
        if is_view(parameter) or parameter.untyped_storage().nbytes() != parameter.nbytes:
            return f"the parameter {name} shares its memory with other tensors"
    if any(id(parameter) not in known for _, parameter in grouped_parameters(optimizer)):
        return "the optimizer also updates parameters that are not the model's"
    return None


def _lack_of_update(optimizer: Optimizer) -> str | None:
    """Returns why an optimizer cannot update sharded parameters, or None."""
    kind, fused = type(optimizer).__name__, any(group.get("fused") for group in optimizer.param_groups)
    if lacks_parts(optimizer):
        return f"torch's {kind} does not update sharded parameters"
    if fused and lacks_fused_parts(optimizer):
        return f"torch has no fused {kind} for sharded parameters"
    if undividable(optimizer):
        return f"the {kind} has state of other shapes than its parameters, which is not divided with them"
    return None


def _refusal_of_draft(draft: Draft, layout: KnobValue | None) -> str | None:
    """Returns why a draft cannot be divided, or None."""
    if layout is None:
        return "the plan names no layout"
    if draft.ranks is None:
        return "there is one rank"
    if draft.optimizer is None:
        return "inference exchanges nothing between ranks"
    return _undividable(draft.model) or _lack(str(layout), draft.model, draft.optimizer, draft.ranks.count)


def _replicate(
    draft: Draft, ranks: Ranks, undo: Undo, *, gradient_as_bucket_view: bool, find_unused_parameters: bool
) -> None:
    """Has the gradients of a draft's model averaged over all ranks, in buckets."""
    if is_without_data(draft.model):
        _imitate_buckets(draft.model, undo, views=gradient_as_bucket_view)
        if find_unused_parameters:  # the pass that looks for them begins at copies of what the model returns
            undo.callback(draft.model.register_forward_hook(_copied).remove)
        return
    wrapped = DistributedDataParallel(
        draft.model,
        process_group=ranks.group,
        gradient_as_bucket_view=gradient_as_bucket_view,
        find_unused_parameters=find_unused_parameters,
    )
    if ranks.is_fake:
        # A lambda: torch checks annotations, and not every build has the type that it wants to see.
        wrapped.register_comm_hook(ranks.count, lambda count, bucket: _averaged_alone(count, bucket))  # noqa: PLW0108
    undo.set(draft, "model", wrapped)
    undo.set(draft, "accumulating", wrapped.no_sync)
    undo.set(draft, "exchange", Buckets(wrapped))


@dataclass(slots=True)
class Buckets:
    """The `Exchange` of `DistributedDataParallel`: the last pass of a step averages its buckets, one after the other.

    What else it would exchange in a pass, buffers and the order of buckets, is exchanged before.
    """

    wrapped: Any
    _before: int = 0

    def learn(self, run: Callable[[], object]) -> None:
        """Does nothing: the reducer knows its buckets."""

    def begin(self) -> None:
        """Puts buckets in the order of the first backward pass, and gives all ranks the buffers of rank 0."""
        self.wrapped.reducer._rebuild_buckets()
        if self.wrapped.will_sync_module_buffers():
            self.wrapped._sync_buffers()

    def attempt(self) -> None:
        """Counts buckets from now."""
        self.wrapped.require_forward_param_sync = False
        self._before = issued(self.wrapped.process_group)

    def complete(self, passes: int) -> None:
        """Averages zeros in the place of the buckets that are left, and then what says which parameters were used."""
        reducer, sent = self.wrapped.reducer, issued(self.wrapped.process_group) - self._before
        buckets = reducer._get_zeros_like_grad_buckets()
        for bucket in buckets[sent:]:
            reducer._run_comm_hook(bucket).wait()
        if self.wrapped.find_unused_parameters and sent <= len(buckets):
            trained = [each for each in self.wrapped.parameters() if each.requires_grad]
            used = torch.zeros(len(trained), dtype=torch.int32, device=trained[0].device)
            distributed.all_reduce(used, group=self.wrapped.process_group)

    def reset(self) -> None:
        """Lets the reducer begin anew, when no bucket is written to any more."""
        distributed.barrier(self.wrapped.process_group)
        self.wrapped.reducer._reset_state()
        self.wrapped.require_forward_param_sync = True


@dataclass(slots=True)
class _Average:
    """Checks before each update that gradients were averaged over ranks, as otherwise each would train on its own.

    `DistributedDataParallel` averages those of the parameters that were trainable when it was made, in passes of its
    own forward method.
    """

    model: nn.Module
    ranks: Ranks
    before: int
    trained: list[bool]

    def check(self, *_: Any) -> None:
        """Checks it.

        Raises:
            WorkloadError: nothing was exchanged, or other parameters are trainable now.
        """
        if (trained := _trained(self.model)) != self.trained:
            names = [name for name, _ in self.model.named_parameters()]
            changed = [n for n, was, now in zip(names, self.trained, trained, strict=False) if was is not now]
            raise WorkloadError(
                f"found that requires_grad of {', '.join(changed[:3])}{' and others' * (len(changed) > 3)} was changed "
                "after prepare, which gradients averaged in buckets do not follow; expected the same trainable "
                "parameters until close(). Tune and prepare again after the change, or pin layout=full."
            )
        if issued(self.ranks.group) == self.before:
            raise WorkloadError(
                "the gradients were not averaged over ranks: found that step_fn or the loss calls the model by a "
                "variable of its own, or inside no_sync(); expected a call of the model that it gets, which averages "
                "them. Use its argument, without no_sync()."
            )

    def note(self, *_: Any) -> None:
        """Counts from now what ranks exchange."""
        self.before = issued(self.ranks.group)


def _trained(model: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in model.parameters()]


def _averaged_alone(count: int, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Stands for the average of a bucket on fake ranks, which the reducer cannot wait for."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer().div_(count))
    return future


def _imitate_buckets(model: nn.Module, undo: Undo, *, views: bool) -> None:
    """Gives a model without data the buckets of `DistributedDataParallel`, whose reducer reads data.

    It has one flat buffer for each bucket, as long as the model lives. Each gradient is copied into its bucket when it
    is complete, and back after the average; with `views` it is a part of the bucket from then on.
    """
    for bucket in _buckets([parameter for parameter in model.parameters() if parameter.requires_grad]):
        flat, place = torch.empty(sum(map(torch.numel, bucket)), dtype=bucket[0].dtype, device=bucket[0].device), 0
        for parameter in bucket:
            part = flat[place : place + parameter.numel()].view(parameter.shape)
            place += parameter.numel()
            hook: Any = _Averaged(part, views)
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            undo.callback(handle.remove)


def _copied(model: nn.Module, given: Any, returned: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda each: each if each.grad_fn is None else each.clone(), returned)


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yields the parameters of each bucket, as `_compute_bucket_assignment_by_size`, which needs data: in reverse."""
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        bucket, limit = list[nn.Parameter](), FIRST_BUCKET_BYTES
        for parameter in reversed([each for each in parameters if each.dtype is dtype]):
            bucket.append(parameter)
            if sum(each.nbytes for each in bucket) >= limit:
                yield bucket
                bucket, limit = [], BUCKET_BYTES
        if bucket:
            yield bucket


class _Averaged:
    """A hook that does with the memory of a complete gradient what the reducer does."""

    def __init__(self, part: torch.Tensor, views: bool) -> None:
        self._part, self._views = part, views

    def __call__(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None, "the hook runs after a gradient is complete"
        if self._views:
            parameter.grad = self._part
        else:
            self._part.copy_(gradient)


def zero_redundancy_optimizer() -> Any:
    """Returns torch's class. Its import takes long, and warns of a deprecated function of torch that torch uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415
    return ZeroRedundancyOptimizer


def _partitioned(optimizer: Optimizer, ranks: Ranks) -> Any:
    """Returns a `ZeroRedundancyOptimizer`, whose attribute `optim` updates a part of the parameters on this rank."""
    takes = inspect.signature(type(optimizer).__init__).parameters  # groups also hold what a subclass has fixed
    made: Any = zero_redundancy_optimizer()(
        [dict(group) for group in optimizer.param_groups],
        optimizer_class=type(optimizer),
        process_group=ranks.group,
        **{name: value for name, value in optimizer.defaults.items() if name in takes},
    )
    if ranks.train:
        vars(optimizer)["_opt_called"] = True  # a scheduler looks there for updates, which the other one makes
    made.state = made.optim.state  # which is otherwise empty until it is saved
    made.param_groups = optimizer.param_groups  # which a scheduler changes
    return made
