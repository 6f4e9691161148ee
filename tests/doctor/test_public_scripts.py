"""Faults as in public training scripts: small versions, with what is said of them and of their corrected forms."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autofit
from autofit.doctor.diagnosis import Diagnosis, Finding
from autofit.doctor.loops import Enough, ScriptObserver

WIDTH, BATCH, STEPS = 512, 512, 12
TENSOR_BYTES = BATCH * WIDTH * 4


def watched(script: Callable[[], object]) -> Diagnosis:
    """Runs a script until the doctor has seen enough."""
    torch.manual_seed(0)
    with ScriptObserver("train.py") as observer, suppress(Enough):
        script()
    assert observer.diagnosis is not None
    return observer.diagnosis


def both(script: Callable[[bool], object]) -> tuple[Diagnosis, Diagnosis]:
    """Runs a script with its fault, and mended."""
    return watched(partial(script, False)), watched(partial(script, True))


def only(found: Diagnosis, kind: str) -> Finding:
    (finding,) = (each for each in found.findings if each.id == kind and not each.minor)
    return finding


def shown(found: Diagnosis) -> list[str]:
    return [each.id for each in found.findings if not each.minor]


def batches(count: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(count):
        yield torch.randn(BATCH, 16), torch.randint(8, (BATCH,))


def classifier(dropout: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = nn.Linear(16, WIDTH), nn.GELU(), nn.Dropout(dropout), nn.Linear(WIDTH, 8)
    model = nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def trained_with_evaluation(every: int, good: bool) -> None:
    """Evaluates after some updates, and keeps the score until the next time."""
    model, optimizer = classifier()

    def evaluate() -> torch.Tensor:
        with torch.set_grad_enabled(not good):
            outputs = [model(torch.randn(2 * BATCH, 16)) for _ in range(3)]
            return torch.cat(outputs).softmax(-1).amax(-1).mean()

    score = None
    for number, (inputs, targets) in enumerate(batches(), 1):
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        if number % every == 0:
            score = evaluate()
    assert score is not None


@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_an_evaluation_with_gradients_is_found_whichever_step_it_is_in(every: int) -> None:
    """The score keeps the graph of the evaluation through the training steps after it."""
    found = watched(lambda: trained_with_evaluation(every, good=False))
    finding = only(found, "saved-unused")
    assert "test_public_scripts.py" in finding.places[0].line
    assert finding.size is not None
    assert finding.size.peak_bytes is not None
    assert finding.size.peak_bytes >= 3 * 2 * TENSOR_BYTES
    assert shown(watched(lambda: trained_with_evaluation(every, good=True))) == []


def test_a_step_that_is_higher_than_the_judged_one_is_named() -> None:
    """The evaluation is in the last watched step."""
    notes = watched(lambda: trained_with_evaluation(6, good=False)).notes
    assert len(notes) == 1
    assert notes[0].startswith("watched step 6 reaches ")
    assert watched(trained).notes == ()


def trained() -> None:
    model, optimizer = classifier()
    for inputs, targets in batches():
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()


def carried(good: bool) -> None:
    """A state goes from window to window with its graph, and the loss is made of it."""
    encode, head = nn.Linear(16, WIDTH), nn.Parameter(torch.randn(WIDTH, 8))
    optimizer = torch.optim.SGD([*encode.parameters(), head], lr=0.1)
    state = torch.zeros(BATCH, WIDTH)
    for inputs, targets in batches():
        state = 0.9 * (state.detach() if good else state) + torch.tanh(encode(inputs))
        loss = F.cross_entropy(state @ head.clone(), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss, retain_graph=not good)
        optimizer.step()


def test_a_state_that_retain_graph_keeps_is_named_and_not_the_loss() -> None:
    found = watched(lambda: carried(good=False))
    finding = only(found, "graph-kept")
    assert "`state`" in finding.places[0].holder
    assert "which retain_graph=True at " in finding.what
    assert "state.detach()" in finding.remedy
    assert "graph-grows" not in shown(found), "it is the same graph"


class Queued(nn.Module):
    """Contrasts with keys of earlier batches: one position of the hidden states of each sequence."""

    def __init__(self, queue: "list[torch.Tensor] | deque[torch.Tensor]", good: bool) -> None:
        super().__init__()
        self.body, self.queue, self.good = nn.Linear(16, WIDTH), queue, good

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query = self.body(inputs)
        with torch.no_grad():
            key = self.body(inputs).view(BATCH // 64, 64, WIDTH)[:, 0]
        self.queue.append(key.clone() if self.good else key)
        return F.mse_loss(query, query.detach().roll(1)) + torch.cat(list(self.queue)).mean()


def queued(queue: "list[torch.Tensor] | deque[torch.Tensor]", good: bool) -> None:
    model = Queued(queue, good)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, _ in batches():
        torch.autograd.backward(model(inputs))
        optimizer.step()
        optimizer.zero_grad()


def test_a_list_of_views_is_told_to_keep_copies() -> None:
    finding = only(watched(lambda: queued([], good=False)), "grows")
    assert "`queue[" in finding.places[0].holder
    assert f"uses only {BATCH // 64 * WIDTH * 4 // 1024} KiB of it" in finding.what
    assert "clone()" in finding.remedy


def test_a_queue_of_views_is_found_although_it_has_a_limit() -> None:
    """Each view has a `_base`, which torch may keep as an object that no variable holds."""
    found = watched(lambda: queued(deque(maxlen=64), good=False))
    assert shown(found) == ["view-holds"]
    assert "queue[" in only(found, "view-holds").places[0].holder
    assert "view-holds" not in shown(watched(lambda: queued(deque(maxlen=64), good=True)))


class Logged(nn.Module):
    """Keeps the features of its last pass, for a log."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 8)
        self.features: dict[str, torch.Tensor] = {}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.body(inputs)
        self.features["body"] = hidden.detach().clone()
        out: torch.Tensor = self.head(hidden.relu())
        return out


def logged() -> None:
    model = Logged()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches():
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()


def test_an_attribute_is_released_and_not_its_object() -> None:
    """`del model` would be no remedy."""
    finding = only(watched(logged), "dead-at-peak")
    assert finding.remedy.startswith("release `model.features['body']` ")


def held_by_two_names() -> None:
    model = nn.Linear(16, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches():
        outputs = {"logits": model(inputs)}
        logits = outputs["logits"]
        loss = F.cross_entropy(logits, targets)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def test_all_names_of_a_tensor_are_to_be_deleted() -> None:
    remedy = only(watched(held_by_two_names), "dead-at-peak").remedy
    assert "`del outputs, logits` before the backward pass" in remedy or "`del logits, outputs` before" in remedy


def adversaries() -> None:
    """The discriminator's loss reaches the generator, and the generator's the discriminator."""
    generator, critic = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 1)
    first, second = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (critic, generator))
    for inputs, _ in batches():
        fake = generator(inputs)
        first.zero_grad()
        torch.autograd.backward(critic(fake).mean())
        first.step()
        second.zero_grad()
        torch.autograd.backward(critic(generator(inputs)).mean().neg())
        second.step()


def test_the_advice_for_adversaries_fits_both_passes() -> None:
    found = [each for each in watched(adversaries).findings if each.id == "gradient-dropped"]
    assert len(found) == 2
    remedies = {"critic" in each.what: each.remedy for each in found}
    assert "freeze the model that this loss does not train" in remedies[True]
    assert "detach" not in remedies[True], "the generator would not be trained"
    assert "under torch.no_grad(), or, if its graph is used for another loss too, pass it on as" in remedies[False]
    assert "freeze" not in remedies[False]


@pytest.mark.parametrize("good", [True, False])
def test_a_graph_that_is_retained_for_zeroed_gradients_is_cut_where_they_begin(good: bool) -> None:
    generator, critic = nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh()), nn.Linear(WIDTH, 4 * WIDTH)
    first, second = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (critic, generator))

    def train() -> None:
        for inputs, _ in batches():
            fake = generator(inputs)
            first.zero_grad()
            judged = critic(fake.detach() if good else fake).square().mean()
            torch.autograd.backward(judged, retain_graph=not good)
            first.step()
            second.zero_grad()
            critic.requires_grad_(False)
            torch.autograd.backward(critic(fake).square().mean().neg())
            critic.requires_grad_(True)
            second.step()

    found = {each.id: each.remedy for each in watched(train).findings}
    assert ("retain-graph" in found, "gradient-dropped" in found) == (not good, not good)
    if not good:
        assert "leave out the gradients that are zeroed (see gradient-dropped)" in found["retain-graph"]
        assert "pass it on as tensor.detach()" in found["gradient-dropped"]


@pytest.mark.parametrize("good", [True, False])
def test_a_state_that_carries_its_graph_from_chunk_to_chunk_is_to_be_detached(good: bool) -> None:
    cell, head = nn.GRUCell(16, WIDTH), nn.Linear(WIDTH, 64)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)

    def train() -> None:
        for inputs, _ in batches():
            state = torch.zeros(len(inputs), WIDTH)
            for _ in range(3):
                state = cell(inputs, state.detach() if good else state)
                torch.autograd.backward(head(state).square().mean(), retain_graph=not good)
            optimizer.step()
            optimizer.zero_grad()

    found = [each.remedy for each in watched(train).findings if each.id == "retain-graph"]
    assert bool(found) is not good
    assert all("detach what the next forward pass starts from" in each for each in found)


@pytest.mark.parametrize("good", [True, False])
def test_a_history_of_activations_that_are_trained_too_is_detached_where_it_is_kept(good: bool) -> None:
    layer, head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)
    history = {"all": torch.zeros(2 * BATCH, WIDTH)}

    def train() -> None:
        for inputs, _ in batches():
            hidden = layer(inputs).relu()
            kept = hidden.detach() if good else hidden
            history["all"] = history["all"].index_copy(0, torch.arange(len(inputs)), kept)
            torch.autograd.backward(head(hidden).square().mean())
            optimizer.step()
            optimizer.zero_grad()

    found = [each for each in watched(train).findings if each.id == "graph-kept"]
    if good:
        assert found == []
        return
    assert "no_grad" not in found[0].remedy, "the layer would not be trained"
    code = train.__code__
    assert f"before it is kept, at tests/doctor/test_public_scripts.py:{code.co_firstlineno + 4}" in found[0].remedy


def test_a_copy_that_no_step_reads_may_be_meant_for_later() -> None:
    model = nn.Sequential(nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for inputs, targets in batches():
            best = {name: each.clone() for name, each in model.state_dict().items()}
            torch.autograd.backward(F.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
        del best

    finding = only(watched(train), "dead-at-peak")
    assert "unless it is for later, such as the best weights" in finding.remedy


def test_modules_are_named_as_they_are_and_in_their_order() -> None:
    def script() -> None:
        model = nn.Sequential()
        for number in range(4):
            model.add_module(f"part{number}", nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.eval()  # as from_pretrained leaves it
        for inputs, _ in batches():
            torch.autograd.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()

    found = watched(script)
    assert "part0.1 (Dropout), part1.1 (Dropout), part2.1 (Dropout) and 1 more" in str(found).replace("\n    ", " ")


def test_a_loop_that_updates_by_itself_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = classifier()
    loader = autofit.watch(list(batches(4)))
    for inputs, targets in loader:
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None
    assert loader.diagnosis is None
    assert capsys.readouterr().out.startswith("autofit.watch: no optimizer stepped")


def by_hand(good: bool) -> None:
    """Updates weights without an optimizer, as in the word language model of PyTorch's examples."""
    model, _ = classifier()
    losses = list[object]()
    for inputs, targets in batches(40):
        output = model(inputs)
        loss = F.cross_entropy(output, targets)
        torch.autograd.backward(loss)
        losses.append(loss.item() if good else output.detach().repeat(1, 64))
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None


def test_a_script_that_updates_weights_by_hand_is_observed() -> None:
    finding = only(watched(lambda: by_hand(False)), "grows")
    assert "`losses[" in finding.places[0].holder
    assert shown(watched(lambda: by_hand(True))) == []


def recent(most: int) -> None:
    """Keeps the last outputs in a list whose first item is taken out."""
    model, optimizer = classifier()
    last = list[torch.Tensor]()
    for inputs, targets in batches():
        output = model(inputs)
        torch.autograd.backward(F.cross_entropy(output, targets))
        optimizer.step()
        optimizer.zero_grad()
        last.append(output.detach().repeat(1, 64))
        if len(last) > most:
            last.pop(0)


@pytest.mark.parametrize("most", [1, 4, 5])
def test_a_short_list_of_last_outputs_is_no_growth(most: int) -> None:
    assert "grows" not in shown(watched(lambda: recent(most)))


@pytest.mark.parametrize("ready", [True, False])
def test_inputs_that_are_kept_are_growth_unless_they_were_there_before(ready: bool) -> None:
    model, seen = nn.Linear(WIDTH, 8), list[torch.Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [torch.randn(BATCH, WIDTH) for _ in range(STEPS)] if ready else None

    def train() -> None:
        for number in range(STEPS):
            inputs = torch.randn(BATCH, WIDTH) if before is None else before[number]
            torch.autograd.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            seen.append(inputs)

    found = watched(train)
    if ready:
        assert "grows" not in shown(found)
        return
    finding = only(found, "grows")
    assert finding.size is not None
    assert finding.size.bytes_per_step == TENSOR_BYTES
    assert "`seen[" in finding.places[0].holder


def test_the_inputs_that_a_graph_keeps_count() -> None:
    cell = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.001)

    def train() -> None:
        state = torch.zeros(BATCH, WIDTH)
        for _ in range(STEPS):
            state = 0.5 * state.mean() + cell(torch.randn(BATCH, WIDTH))
            torch.autograd.backward(state.mean(), retain_graph=True)
            optimizer.zero_grad()
            optimizer.step()

    finding = only(watched(train), "graph-kept")
    assert finding.size is not None
    assert finding.size.bytes_per_step is not None
    assert finding.size.bytes_per_step >= TENSOR_BYTES


@pytest.mark.parametrize("reads", [True, False])
def test_what_is_read_after_the_update_is_not_dead(reads: bool) -> None:
    """A script's step ends with its update. The square's backward pass has a temporary tensor with the same line."""
    model, worst = nn.Linear(16, WIDTH), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(STEPS):
            error = model(torch.randn(4 * BATCH, 16)).pow(2)
            torch.autograd.backward(error.mean())
            optimizer.step()
            optimizer.zero_grad()
            if reads:
                worst.append(error.max().item())

    found = watched(train)
    if reads:
        assert "dead-at-peak" not in shown(found)
        return
    finding = only(found, "dead-at-peak")
    assert finding.size is not None
    assert finding.size.peak_bytes == 4 * TENSOR_BYTES


@pytest.mark.parametrize("bounded", [True, False])
def test_a_history_is_not_dead_although_it_is_seldom_read(bounded: bool) -> None:
    model, optimizer = classifier()
    last = deque[torch.Tensor](maxlen=4 if bounded else None)

    def train() -> None:
        for number, (inputs, targets) in enumerate(batches()):
            torch.autograd.backward(F.cross_entropy(model(inputs), targets))
            last.append(torch.randn(BATCH, WIDTH))
            if not bounded and len(last) > 4:
                last.popleft()
            optimizer.step()
            optimizer.zero_grad()
            if number % 10 == 9:
                torch.stack(list(last)).mean().item()

    assert "dead-at-peak" not in shown(watched(train))


class Keeping:
    """A loop that keeps its outputs in an attribute of its class."""

    kept: ClassVar[list[torch.Tensor]] = []

    def train(self) -> None:
        model, optimizer = classifier()
        for inputs, targets in batches():
            torch.autograd.backward(F.cross_entropy(model(inputs), targets))
            self.kept.append(torch.randn(BATCH, WIDTH))
            optimizer.step()
            optimizer.zero_grad()


def test_an_attribute_of_a_class_is_a_holder() -> None:
    try:
        assert "`Keeping.kept[" in only(watched(lambda: Keeping().train()), "grows").places[0].holder
    finally:
        Keeping.kept.clear()


@pytest.mark.parametrize("again", [True, False])
def test_a_graph_that_is_used_again_in_part_says_so(again: bool) -> None:
    body, head = nn.Sequential(nn.Linear(16, WIDTH), nn.GELU()), nn.Linear(WIDTH, 4 * WIDTH)
    optimizer, previous = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1), list[torch.Tensor]()

    def train() -> None:
        for inputs, targets in batches():
            hidden = body(inputs)
            loss = F.cross_entropy(head(hidden), targets)
            torch.autograd.backward(loss, retain_graph=True)
            if again:
                torch.autograd.backward(hidden.square().mean())
            optimizer.step()
            optimizer.zero_grad()
            previous[:] = [loss]

    what = only(watched(train), "retain-graph").what
    assert ("later passes use only a part of the graph" in what) is again
    assert ("no second pass uses the graph" in what) is not again


def test_a_model_that_a_gan_freezes_for_a_while_keeps_its_state() -> None:
    maker, _ = classifier()
    judge = nn.Sequential(nn.Linear(8, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    first = torch.optim.Adam(maker.parameters(), lr=1e-4)
    second = torch.optim.Adam(judge.parameters(), lr=1e-4)

    def train() -> None:
        for inputs, _ in batches():
            fake = maker(inputs)
            judge.requires_grad_(False)
            first.zero_grad()
            torch.autograd.backward(F.softplus(-judge(fake)).mean())
            first.step()
            judge.requires_grad_(True)
            second.zero_grad()
            torch.autograd.backward(F.softplus(judge(fake.detach())).mean())
            second.step()

    assert "frozen-state" not in shown(watched(train))


def test_outputs_of_an_epoch_are_read_at_its_end() -> None:
    model, optimizer = classifier()
    outputs = list[torch.Tensor]()

    def train() -> None:
        for inputs, targets in batches():
            hidden = model[:2](inputs)  # type: ignore[index]  # a sequence
            torch.autograd.backward(F.cross_entropy(model[2:](hidden), targets))  # type: ignore[index]  # a sequence
            optimizer.step()
            optimizer.zero_grad()
            outputs.append(hidden.detach())
            if len(outputs) == 4:
                torch.cat(outputs).std().item()
                outputs.clear()

    assert "dead-at-peak" not in shown(watched(train))


def test_a_tensor_of_which_later_views_are_kept_would_stay() -> None:
    model, optimizer = classifier()
    recent = deque[torch.Tensor](maxlen=4)

    def train() -> None:
        for inputs, targets in batches():
            hidden = model[:2](inputs)  # type: ignore[index]  # a sequence
            torch.autograd.backward(F.cross_entropy(model[2:](hidden), targets))  # type: ignore[index]  # a sequence
            optimizer.step()
            optimizer.zero_grad()
            recent.append(hidden[0].detach())

    found = shown(watched(train))
    assert "view-holds" in found
    assert "dead-at-peak" not in found


def test_a_leaf_whose_gradient_is_read_is_not_dead() -> None:
    model, optimizer = classifier()

    def train() -> None:
        for inputs, targets in batches():
            latent = torch.randn(BATCH, WIDTH, requires_grad=True)
            torch.autograd.backward(latent.square().mean())
            assert latent.grad is not None
            slope = latent.grad
            torch.autograd.backward(F.cross_entropy(model(inputs + slope[:, :16]), targets))
            optimizer.zero_grad()
            optimizer.step()
            del latent, slope

    holders = [place.holder for each in watched(train).findings if each.id == "dead-at-peak" for place in each.places]
    assert not any(holder.startswith(("`latent`", "`slope`")) for holder in holders)


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_a_graph_that_is_kept_in_each_pass_counts_as_without(passes: int) -> None:
    def train(good: bool) -> None:
        model = nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(STEPS):
            for _ in range(passes):
                loss = model(torch.randn(BATCH, 16)).sin().mean()
                torch.autograd.backward(loss, retain_graph=not good)
            optimizer.step()
            optimizer.zero_grad()

    bad, good = both(train)
    size = only(bad, "retain-graph").size
    assert size is not None
    assert size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)


def test_a_batch_that_only_the_old_graph_keeps_counts_too() -> None:
    def train(good: bool) -> None:
        model = nn.Sequential(nn.Linear(4 * WIDTH, 64), nn.Tanh(), nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            loss = model(torch.randn(BATCH, 4 * WIDTH)).sin().mean()
            torch.autograd.backward(loss, retain_graph=not good)
            optimizer.step()
            optimizer.zero_grad()

    bad, good = both(train)
    size = only(bad, "retain-graph").size
    assert size is not None
    assert size.peak_bytes is not None
    assert size.peak_bytes > 3 * TENSOR_BYTES, "most of it is the batch"
    assert size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)


def test_a_batch_that_a_variable_keeps_stays() -> None:
    def train(good: bool) -> None:
        layers = (nn.Linear(WIDTH, WIDTH), nn.Tanh()) * 4
        model = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), *layers, nn.Linear(WIDTH, 8))
        optimizer, last = torch.optim.SGD(model.parameters(), lr=0.1), list[torch.Tensor]()
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, 2 * WIDTH)
            loss = model(inputs).sin().mean()
            torch.autograd.backward(loss, retain_graph=not good)
            last[:] = [inputs]
            optimizer.step()
            optimizer.zero_grad()

    bad, good = both(train)
    size = only(bad, "retain-graph").size
    assert size is not None
    assert size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_untrained_generator_counts_with_its_pass(every: int, set_to_none: bool) -> None:
    """Between its updates, passes of the judge add to the gradients of the generator."""

    def train(good: bool) -> None:
        generator = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        judge = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
        of_generator, of_judge = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (generator, judge))
        for number in range(STEPS + 12):
            of_judge.zero_grad(set_to_none=set_to_none)
            with torch.set_grad_enabled(not good):
                made = generator(torch.randn(BATCH, 32))
            torch.autograd.backward(judge(made).mean() - judge(torch.randn(BATCH, WIDTH)).mean())
            of_judge.step()
            del made
            if number % every == 0:
                of_generator.zero_grad(set_to_none=set_to_none)
                judge.requires_grad_(False)
                torch.autograd.backward(-judge(generator(torch.randn(BATCH // 8, 32))).mean())
                judge.requires_grad_(True)
                of_generator.step()

    bad, good = both(train)
    finding = only(bad, "gradient-dropped")
    assert "4 gradients (1.066 MiB)" in finding.what
    assert finding.size is not None
    assert finding.size.peak_bytes is not None
    assert finding.size.peak_bytes > TENSOR_BYTES / 2
    assert finding.size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)
    assert not [each for each in good.findings if each.id == "gradient-dropped"]


def test_a_pass_of_a_recurrent_module_without_use_has_its_real_size() -> None:
    def train(good: bool) -> None:
        model = nn.GRU(32, 64, batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            torch.autograd.backward(model(torch.randn(16, 32, 32))[0].square().mean())
            optimizer.step()
            optimizer.zero_grad()
            with torch.set_grad_enabled(not good):
                score = model(torch.randn(128, 32, 32))[0].square().mean().item()
            assert score >= 0

    bad, good = both(train)
    size = only(bad, "saved-unused").size
    assert size is not None
    assert size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)


def test_views_of_a_function_that_ends_with_its_step_are_not_kept() -> None:
    def train() -> None:
        model, optimizer = classifier()

        def update(inputs: torch.Tensor, targets: torch.Tensor) -> float:
            outputs = model(inputs)
            first = outputs[:1].detach()
            loss = F.mse_loss(outputs, F.one_hot(targets, 8).float())
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return float(loss.item() + first.sum().item())

        for inputs, targets in batches():
            assert update(inputs, targets) < 1e9

    assert "view-holds" not in {each.id for each in watched(train).findings}


@pytest.mark.parametrize("last", [True, False])
def test_passes_that_share_a_part_of_the_graph_are_advised_to_be_one(last: bool) -> None:
    """The graph beside the shared part is kept: of each head, or of the last one."""

    def train(summed: bool) -> None:
        body = nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        heads = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)) for _ in range(2))
        optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.1)
        for _ in range(STEPS):
            features = body(torch.randn(BATCH, 16))
            losses = [head(features).square().mean() for head in heads]
            if summed:
                torch.autograd.backward(torch.stack(losses).sum())
            else:
                torch.autograd.backward(losses[0], retain_graph=True)
                torch.autograd.backward(losses[1], retain_graph=last)
            optimizer.step()
            optimizer.zero_grad()

    bad, good = both(train)
    findings = [each for each in bad.findings if each.id == "retain-graph"]
    assert findings
    assert any("on the sum of the losses" in each.remedy for each in findings)
    assert not any("detach" in each.remedy for each in findings if "a part of the graph" in each.what)
    assert "retain-graph" not in {each.id for each in good.findings}
    saved_bytes = max(each.size.peak_bytes or 0 for each in findings if each.size is not None)
    assert saved_bytes <= bad.peak_bytes - good.peak_bytes


def test_an_input_that_only_the_graph_of_a_teacher_keeps_counts_too() -> None:
    def train(good: bool) -> None:
        student, optimizer = classifier()
        teacher = nn.Sequential(nn.Linear(16 * 64, 64), nn.Tanh(), nn.Linear(64, 8)).requires_grad_(True)
        for inputs, targets in batches():
            with torch.set_grad_enabled(not good):
                advice = teacher(torch.randn(BATCH, 16 * 64)).softmax(-1)
            loss = F.cross_entropy(student(inputs), targets) + F.mse_loss(student(inputs).softmax(-1), advice.detach())
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    bad, good = both(train)
    finding = only(bad, "saved-unused")
    assert "; the graph of `advice` in " in finding.what
    assert finding.size is not None
    assert finding.size.peak_bytes is not None
    assert finding.size.peak_bytes > TENSOR_BYTES
    assert finding.size.peak_bytes == pytest.approx(bad.peak_bytes - good.peak_bytes, rel=0.02)
