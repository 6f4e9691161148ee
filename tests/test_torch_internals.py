"""Each private name of torch does what its users rely on, with the installed version."""

import random
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

from autofit import torch_internals as internals
from autofit.tracing.ranks import fake_ranks


@pytest.mark.parametrize(
    ("base", "module"),
    [
        (internals.BatchNorm, nn.BatchNorm1d(2)),
        (internals.NormBase, nn.InstanceNorm1d(2)),
        (internals.InstanceNorm, nn.InstanceNorm1d(2)),
        (internals.ConvNd, nn.Conv2d(1, 1, 1)),
        (internals.DropoutNd, nn.Dropout2d()),
    ],
)
def test_base_classes_of_modules(base: type[nn.Module], module: nn.Module) -> None:
    assert isinstance(module, base)
    assert not isinstance(nn.Linear(1, 1), base)


def test_a_fake_tensor_has_a_shape_and_no_data() -> None:
    with internals.FakeTensorMode():
        found = torch.ones(2, 3) @ torch.ones(3, 4)
        assert isinstance(found, internals.FakeTensor)
        assert found.shape == (2, 4)
        with pytest.raises(internals.DataDependentOutputException):
            found.sum().item()
        with pytest.raises(internals.DynamicOutputShapeException):
            found.nonzero()


def test_a_dispatch_mode_sees_every_operator() -> None:
    seen = []

    class Mode(internals.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():  # type: ignore[no-untyped-call]  # torch has no types here
        torch.ones(2) + 1
    assert torch.ops.aten.add.Tensor in seen


def test_a_tree_is_taken_apart_and_put_together() -> None:
    leaves, spec = internals.pytree.tree_flatten({"a": [1, 2], "b": 3})
    assert leaves == [1, 2, 3]
    assert internals.pytree.tree_unflatten([4, 5, 6], spec) == {"a": [4, 5], "b": 6}


def test_the_backward_pass_is_known_inside_and_not_outside() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append((internals.current_node(), internals.backward_id())))  # type: ignore[no-untyped-call]
    y.sum().backward()  # type: ignore[no-untyped-call]  # torch has no type for it
    ((node, number),) = seen
    assert node.name() == "MulBackward0"
    assert number >= 0
    assert internals.current_node() is None
    assert internals.backward_id() == -1


def test_sequence_numbers_grow_with_the_graph() -> None:
    before = internals.next_sequence_number()
    torch.ones(2, requires_grad=True).mul(2).sum()
    assert internals.next_sequence_number() == before + 2


def test_a_view_has_a_base_and_a_copy_has_none() -> None:
    whole = torch.ones(4)
    assert internals.base_of(whole[:2]) is whole
    assert internals.base_of(whole[:2].clone()) is None


def test_a_version_is_put_back() -> None:
    tensor = torch.ones(2)
    before = tensor._version
    tensor.add_(1)
    internals.set_version(tensor, before)
    assert tensor._version == before


def test_which_kernels_an_operator_has() -> None:
    assert internals.has_kernel("aten::add.Tensor", "CPU")
    assert not internals.has_kernel("aten::add.Tensor", "IPU")


def test_a_tensor_of_vmap_is_told_from_one_of_its_own() -> None:
    found = []

    def seen(row: torch.Tensor) -> torch.Tensor:
        found.append(internals.is_wrapped_by_functorch(row))
        return row

    torch.vmap(seen)(torch.ones(2, 2))
    assert found == [True]
    assert not internals.is_wrapped_by_functorch(torch.ones(2))


def test_subclasses_are_passed_over() -> None:
    class Loud(torch.Tensor):
        pass

    loud = torch.ones(2).as_subclass(Loud)
    with internals.without_tensor_subclasses():
        assert type(loud + 1) is torch.Tensor
    assert type(loud + 1) is Loud


def test_tensors_that_hold_tensors_are_known() -> None:
    assert not internals.is_traceable_wrapper_subclass(torch.ones(2))


def test_what_iterates_a_loader_and_the_types_of_foreach_kernels() -> None:
    assert isinstance(iter(DataLoader(TensorDataset(torch.ones(2)))), internals.LoaderIterator)
    assert hasattr(internals.loader_utils.signal_handling, "_SIGCHLD_handler_set")
    assert torch.Tensor in internals.foreach._foreach_supported_types


def test_tensors_share_a_storage_if_its_number_is_the_same() -> None:
    x = torch.ones(4)
    assert internals.storage_id(x[1:].untyped_storage()) == internals.storage_id(x.untyped_storage())
    assert internals.storage_id(x.clone().untyped_storage()) != internals.storage_id(x.untyped_storage())


def test_references_to_a_storage_are_counted() -> None:
    x = torch.ones(4)
    alone = internals.use_count(x.untyped_storage())
    view = x[1:]
    assert internals.use_count(view.untyped_storage()) == alone + 1


def test_an_overload_has_a_schema() -> None:
    schema = internals.schema_of(torch.ops.aten.dropout.default)
    assert schema.name == "aten::dropout"
    assert [argument.name for argument in schema.arguments] == ["input", "p", "train"]
    assert len(schema.returns) == 1


def test_the_kernels_of_a_dispatch_key_can_be_skipped() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
        with internals.without_dispatch("AutocastCPU"):
            assert (x @ x).dtype is torch.float32


def test_a_backward_pass_runs_past_the_public_functions() -> None:
    x = torch.ones(2, requires_grad=True)
    internals.run_backward([(3 * x).sum()], [torch.ones(())], False, False)
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]


def test_the_record_of_the_child_signal_is_read_and_set() -> None:
    before = internals.handles_child_signal()
    assert internals.handles_child_signal(not before) is before
    assert internals.handles_child_signal(before) is not before
    assert internals.handles_child_signal() is before


def test_hooks_of_one_optimizer_and_of_all_are_seen() -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    assert not internals.has_step_hooks(optimizer)
    of_one = optimizer.register_step_post_hook(lambda *_: None)
    assert internals.has_step_hooks(optimizer)
    of_one.remove()
    before = internals.global_step_hooks()
    of_all = register_optimizer_step_pre_hook(lambda *_: None)
    assert internals.has_step_hooks(optimizer)
    assert internals.global_step_hooks() == before + 1
    of_all.remove()
    assert not internals.has_step_hooks(optimizer)


def test_the_record_of_memory_has_allocations_and_releases() -> None:
    internals.start_memory_record()
    x = torch.ones(1000)
    del x
    changes = [event.cpu_memory_usage() for thread in internals.stop_memory_record() for event in thread]
    assert 4000 <= max(changes) == -min(changes)


def test_overloads_share_a_packet() -> None:
    assert internals.packet_of(torch.ops.aten.add.Tensor) is internals.packet_of(torch.ops.aten.add.Scalar)
    assert isinstance(torch.ops.aten.add.Tensor, internals.OpOverload)
    assert not isinstance(torch.ops.aten.add, internals.OpOverload)


def test_later_nodes_have_higher_numbers_and_accumulation_the_highest() -> None:
    x = torch.ones(2, requires_grad=True)
    first, second = 2 * x, 3 * x
    before, after = (internals.sequence_number(each.grad_fn) for each in (first, second))
    assert 0 <= before < after < 2**63
    assert first.grad_fn is not None
    assert internals.sequence_number(first.grad_fn.next_functions[0][0]) >= 2**63


def test_a_view_is_one() -> None:
    x = torch.ones(4, requires_grad=True)
    assert internals.is_view(x[1:])
    assert not internals.is_view(x * 2)


def test_a_transform_is_seen_while_it_runs() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(internals.is_transforming())
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    function(torch.ones(2))
    assert seen == [True, False]


def test_the_lists_decide_what_foreach_takes() -> None:
    parameter = nn.Parameter(torch.ones(1))
    for types in internals.foreach_types():
        assert type(parameter) in types or torch.Tensor in types
        assert internals.FakeTensor not in types


def test_another_process_group_can_be_the_default_and_have_a_limit() -> None:
    limit = timedelta(seconds=7)
    store: Any = vars(distributed)["HashStore"]()  # torch does not declare it
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=limit)
    try:
        mine, other = distributed.group.WORLD, distributed.new_group()
        assert internals.known_groups() == [mine, other]
        before = internals.issued(other)
        internals.limit_time(other, timedelta(seconds=2))
        assert internals.time_limit(other, "cpu") == timedelta(seconds=2)
        assert internals.time_limit(mine, "cpu") == limit
        with internals.default_group(other):
            assert distributed.group.WORLD is other
            distributed.all_reduce(torch.ones(1))
        assert distributed.group.WORLD is mine
        assert internals.issued(other) > before
    finally:
        distributed.destroy_process_group()


def test_exchanges_without_data_are_numbered_by_a_module_whose_generator_can_be_replaced() -> None:
    with fake_ranks(2), internals.FakeTensorMode():
        before = random.getstate()
        with patch.object(internals.numbering_of_exchanges(), "random", random.Random()):
            distributed.all_reduce(torch.ones(1))
        assert random.getstate() == before
        distributed.all_reduce(torch.ones(1))
        assert random.getstate() != before
