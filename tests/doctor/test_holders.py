"""Which variable holds a tensor, and how it is called."""

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autofit.doctor import holders
from autofit.doctor.holders import Holder, find_holders, paths_to, unlisted

GLOBAL: list[torch.Tensor] = []
HERE = "(tests/doctor/test_holders.py:"


def handle_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage stands for its allocation."""
    return tensor.untyped_storage().data_ptr()


def only(wanted: int, roots: Mapping[str, object] | None = None) -> Holder | None:
    """Returns the holder of one allocation."""
    return find_holders(handle_of, [wanted], roots or {}).get(wanted)


def new() -> torch.Tensor:
    return torch.ones(3)


def test_a_local_variable_is_named_with_its_function_and_line() -> None:
    outputs = new()
    found = only(handle_of(outputs))
    assert found is not None
    assert found.path == "outputs"
    assert found.where.startswith(f" in test_a_local_variable_is_named_with_its_function_and_line {HERE}")
    assert str(found).startswith("`outputs` in test_a_local_variable")


def test_variables_of_callers_are_found() -> None:
    mine = new()

    def inner(wanted: int) -> Holder | None:
        return only(wanted)

    found = inner(handle_of(mine))
    assert found is not None
    assert found.path == "mine"


def test_a_global_is_named_with_its_module() -> None:
    GLOBAL.append(new())
    try:
        found = only(handle_of(GLOBAL[0]))
    finally:
        GLOBAL.clear()
    assert found is not None
    assert found.path == "GLOBAL[0]"
    assert found.where == f" in {__name__}"
    assert found.variable == f"GLOBAL in {__name__}"


def test_a_list_says_its_length_and_a_deque_that_it_is_bounded() -> None:
    kept, ring = [new(), new(), new()], deque([new()], maxlen=4)
    free = deque([new()])
    found = find_holders(handle_of, map(handle_of, (kept[2], ring[0], free[0])), {})
    by_path = {holder.path: holder for holder in found.values()}
    assert by_path.keys() == {"kept[2]", "ring[0]", "free[0]"}
    assert (by_path["kept[2]"].size, by_path["kept[2]"].bounded) == (3, False)
    assert (by_path["ring[0]"].size, by_path["ring[0]"].bounded) == (1, True)
    assert not by_path["free[0]"].bounded
    assert str(by_path["kept[2]"]).startswith("`kept[2]` (of 3 items) in ")
    assert by_path["kept[2]"].variable.startswith("kept in test_a_list_says")


@dataclass
class State:
    """An object of the user's."""

    last: Any = None
    more: dict[Any, Any] = field(default_factory=dict)


def test_paths_go_through_containers_and_attributes() -> None:
    state = State(more={3: (0, {"x": new()})})
    found = only(handle_of(state.more[3][1]["x"]))
    assert found is not None
    assert found.path == "state.more[3][1]['x']"
    assert found.variable.startswith("state in ")


def test_a_tuple_is_not_counted_as_a_list() -> None:
    values = ([1, (new(), 2)],)
    found = only(handle_of(values[0][1][0]))  # type: ignore[index]  # a tuple in a list of different things
    assert found is not None
    assert found.path == "values[0][1][0]"
    assert found.size == 2, "the innermost list on the way"


def test_subclasses_of_containers_are_containers() -> None:
    outputs = OrderedDict(logits=new())
    found = only(handle_of(outputs["logits"]))
    assert found is not None
    assert found.path == "outputs['logits']"


def test_a_view_is_held_by_who_holds_the_view() -> None:
    row = new().view(3, 1)[0]
    found = only(handle_of(row))
    assert found is not None
    assert found.path == "row"


def test_a_root_is_searched_where_no_variable_has_it() -> None:
    found = find_holders(lambda tensor: 1 if tensor.numel() == 7 else None, [1], {"root": {"a": [torch.ones(7)]}})
    assert (found[1].path, found[1].where, found[1].size) == ("root['a'][0]", "", 1)


def test_attributes_of_modules_are_found_but_not_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)
            vars(self.inner)["cache"] = [new()]

    net = Net()
    wanted = handle_of(vars(net.inner)["cache"][0])
    assert find_holders(handle_of, [wanted, handle_of(net.inner.weight)], {}).keys() == {wanted}
    found = only(wanted)
    assert found is not None
    assert found.path == "net.inner.cache[0]"


def test_what_a_model_holds_without_listing_it_is_named_by_the_way_to_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    inner, free = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    holds: Any = model[1]
    holds.more, holds.free = [{"a": (inner,)}, inner], free
    holds.known = [model[0], model, model[0].weight, nn.Linear]
    holds.others = [free * 2, torch.ones(2), holds.more]
    assert list(unlisted(model, "Net")) == [("Net.1.free", free), ("Net.1.more[1]", inner)]
    assert list(unlisted(inner, "Linear")) == []


def test_what_a_hook_has_in_its_closure_is_named_with_the_hook() -> None:
    def hooked() -> tuple[nn.Module, int]:
        seen = [new()]
        model = nn.Sequential(nn.ReLU())
        model[0].register_forward_hook(lambda *_: seen.clear())
        return model, handle_of(seen[0])

    model, wanted = hooked()
    found = only(wanted)
    assert model is not None
    assert found is not None
    assert found.path == "seen[0]"
    assert "a hook of model.0" in str(found)


def test_methods_lead_to_their_object() -> None:
    class Keeper:
        def __init__(self) -> None:
            self.kept = new()

        def look(self) -> None: ...

    def bound() -> tuple[Any, int]:
        keeper = Keeper()
        return keeper.look, handle_of(keeper.kept)

    look, wanted = bound()
    found = only(wanted)
    assert found is not None
    assert found.path == "look.__self__.kept"
    assert look is not None


def test_a_graph_holds_what_it_saved() -> None:
    def loss() -> tuple[torch.Tensor, int]:
        activation = torch.ones(3, requires_grad=True).exp()
        return (activation * activation).sum(), handle_of(activation)

    total, wanted = loss()
    found = only(wanted)
    assert found is not None
    assert found.graph
    assert found.nodes == 4
    assert str(found).startswith("the graph of `total` in ")
    total.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert only(wanted) is None


def test_a_variable_goes_before_a_graph() -> None:
    activation = torch.ones(3, requires_grad=True).exp()
    total = (activation * activation).sum()
    found = only(handle_of(activation))
    assert found is not None
    assert (found.path, found.graph) == ("activation", False)
    assert found.nodes == 2
    assert total.requires_grad


def test_buffers_are_found_if_they_carry_a_graph() -> None:
    net = nn.Module()
    net.register_buffer("plain", torch.ones(3))
    net.register_buffer("state", torch.ones(3, requires_grad=True).exp())
    plain, state = (handle_of(each) for each in net.buffers())
    assert only(plain) is None
    found = only(state)
    assert found is not None
    assert found.path == "net.state"


def test_what_a_function_has_that_failed_is_found_while_its_error_is_handled() -> None:
    def fails(address: list[int]) -> None:
        outputs = new()
        address.append(handle_of(outputs))
        raise ValueError

    address: list[int] = []
    try:
        fails(address)
    except ValueError:
        found = only(address[0])
    assert found is not None
    assert (found.path, " in fails (" in found.where) == ("outputs", True)
    assert only(address[0]) is None


def test_a_module_among_the_roots_is_searched_for_its_globals() -> None:
    script = ModuleType("__main__")
    vars(script)["kept"] = [new()]
    address = handle_of(vars(script)["kept"][0])
    found = find_holders(handle_of, [address], {"__main__": script})
    assert str(found[address]) == "`kept[0]` (of 1 items) in __main__"


def test_what_nobody_holds_has_no_holder() -> None:
    address = handle_of(new())
    assert only(address) is None
    assert find_holders(handle_of, [], {"root": [new()]}) == {}


def test_variables_of_other_threads_are_found() -> None:
    ready, done, found = threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        in_thread = new()
        found.append(handle_of(in_thread))
        ready.set()
        done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(10)
        holder = only(found[0])
    finally:
        done.set()
        thread.join()
    assert holder is not None
    assert holder.path == "in_thread"
    assert " in work " in holder.where


def test_containers_that_hold_themselves_end() -> None:
    around: list[Any] = []
    around.append(around)
    around.append(new())
    found = only(handle_of(around[1]))
    assert found is not None
    assert found.path == "around[1]"


def test_objects_that_refuse_to_be_read_are_left_out() -> None:
    class Angry(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("no")

    angry, kept = Angry(x=1), new()
    found = only(handle_of(kept))
    assert found is not None
    assert found.path == "kept"
    assert angry


def test_of_a_long_list_the_last_items_are_searched() -> None:
    kept: list[Any] = [None] * (holders.ITEMS + 10)
    kept[-1] = new()
    found = only(handle_of(kept[-1]))
    assert found is not None
    assert found.path == f"kept[{holders.ITEMS + 9}]"
    assert found.size == holders.ITEMS + 10


def test_what_is_too_deep_is_not_found() -> None:
    kept: Any = new()
    wanted = handle_of(kept)
    for _ in range(holders.DEPTH + 1):
        kept = [kept]
    assert only(wanted) is None


def test_an_object_that_was_met_far_away_is_entered_again_from_nearer() -> None:
    far: Any = [[new()]]
    wanted = handle_of(far[0][0])
    for _ in range(holders.DEPTH - 1):
        far = [far]
    assert only(wanted) is None  # the only variable so far
    near = far[0][0][0][0]
    found = only(wanted)
    assert found is not None
    assert (found.path, found.others, len(near)) == ("near[0][0]", (), 1)


def test_a_search_does_not_keep_what_a_running_function_deletes() -> None:
    """Until Python 3.12, reading the variables of a frame makes it keep them."""

    def running() -> None:
        outputs = new()
        known = weakref.ref(outputs)
        assert only(handle_of(outputs)) is not None
        del outputs
        assert known() is None

    running()


def test_a_search_leaves_what_the_users_code_has_from_locals() -> None:
    rate = 0.1
    settings = locals()
    outputs = new()
    assert only(handle_of(outputs)) is not None
    assert settings["rate"] == rate


def test_variables_of_a_class_that_is_being_made_are_left() -> None:
    class Made:
        table = new()
        found = only(handle_of(table))
        after = table

    assert Made.found is not None
    assert Made.found.path == "table"
    assert Made.after is Made.table


def test_modules_are_reached_by_variables_and_through_other_modules() -> None:
    inner, apart = nn.Linear(2, 2), nn.Linear(2, 2)
    broken = nn.Linear.__new__(nn.Linear)  # as while its __init__ runs
    trainer = State(last=nn.Sequential(nn.ReLU(), inner), more={"target": apart})
    names = {id(inner): "inner", id(trainer.last): "trainer.last", id(apart): "apart"}
    assert paths_to([inner, trainer.last, apart], {}) == names
    wanted = trainer.last[1], apart
    del inner, apart, broken
    found = paths_to(wanted, {"root": wanted[1]})
    assert [found[id(each)] for each in wanted] == ["trainer.last.1", "trainer.more['target']"]
    assert paths_to([], {}) == {}
