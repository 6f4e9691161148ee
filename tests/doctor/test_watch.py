"""What the watch records of real steps, and that it changes nothing."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils.checkpoint import checkpoint

from autofit.devices.cpu import HostMeter
from autofit.doctor.observer import rename
from autofit.doctor.session import collection_off
from autofit.doctor.watch import Watch
from autofit.memory.trace import Kind
from autofit.torch_internals import TorchDispatchMode
from tests.doctor.cases import recurrent

CPU = torch.device("cpu")
THIS = "tests/doctor/test_watch.py:"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu() * self.scale
        found: torch.Tensor = self.last(hidden)
        return found


@contextmanager
def watching(*models: nn.Module, saves: bool = True) -> Iterator[Watch]:
    with collection_off(), Watch(CPU, models, saves=saves).watching() as watch:
        yield watch


def handle(watch: Watch, tensor: torch.Tensor) -> int:
    found = watch.handle_of(tensor)
    assert found is not None
    return found


def test_an_allocation_has_its_line_form_step_and_module() -> None:
    model = Net()
    with watching(model) as watch:
        watch.boundary()
        out = model(torch.ones(3, 4))
        made = handle(watch, out)
    assert watch.sites[made].user.startswith(THIS)
    assert watch.forms[made] == (torch.float32, (3, 2))
    assert watch.steps[made] == 2
    assert watch.modules.names[watch.origins[made]] == "last"
    assert watch.operators[made] == "aten::addmm"


def test_what_another_thread_trains_is_not_recorded() -> None:
    def train() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.autograd.backward(model(torch.ones(3, 4)).sum())
        optimizer.step()

    with watching(Net()) as watch:
        before = len(watch.marks), len(watch.calls), len(watch.sizes), len(watch.models)
        thread = Thread(target=train)
        thread.start()
        thread.join()
        assert (len(watch.marks), len(watch.calls), len(watch.sizes), len(watch.models)) == before


def test_what_is_there_before_is_initial_and_has_its_kind() -> None:
    model = Net()
    with watching(model) as watch:
        kinds = {watch.kinds[each] for each in watch.initial}
        assert kinds == {Kind.PARAMETER, Kind.BUFFER}
        assert watch.kinds[handle(watch, model.get_buffer("scale"))] is Kind.BUFFER
    assert len(watch.initial) == 5


def test_a_module_that_no_model_has_is_adopted_where_another_calls_it() -> None:
    class Calls(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(apart(relu(x)))

    apart, relu, model = nn.Linear(4, 4), nn.ReLU(), Calls()
    with watching(model) as watch:
        assert list(watch.models.values()) == [model]
        torch.autograd.backward(model(torch.ones(3, 4)).sum())
        assert list(watch.models.values()) == [model, apart]
        assert id(apart.weight) in watch.with_gradient
        assert "Linear.weight" in dict(watch.parameters())


def test_the_last_operator_that_reads_is_noted_and_views_read_nothing() -> None:
    with watching() as watch:
        x = torch.ones(3, 4)
        made = handle(watch, x)
        assert watch.read_by[made] == watch.born[made], "nothing has read it"
        y = x.exp()
        first = watch.read_by[made]
        assert first == watch.born[handle(watch, y)]
        row = x.t()[0].view(3)
        assert watch.read_by[made] == first
        row.sum()
        assert watch.read_by[made] == watch.operator > first
        assert watch.reads[made] == len(watch.events) - 1, "the sum has died since"


def test_in_place_operators_read() -> None:
    with watching() as watch:
        x, y = torch.zeros(3), torch.ones(3)
        x.add_(y)
        last = watch.operator
        assert watch.read_by[handle(watch, x)] == watch.read_by[handle(watch, y)] == last
        torch.add(y, 1, out=x)
        assert watch.read_by[handle(watch, x)] == last + 1


def test_tensors_from_elsewhere_are_marked() -> None:
    outside = torch.ones(5)
    with watching() as watch:
        inside = outside + 1
        assert handle(watch, outside) in watch.outside
        assert handle(watch, inside) not in watch.outside
        assert watch.kinds[handle(watch, outside)] is Kind.BATCH


def test_phases_are_marked_by_step() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model) as watch:
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            watch.boundary()
    names = [mark.name for mark in watch.marks]
    assert names[:5] == [f"step 1 {phase}" for phase in ("forward", "backward", "forward", "optimizer", "forward")]
    assert names[5] == "step 2 forward"
    assert [mark.event for mark in watch.marks] == sorted(mark.event for mark in watch.marks)
    assert len(watch.levels) == len(watch.nodes) == 2


def test_kinds_are_known_at_the_end_of_a_step() -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(model) as watch:
        loss = model(torch.ones(1, 4)).exp()
        loss.sum().backward()
        optimizer.step()
        watch.boundary()
        state = optimizer.state[model.first.weight]["exp_avg"]
        assert watch.kinds[handle(watch, state)] is Kind.OPTIMIZER_STATE
        assert model.first.weight.grad is not None
        assert watch.kinds[handle(watch, model.first.weight.grad)] is Kind.GRADIENT
        assert watch.kinds[handle(watch, loss)] is Kind.ACTIVATION
        assert watch.gradients[handle(watch, model.first.weight.grad)] == id(model.first.weight)


def test_state_from_before_is_recorded_even_if_nothing_reads_it() -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.first.requires_grad_(False)
    with watching(model) as watch:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        frozen = optimizer.state[model.first.weight]["exp_avg"]
        assert watch.kinds[handle(watch, frozen)] is Kind.OPTIMIZER_STATE
        assert handle(watch, frozen) in watch.initial


def test_saved_tensors_are_used_by_a_backward_pass() -> None:
    model = Net()
    with watching(model) as watch:
        model(torch.ones(1, 4)).sum().backward()
        used = len(watch.saved)
        assert used > 0
        assert all(each.used_at >= 0 for each in watch.saved)
        model(torch.ones(1, 4)).sum()
        assert len(watch.saved) > used
        assert all(each.used_at < 0 for each in watch.saved[used:])
        with torch.no_grad():
            model(torch.ones(1, 4))
    assert len(watch.saved) == 2 * used


def test_saved_tensors_know_the_calls_of_modules() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.net(x).exp()
            return found

    model = Outer()
    with watching(model) as watch:
        model(torch.ones(1, 4)).exp()
    depths = []
    for each in watch.saved:
        depth, call = 0, each.call
        while call >= 0:
            depth, call = depth + 1, watch.calls[call].outer
        depths.append(depth)
    assert depths[-1] == 0, "the last one is outside of all modules"
    assert max(depths) == 3
    assert 1 in depths
    assert {call.outer for call in watch.calls if call.site == watch.calls[0].site} == {-1}


def test_a_call_that_fails_is_over() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    with watching() as watch:
        with pytest.raises(KeyError, match="mine"):
            Failing()(torch.ones(1))
        torch.ones(1, requires_grad=True).exp()
        assert [each.call for each in watch.saved] == [-1]


def test_saves_are_not_watched_if_that_is_asked() -> None:
    with watching(saves=False) as watch:
        torch.ones(3, requires_grad=True).exp().sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert watch.saved == []


def test_a_graph_that_is_never_used_is_freed_with_its_tensor() -> None:
    """A node that saves its own output would keep itself alive through a hook that returns the tensor."""
    with watching() as watch:
        before = set(watch.live())
        x = torch.ones(3, requires_grad=True).exp()
        made = handle(watch, x)
        assert made not in before
        del x
        assert made not in set(watch.live())


def test_gradients_that_are_zeroed_are_seen_with_the_next_sum() -> None:
    model = nn.Linear(4, 2)
    with watching(model) as watch:
        for _ in range(2):
            model.zero_grad(set_to_none=False)
            model(torch.ones(1, 4)).sum().backward()
            watch.boundary()
        model.zero_grad(set_to_none=False)
    assert [each.step for each in watch.zeroed] == [2, 2, 3, 3]
    assert all(0 <= each.first < each.last for each in watch.zeroed[:2])
    assert all(each.last == -1 for each in watch.zeroed[2:])
    assert all(each.site.user.startswith(THIS) for each in watch.zeroed)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_dropped_if_no_optimizer_reads_them(set_to_none: bool) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model) as watch:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert {each.parameter for each in watch.dropped} == {id(model.weight), id(model.bias)}
    assert sum(each.size_bytes for each in watch.dropped) == 4 * (8 + 2)


def test_gradients_that_are_accumulated_or_read_are_not_dropped() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model) as watch:
        for _ in range(2):
            for _ in range(3):
                model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.boundary()
    assert watch.dropped == []
    assert watch.with_gradient == {id(model.weight), id(model.bias)}


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
def test_passes_with_retain_graph_are_noted() -> None:
    with watching() as watch:
        x = torch.ones(3, requires_grad=True)
        loss = x.exp().sum()
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch has no types here
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        torch.autograd.backward(x.exp().sum(), None, True)
        x.exp().sum().backward(create_graph=True)  # type: ignore[no-untyped-call]  # torch has no types here
        x.grad = None
    assert len(watch.retained) == 2
    assert all(each.begun < each.ended and each.site.user.startswith(THIS) for each in watch.retained)


def test_the_line_of_a_backward_operator_is_that_of_its_node() -> None:
    with watching() as watch:
        x = torch.ones(7, requires_grad=True)
        y = x.exp()
        loss = y.sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        assert x.grad is not None
        made = handle(watch, x.grad)
        assert watch.sites[made] == watch.sites[handle(watch, y)]


def test_models_are_found_when_they_are_called() -> None:
    first, second = Net(), Net()
    with watching() as watch:
        first(torch.ones(1, 4))
        second(torch.ones(1, 4))
        first.last(torch.ones(1, 8))
        assert watch.models == {"": first, "Net'": second}
    names = [name for name, _ in watch.parameters()]
    assert names[0] == "Net.first.weight"
    assert "Net'.first.weight" in names
    assert len(names) == 8


def test_what_runs_aside_is_not_recorded() -> None:
    with watching() as watch:
        with watch.aside():
            x = torch.ones(3)
            x.exp()
        assert watch.sizes == []
        assert watch.handle_of(x) is None
        y = x + 1
        assert handle(watch, y) == len(watch.sizes) - 1


def test_sparse_tensors_are_left_out() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    with watching(table) as watch:
        table(torch.tensor([1, 2])).sum().backward()
        assert table.weight.grad is not None
        assert watch.handle_of(table.weight.grad) is None
        optimizer.step()
        watch.boundary()
    assert watch.with_gradient == {id(table.weight)}


def test_a_recomputed_forward_pass_is_no_call_of_the_users() -> None:
    model = Net()
    with watching(model) as watch:
        checkpoint(model, torch.ones(1, 4), use_reentrant=False).sum().backward()
        assert watch._call == -1
        assert len(watch.calls) == 3, "the model and two layers, once"


def test_nodes_of_earlier_steps_are_counted_at_each_boundary() -> None:
    with watching() as watch:
        weight = torch.ones(3, requires_grad=True)
        total = torch.zeros(3)
        for _ in range(4):
            total = total + weight
            apart = weight * 2
            watch.boundary()
    assert watch.nodes == [0, 1, 2, 3]
    assert apart.requires_grad


@pytest.mark.parametrize("collects", [False, True])
def test_a_tensor_from_before_may_get_a_graph(collects: bool) -> None:
    total = torch.zeros(3)
    weight = torch.ones(3, requires_grad=True)
    with watching() as watch:
        for _ in range(4):
            total += weight
            if collects:
                gc.collect()
            watch.boundary()
    assert watch.nodes == [0, 1, 2, 3]


def hooks() -> tuple[int, ...]:
    return (
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
        len(optimizer_hooks._global_optimizer_pre_hooks),
        len(optimizer_hooks._global_optimizer_post_hooks),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_watch_is_left(fails: bool) -> None:
    model, before, backward = Net(), hooks(), torch.autograd.backward
    expected = pytest.raises(KeyError) if fails else nullcontext()
    with expected, watching(model) as watch:
        assert hooks() != before
        model(torch.ones(1, 4)).sum().backward()
        if fails:
            raise KeyError
    assert hooks() == before
    assert torch.autograd.backward is backward
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    count = len(watch.events)
    del watch.on_operator
    model.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    assert len(watch.events) == count


def test_a_model_that_keeps_a_graph_is_freed_after_the_watch() -> None:
    """The graph has the watch's functions, and the watch has the model: a cycle that Python would not see."""
    case = recurrent(False)
    with watching(case.model):
        case.step()
        case.step()
    known = weakref.ref(case.model)
    del case
    gc.collect()
    assert known() is None


def test_a_graph_from_the_watch_can_be_used_after_it() -> None:
    x = torch.ones(3, requires_grad=True)
    with watching() as watch:
        y = x.exp()
    del watch
    gc.collect()
    y.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert x.grad is not None
    assert torch.equal(x.grad, y)


def changed_in_place() -> torch.Tensor:
    """Returns a loss whose graph needs a tensor that was changed since."""
    y = torch.ones(3, requires_grad=True).exp()
    with torch.no_grad():
        y.add_(1)
    return y.sum()


def test_the_watch_switches_off_the_check_for_changed_tensors() -> None:
    """So the session runs the first step without it."""
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed_in_place().backward()  # type: ignore[no-untyped-call]  # torch has no types here
    with watching():
        changed_in_place().backward()  # type: ignore[no-untyped-call]  # torch has no types here


# What is computed, and the memory of the steps.


def mlp() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 10))
    x, y = torch.randn(16, 32), torch.randint(10, (16,))
    return model, lambda: F.cross_entropy(model(x), y)


def cnn() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    x, y = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
    return model, lambda: F.cross_entropy(model(x), y)


def gpt2() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    import transformers  # noqa: PLC0415  # takes seconds

    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0)
    model, ids = transformers.GPT2LMHeadModel(config).train(), torch.randint(64, (2, 16))
    return model, lambda: model(input_ids=ids, labels=ids).loss


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(50, 16), nn.GRU(16, 32, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.rnn(self.words(ids))[0][:, -1])
        return found


def gru() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model, ids, y = Gru(), torch.randint(50, (8, 12)), torch.randint(10, (8,))
    return model, lambda: F.cross_entropy(model(ids), y)


class Empty(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """A mode that only passes each operator on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Run(NamedTuple):
    """What a training of some steps computed, and its peak."""

    peak_bytes: int
    losses: list[float]
    gradients: list[torch.Tensor]
    weights: list[torch.Tensor]
    buffers: list[torch.Tensor]
    random: torch.Tensor


def run(make: Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]], mode: str) -> Run:
    """Trains a model for four steps, plainly, under an empty mode or under the watch."""
    losses, meter = list[float](), HostMeter()
    with ExitStack() as stack:
        stack.enter_context(collection_off())
        meter.start()
        stack.callback(meter.stop)
        torch.manual_seed(0)
        model, loss_of = make()
        optimizer = torch.optim.AdamW(model.parameters())
        watch = Watch(CPU, [model]) if mode == "watch" else None
        empty = Empty() if mode == "mode" else nullcontext()  # type: ignore[no-untyped-call]  # torch has no types here
        stack.enter_context(watch.watching() if watch else empty)
        for _ in range(4):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            losses.append(loss.item())
            del loss
            meter.drain()
            if watch:
                watch.boundary()
        peak_bytes = meter.peak_bytes
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return Run(peak_bytes, losses, gradients, list(model.parameters()), list(model.buffers()), torch.get_rng_state())


@pytest.mark.filterwarnings("ignore")  # of transformers, when it is imported
@pytest.mark.parametrize("make", [mlp, cnn, gpt2, gru])
def test_the_watch_changes_neither_results_nor_the_peak(
    make: Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]],
) -> None:
    plain, empty, watched = (run(make, mode) for mode in ("", "mode", "watch"))
    assert watched.losses == plain.losses
    for name in ("gradients", "weights", "buffers"):
        pairs = zip(getattr(watched, name), getattr(plain, name), strict=True)
        assert all(torch.equal(first, second) for first, second in pairs), name
    assert len(watched.gradients) == len(watched.weights)
    assert torch.equal(watched.random, plain.random)
    assert watched.peak_bytes == empty.peak_bytes
    # A Python number that an operator takes as a tensor lives until the operator ends under any mode: 8 bytes.
    assert 0 <= watched.peak_bytes - plain.peak_bytes <= 8


def test_models_are_renamed_with_their_modules_and_stay_apart() -> None:
    first, second, third = Net(), Net(), Net()
    with watching() as watch:
        for model in (first, second, third):
            model(torch.ones(1, 4))
        rename(watch, {id(first): "student", id(second): "net", id(third): "net"})
        assert watch.models == {"student": first, "net": second, "net'": third}
        index = watch.modules.index_of(second.last)
        assert index is not None
        assert watch.modules.names[index] == "net.last"
    assert {name.partition(".")[0] for name, _ in watch.parameters()} == {"student", "net", "net'"}
