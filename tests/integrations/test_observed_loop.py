"""A loop that is observed: what it trains is found, or a reason is given, and it trains as if nobody looked."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.errors import UsageError
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.integrations import observed_loop
from autofit.integrations.observed_loop import ObservedLoop, ObservedWorkload
from tests.conformance.test_exporters import answer

Loss = Callable[[nn.Module, Any], Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def observed(train: Callable[[], object]) -> ObservedWorkload:
    """Trains, and returns what was seen before the first optimizer step."""
    found = list[ObservedWorkload]()
    loop = ObservedLoop(lambda optimizer, closure: found.append(loop.workload(optimizer, closure)))
    with loop:
        train()
    (workload,) = found
    return workload


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def any_global_hook() -> bool:
    return bool(nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def loader_of(*tensors: Tensor, size: int = 8) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True)


def classes(count: int = 32) -> DataLoader[Any]:
    return loader_of(torch.randn(count, 6), torch.randint(4, (count,)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module, loader: Any, loss_of: Loss, accumulation: int = 1, divisor: float | None = None) -> None:
    """Trains for one epoch."""
    optimizer = torch.optim.Adam(model.parameters())
    for number, batch in enumerate(loader, start=1):
        backward(loss_of(model, batch) / (divisor or accumulation))
        if number % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()


class Causal(nn.Module):
    """A language model that returns logits, or logits and loss, or a dict with its loss."""

    def __init__(self, returns: str = "logits") -> None:
        super().__init__()
        self.embedding, self.head, self.returns = nn.Embedding(20, 8), nn.Linear(8, 20), returns

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        hidden = self.embedding(input_ids)
        if self.training and self.returns == "checkpointed":
            hidden = checkpoint(self.head, hidden, use_reentrant=False)
        else:
            hidden = self.head(hidden)
        if labels is None:
            return hidden
        loss = F.cross_entropy(hidden.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": hidden} if self.returns == "dict" else (hidden, loss)


def tokens(size: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randint(20, (size, 10)), torch.randint(20, (size, 10))


def test_a_loss_by_a_function_is_inferred_and_checked_with_the_draws_of_dropout() -> None:
    model, loader = mlp(), classes()
    found = observed(lambda: train(model, loader, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])))
    assert (found.model, found.loader, found.terms, found.about) == (model, loader, {}, "")
    assert (found.global_batch_size, found.autocast) == (8, None)


def test_a_criterion_is_found_with_its_settings() -> None:
    model, loader, criterion = mlp(), classes(), nn.CrossEntropyLoss(label_smoothing=0.2)
    found = observed(lambda: train(model, loader, lambda model, batch: criterion(model(batch[0]), batch[1]), 2))
    assert found.terms == {"loss_fn": criterion}
    assert found.about == "loss_fn=criterion"
    assert found.global_batch_size == 16


@pytest.mark.parametrize("returns", ["logits", "checkpointed"])
def test_a_criterion_of_all_tokens_is_found(returns: str) -> None:
    criterion, loader = nn.CrossEntropyLoss(), loader_of(*tokens(16), size=4)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = criterion(model(batch[0]).view(-1, 20), batch[1].view(-1))
        return loss

    found = observed(lambda: train(Causal(returns), loader, loss_of))
    assert found.about == "loss_fn=lambda outputs, targets: criterion(outputs.flatten(0, -2), targets.flatten())"
    outputs, targets = torch.randn(2, 5, 20), torch.randint(20, (2, 5))
    assert torch.equal(found.terms["loss_fn"](outputs, targets), criterion(outputs.view(-1, 20), targets.view(-1)))


def test_a_function_of_all_tokens_is_found() -> None:
    loader, model = loader_of(*tokens(16), size=4), nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]).view(-1, 20), batch[1].view(-1))

    found = observed(lambda: train(model, loader, loss_of))
    assert (found.loader, found.terms, found.about) == (loader, {}, "")


class Keyed(nn.Module):
    """Takes one entry of a batch, and perhaps a constant or its targets."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, outputs))

    def forward(self, pixels: Tensor, scale: float = 1.0, goal: Tensor | None = None) -> Any:
        found = self.layers(pixels) * scale
        return found if goal is None else (F.cross_entropy(found, goal), found)


def keyed(as_tuple: bool = False) -> DataLoader[Any]:
    rows = [
        {"id": n, "pixels": torch.randn(6), "target": torch.randint(4, ()), "value": torch.randn(())} for n in range(32)
    ]
    data = [tuple(row.values()) for row in rows] if as_tuple else rows
    return DataLoader(data, batch_size=8, shuffle=True)  # type: ignore[arg-type]  # a list is a data set


CRITERION, OF_ONE = nn.CrossEntropyLoss(label_smoothing=0.2), nn.HuberLoss()


@pytest.mark.parametrize(
    ("loss_of", "outputs", "code"),
    [
        (
            lambda model, batch: F.cross_entropy(model(batch["pixels"]), batch["target"]), 4,
            "F.cross_entropy(model(batch['pixels']), batch['target'])",
        ),
        (
            lambda model, batch: CRITERION(model(batch["pixels"], scale=0.5), batch["target"]), 4,
            "criterion(model(batch['pixels'], scale=0.5), batch['target'])",
        ),
        (
            lambda model, batch: F.mse_loss(model(pixels=batch["pixels"]).squeeze(1), batch["value"]), 1,
            "F.mse_loss(model(pixels=batch['pixels']).reshape(batch['value'].shape), batch['value'])",
        ),
        (
            lambda model, batch: OF_ONE(model(batch["pixels"], 0.5).squeeze(1), batch["value"]), 1,
            "criterion(model(batch['pixels'], 0.5).reshape(batch['value'].shape), batch['value'])",
        ),
        (
            lambda model, batch: model(batch["pixels"], goal=batch["target"])[0], 4,
            "model(batch['pixels'], goal=batch['target'])[0]",
        ),
    ],
)  # fmt: skip
def test_a_batch_with_keys_of_its_own_is_used_as_the_loop_uses_it(loss_of: Loss, outputs: int, code: str) -> None:
    loader, model = keyed(), Keyed(outputs)
    found = observed(lambda: train(model, loader, loss_of))
    assert found.about == f"step_fn=lambda model, batch: {code}"
    assert (found.loader, found.global_batch_size) == (loader, 8)
    batch = next(iter(keyed()))
    names = {"criterion": CRITERION if outputs > 1 else OF_ONE, "F": F, "model": model.eval(), "batch": batch}
    assert torch.equal(found.terms["step_fn"](model, batch), eval(code, names))


class Weighted(nn.Module):
    """A criterion whose second argument is not a tensor."""

    def forward(self, outputs: Tensor, targets: list[Tensor]) -> Tensor:
        return F.cross_entropy(outputs, targets[0])


def test_a_criterion_whose_targets_are_no_entry_has_the_batches_of_the_first_step() -> None:
    criterion = Weighted()
    found = observed(
        lambda: train(Keyed(), keyed(), lambda model, batch: criterion(model(batch["pixels"]), [batch["target"]]))
    )
    assert found.about == "loss_fn=criterion"
    assert isinstance(found.loader, list)


def test_the_places_of_a_batch_are_found_as_its_keys_are() -> None:
    loader, model = keyed(as_tuple=True), Keyed()
    found = observed(lambda: train(model, loader, lambda model, batch: F.cross_entropy(model(batch[1]), batch[2])))
    assert found.about == "step_fn=lambda model, batch: F.cross_entropy(model(batch[1]), batch[2])"
    assert found.loader is loader


def clipped(clip: Callable[[nn.Module], object], backwards: int = 1) -> float | None:
    """Trains with clipping after each of the backward passes of a step; returns what was seen of it."""
    model, loader = mlp(), classes()
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        for _, batch in zip(range(backwards), loader, strict=False):
            backward(F.cross_entropy(model(batch[0]), batch[1]) / backwards)
            clip(model)
        optimizer.step()

    return observed(step).max_grad_norm


def test_the_norm_to_which_gradients_are_clipped_is_found() -> None:
    from_utils = nn.utils.clip_grad_norm_
    assert clipped(lambda model: None) is None
    assert clipped(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)) == 0.5
    assert clipped(lambda model: nn.utils.clip_grad.clip_grad_norm_(parameters=[*model.parameters()], max_norm=2)) == 2
    assert clipped(lambda model: nn.utils.clip_grad_norm_(model.parameters(), float("inf"))) is None  # only measures
    assert nn.utils.clip_grad_norm_ is from_utils


def test_clipping_by_a_name_that_a_script_imported_is_found_and_clips() -> None:
    names, norms = dict[str, Any](), list[Tensor]()

    def clip(model: nn.Module) -> None:
        exec("from torch.nn.utils import clip_grad_norm_", names)  # as a script does while it is observed
        names["clip_grad_norm_"](model.parameters(), 1e-3)
        norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))

    assert clipped(clip) == 1e-3
    assert norms[0] == pytest.approx(1e-3, rel=0.01)
    clip(mlp())  # the script keeps the name after the first step
    assert len(norms) == 2


@pytest.mark.parametrize(
    ("clip", "backwards"),
    [
        (lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.5), 1),
        (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=float("inf")), 1),
        (lambda model: nn.utils.clip_grad_norm_(model[0].parameters(), 0.5), 1),
        (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5), 2),
    ],
)
def test_clipping_that_a_plan_does_not_know_is_refused(clip: Callable[[nn.Module], object], backwards: int) -> None:
    with pytest.raises(UsageError, match=r"found gradients clipped otherwise .* Write the step as update_fn"):
        clipped(clip, backwards)


def test_a_loop_without_a_loader_has_the_batches_of_its_first_step() -> None:
    given = [tokens(), tokens(), tokens(), tokens()]
    found = observed(lambda: train(Causal(), given, lambda model, batch: model(*batch)[1], 2))
    assert found.about == "step_fn=lambda model, batch: model(**batch)[1]"
    assert found.global_batch_size == 8
    assert [list(batch) for batch in found.loader] == [["input_ids", "labels"]] * 2
    for batch, (ids, labels) in zip(found.loader, given, strict=False):
        assert torch.equal(batch["input_ids"], ids)
        assert torch.equal(batch["labels"], labels)
    assert torch.equal(found.terms["step_fn"](found.model, found.loader[0]), found.model(*given[0])[1])


def test_a_batch_that_was_fetched_ahead_is_still_that_of_a_loader() -> None:
    ids, labels = tokens(16)
    data = [{"input_ids": one, "labels": two} for one, two in zip(ids, labels, strict=True)]
    loader: DataLoader[Any] = DataLoader(data, batch_size=4)  # type: ignore[arg-type]  # a list is a data set

    def ahead() -> Iterator[Any]:
        batches = iter(loader)
        current = next(batches)
        for following in batches:
            yield current
            current = following

    found = observed(lambda: train(Causal("dict"), ahead(), lambda model, batch: model(**batch)["loss"]))
    assert (found.loader, found.terms) == (loader, {})


def test_batches_of_an_evaluation_are_not_those_of_the_training() -> None:
    model, loader, others = mlp(), classes(), classes()

    def evaluate_first() -> None:
        with torch.no_grad():
            for batch in others:
                F.cross_entropy(model(batch[0]), batch[1])
        train(model, loader, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))

    assert observed(evaluate_first).loader is loader


def test_the_loop_trains_as_if_nobody_looked() -> None:
    def trained(run: Callable[[Callable[[], None]], object]) -> list[Tensor]:
        torch.manual_seed(1)
        model, loader = mlp(), classes()

        def loop() -> None:
            batches = iter(loader)  # draws a random number
            nn.init.normal_(model[0].weight)  # type: ignore[index]  # a Sequential
            train(model, batches, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))

        run(loop)
        return [*model.state_dict().values(), torch.get_rng_state()]

    for one, other in zip(trained(lambda loop: loop()), trained(observed), strict=True):
        assert torch.equal(one, other)


def test_what_is_changed_in_torch_is_restored_before_the_search() -> None:
    before, during = (DataLoader.__iter__, Tensor.backward, torch.amp.GradScaler.scale), list[object]()

    def look(*_: object) -> None:
        during.append((DataLoader.__iter__, Tensor.backward, torch.amp.GradScaler.scale))
        during.append(any_global_hook())

    with ObservedLoop(look):
        assert any_global_hook()
        train(mlp(), classes(), lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    assert during[0] == before
    assert not during[1]


def test_nothing_of_the_first_step_stays_in_memory() -> None:
    held = list[weakref.ref[Tensor]]()

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        held.extend((weakref.ref(outputs), weakref.ref(batch[0])))
        loss: Tensor = nn.CrossEntropyLoss()(outputs, batch[1])
        return loss

    alive = list[bool]()
    with ObservedLoop(lambda *_: alive.extend(each() is not None for each in held)) as loop:
        train(mlp(), classes(16), loss_of)
        assert alive == [False, True]  # the batch is needed until the search, the outputs are not
        assert [each() for each in held] == [None] * 4
    assert loop.here


def test_other_hooks_of_all_optimizers_run_too() -> None:
    steps = list[object]()
    handle = None

    def register() -> None:
        nonlocal handle
        handle = register_optimizer_step_pre_hook(lambda *given: steps.append(given))
        train(mlp(), classes(), lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))

    try:
        observed(register)
        assert len(steps) == 4
        assert len(optimizers._global_optimizer_pre_hooks) == 1
    finally:
        assert handle is not None
        handle.remove()


def penalised(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = F.cross_entropy(model(batch[0]), batch[1]) + 0.1 * model[0].weight.square().sum()  # type: ignore[index]
    return loss


@pytest.mark.parametrize(
    ("loss_of", "accumulation", "divisor"),
    [
        (penalised, 1, None),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), 2, 1.0),  # a sum over micro batches
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), 1, 2.0),
        (lambda model, batch: F.cross_entropy(model(batch[0]) + model(batch[0]), batch[1]), 1, None),
    ],
)
def test_a_loss_that_no_rule_gives_is_not_guessed(loss_of: Loss, accumulation: int, divisor: float | None) -> None:
    with pytest.raises(UsageError, match=r"found no rule that gives the loss of the loop.* Write it as step_fn"):
        observed(lambda: train(mlp(), classes(), loss_of, accumulation, divisor))


def test_a_step_with_a_closure_is_refused() -> None:
    model, (inputs, targets) = nn.Linear(3, 1), torch.randn(2, 8, 3)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets[:, :1])
        backward(loss)
        return loss

    with pytest.raises(UsageError, match="whose step gets a closure"):
        observed(lambda: optimizer.step(closure))  # type: ignore[no-untyped-call]


def test_an_optimizer_of_several_models_is_refused() -> None:
    encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()])

    def step() -> None:
        backward(F.cross_entropy(decoder(encoder(torch.randn(8, 6))), torch.randint(4, (8,))))
        optimizer.step()

    with pytest.raises(UsageError, match="parameters of other modules than Linear, which was called last"):
        observed(step)


def test_a_step_without_a_backward_pass_is_refused() -> None:
    model = nn.Linear(3, 1)
    with pytest.raises(UsageError, match=r"found no loss.backward\(\) after a call of the model"):
        observed(torch.optim.SGD(model.parameters()).step)


@pytest.mark.parametrize(
    "user",
    [{}, {"global_batch_size": 64, "without": ["attention"]}, {"max_global_batch_size": 64, "max_grad_norm": 2.0}],
)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_the_precision_and_the_batch_of_the_loop_are_kept(
    dtype: torch.dtype | None, user: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict[str, Any]()

    def tune(model: nn.Module, loader: Any, **arguments: Any) -> Fit:
        asked.update(arguments)
        return Fit(answer(Plan(values={"micro_batch_size": 4, "accumulation_steps": 2})))

    monkeypatch.setattr(observed_loop, "tune", tune)
    model, loader = nn.Linear(6, 4), classes()
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)

    def step() -> None:
        inputs, targets = next(iter(loader))
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(inputs), targets)
        backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)

    found = observed(step)
    found.tune(user)
    assert found.autocast is dtype
    assert asked["max_grad_norm"] == user.get("max_grad_norm", 0.5)
    assert asked.get("global_batch_size") == (
        None if "max_global_batch_size" in user else user.get("global_batch_size", 8)
    )
    assert asked.get("pinned") == ({"precision": "fp16"} if dtype is torch.float16 else None)
    kept = ["precision"] if dtype is torch.bfloat16 else []
    assert list(asked.get("without", [])) == [*user.get("without", []), *kept]
    assert set(found.terms) == ({"step_fn"} if dtype is torch.bfloat16 else set())
    if dtype is torch.bfloat16:
        inputs, targets = next(iter(loader))
        with torch.autocast("cpu", dtype):
            expected = F.cross_entropy(model(inputs), targets)
        assert torch.equal(found.terms["step_fn"](model, (inputs, targets)), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_model_is_seen_as_one_call() -> None:
    loader = classes()
    model: Any = torch.compile(mlp(), backend="eager")
    found = observed(lambda: train(model, loader, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])))
    assert (found.model, found.loader) == (model, loader)
