"""The loss rules: each applies where the module says so, and everything else is an error that helps."""

from collections import UserDict
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.workloads.loss import resolve_loss

X, CLASSES = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


class Output(NamedTuple):
    logits: torch.Tensor
    loss: Any = None


class Model(nn.Module):
    """A linear layer that keeps count of its calls and of the samples it saw."""

    def __init__(self, out: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, out)
        self.seen: list[int] = []
        self.graded: list[bool] = []

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        self.graded.append(torch.is_grad_enabled())
        loss: torch.Tensor = self.layer(x)
        return loss


class Plain(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden(x)


class Two(Model):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.hidden(a + b)


class Labelled(Model):
    """As a transformers model: its output has a loss when labels are given."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Output:
        logits = self.hidden(x)
        return Output(logits, None if labels is None else F.cross_entropy(logits, labels))


class Dictionary(Labelled):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return super().forward(x, labels)._asdict()


class Unsupervised(Model):
    def forward(self, x: torch.Tensor) -> Output:
        hidden = self.hidden(x)
        return Output(hidden, hidden.square().mean())


def trained(rule: Any, model: Model, batch: Any) -> torch.Tensor:
    """Computes the loss and shows that a gradient reaches the model."""
    loss: torch.Tensor = rule.compute(model, batch)
    assert loss.dim() == 0
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert model.layer.weight.grad is not None
    return loss.detach()


# -- rule 1


def test_step_fn_is_called_with_model_and_batch_and_nothing_runs_before() -> None:
    model = Plain()
    rule = resolve_loss(model, {"any": X}, step_fn=lambda model, batch: model(batch["any"]).square().mean())
    assert (rule.name, rule.inferred, model.seen) == ("step_fn", False, [])
    assert torch.allclose(trained(rule, model, {"any": X}), model.layer(X).square().mean())


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda loss: None, "a NoneType.*return the loss"),
        (lambda loss: loss.item(), "a float.*no .item()"),
        (lambda loss: (loss, 1), "a tuple.*not in a tuple or dict"),
        (lambda loss: {"loss": loss}, "a dict.*not in a tuple or dict"),
        (lambda loss: loss.detach(), "without gradient.*detach"),
        (lambda loss: loss.expand(3), r"shape \[3\].*reduce it"),
    ],
)
def test_step_fn_must_return_a_scalar_with_gradient(result: Any, text: str) -> None:
    model = Plain()
    rule = resolve_loss(model, X, step_fn=lambda model, batch: result(model(batch).mean()))
    with pytest.raises(WorkloadError, match=text):
        rule.compute(model, X)


def test_a_model_without_a_forward_needs_a_step_fn() -> None:
    class Parts(nn.Module):
        """A model whose training step calls its parts."""

    for loss_fn in (None, F.mse_loss):
        with pytest.raises(
            WorkloadError, match=r"a model without a forward method \(Parts\) and no step_fn; .*Pass step"
        ):
            resolve_loss(Parts(), torch.zeros(2, 3), loss_fn=loss_fn)


def test_step_fn_with_other_parameters_is_an_error_at_once() -> None:
    with pytest.raises(WorkloadError, match=r"found step_fn\(batch\).*step_fn\(model, batch\)"):
        resolve_loss(Plain(), X, step_fn=lambda batch: batch)


def test_errors_inside_step_fn_are_the_users_own() -> None:
    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        resolve_loss(Plain(), X, step_fn=broken).compute(Plain(), X)


def test_no_gradient_is_asked_for_in_inference() -> None:
    model = Plain()
    rule = resolve_loss(model, X, step_fn=lambda model, batch: model(batch).mean())
    with torch.inference_mode():
        assert rule.compute(model, X).dim() == 0


def test_both_functions_are_an_error() -> None:
    with pytest.raises(WorkloadError, match="both loss_fn and step_fn"):
        resolve_loss(Plain(), X, loss_fn=F.mse_loss, step_fn=lambda model, batch: batch)


# -- rule 2


class Batch(NamedTuple):
    inputs: Any
    targets: torch.Tensor


@pytest.mark.parametrize("pair", [tuple, list, lambda both: Batch(*both)])
@pytest.mark.parametrize("loss_fn", [F.cross_entropy, nn.CrossEntropyLoss()])
def test_loss_fn_of_a_pair(pair: Any, loss_fn: Any) -> None:
    model, batch = Plain(), pair((X, CLASSES))
    rule = resolve_loss(model, batch, loss_fn=loss_fn)
    assert (rule.name, rule.inferred) == ("loss_fn", False)
    assert torch.allclose(trained(rule, model, batch), F.cross_entropy(model.layer(X), CLASSES))


@pytest.mark.parametrize("inputs", [(X, X), [X, X], {"a": X, "b": X}, UserDict(a=X, b=X)])
def test_inputs_become_arguments_or_keywords(inputs: Any) -> None:
    model = Two()
    rule = resolve_loss(model, (inputs, CLASSES), loss_fn=F.cross_entropy)
    assert torch.allclose(trained(rule, model, (inputs, CLASSES)), F.cross_entropy(model.layer(X + X), CLASSES))


def test_inputs_that_only_fit_as_a_whole_are_given_whole() -> None:
    class OfList(Model):
        def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
            return self.hidden(torch.stack(list(images)))

    model, batch = OfList(), (list(X), CLASSES)
    rule = resolve_loss(model, batch, loss_fn=F.cross_entropy)
    assert torch.allclose(trained(rule, model, batch), F.cross_entropy(model.layer(X), CLASSES))


@pytest.mark.parametrize("key", ["labels", "label", "targets", "target", "y"])
@pytest.mark.parametrize("kind", [Plain, Labelled, Dictionary])
def test_loss_fn_of_a_mapping(key: str, kind: type[Model]) -> None:
    model, batch = kind(), UserDict({"x": X, key: CLASSES})
    rule = resolve_loss(model, batch, loss_fn=F.cross_entropy)
    assert torch.allclose(trained(rule, model, batch), F.cross_entropy(model.layer(X), CLASSES))
    assert set(batch) == {"x", key}


@pytest.mark.parametrize("extra", [{}, {"y": CLASSES, "labels": CLASSES}])
def test_loss_fn_of_a_mapping_needs_exactly_one_target(extra: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match=r"labels, label, targets, target, y in a batch.*exactly one"):
        resolve_loss(Plain(), {"x": X, **extra}, loss_fn=F.cross_entropy)


@pytest.mark.parametrize("batch", [X, (X, X, CLASSES), (X,)])
def test_loss_fn_of_another_batch_is_an_error(batch: Any) -> None:
    with pytest.raises(WorkloadError, match=r"expected \(inputs, targets\).*step_fn"):
        resolve_loss(Plain(), batch, loss_fn=F.cross_entropy)


def test_loss_fn_without_reduction_is_an_error() -> None:
    model = Plain()
    rule = resolve_loss(model, (X, CLASSES), loss_fn=nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(WorkloadError, match=r"loss_fn returned a tensor of shape \[6\].*reduction='mean'"):
        rule.compute(model, (X, CLASSES))


# -- rule 3


@pytest.mark.parametrize("kind", [Labelled, Dictionary])
@pytest.mark.parametrize("wrap", [dict, UserDict])
def test_loss_of_the_output_for_a_mapping(kind: type[Model], wrap: Any) -> None:
    model, batch = kind(), wrap({"x": X, "labels": CLASSES})
    rule = resolve_loss(model, batch)
    assert (rule.name, rule.inferred) == ("output.loss", True)
    assert torch.allclose(trained(rule, model, batch), F.cross_entropy(model.layer(X), CLASSES))


def test_loss_of_the_output_for_sequences_and_tensors() -> None:
    model = Labelled()
    assert resolve_loss(model, (X, CLASSES)).about.startswith("the model computes its own loss: model(*batch)")
    alone = Unsupervised()
    for batch in (X, [X], (X, CLASSES)):  # the classes of a labelled data set are not used
        rule = resolve_loss(alone, batch)
        assert rule.name == "output.loss"
        assert torch.allclose(trained(rule, alone, batch), alone.layer(X).square().mean())


def test_transformers_model() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 11, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    ids = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(0))
    batch = transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    rule = resolve_loss(model, batch)
    assert rule.name == "output.loss"
    assert rule.compute(model, batch).requires_grad


def test_labels_that_are_missing_later_are_told() -> None:
    model = Labelled()
    rule = resolve_loss(model, {"x": X, "labels": CLASSES})
    with pytest.raises(WorkloadError, match=r"output.loss returned a NoneType.*labels"):
        rule.compute(model, {"x": X})


def test_keys_that_the_model_does_not_take_are_named() -> None:
    text = "keys name, idx in the batch, which Labelled.forward does not accept; expected some of x, labels"
    with pytest.raises(WorkloadError, match=text):
        resolve_loss(Labelled(), {"x": X, "labels": CLASSES, "name": ["a"] * 6, "idx": CLASSES})
    with pytest.raises(WorkloadError, match="keys idx in the batch"):
        resolve_loss(Labelled(), {"x": X, "y": CLASSES, "idx": CLASSES}, loss_fn=F.cross_entropy)


def test_a_forward_with_keywords_takes_every_key() -> None:
    class Open(Labelled):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **rest: Any) -> Output:
            return super().forward(x, labels)

    assert resolve_loss(Open(), {"x": X, "labels": CLASSES, "idx": CLASSES}).name == "output.loss"


# -- rule 4


def test_cross_entropy_of_scores_and_classes() -> None:
    model = Plain()
    rule = resolve_loss(model, (X, CLASSES))
    assert (rule.name, rule.inferred) == ("cross_entropy", True)
    assert torch.allclose(trained(rule, model, (X, CLASSES)), F.cross_entropy(model.layer(X), CLASSES))


def test_cross_entropy_of_pixels_with_the_ignored_class() -> None:
    model = nn.Conv2d(3, 5, 1)
    classes = torch.randint(0, 5, (4, 6, 7), generator=torch.Generator().manual_seed(0))
    classes[0] = -100
    rule = resolve_loss(model, (torch.zeros(4, 3, 6, 7), classes))
    assert rule.name == "cross_entropy"


@pytest.mark.parametrize(("out", "shape"), [(1, (6,)), (1, (6, 1)), (3, (6, 3))])
def test_mse_loss_of_floating_targets(out: int, shape: tuple[int, ...]) -> None:
    model, y = Plain(out), torch.arange(6 * (out if len(shape) > 1 else 1), dtype=torch.float32).reshape(shape)
    rule = resolve_loss(model, (X, y))
    assert (rule.name, rule.inferred) == ("mse_loss", True)
    expected = (model.layer(X).reshape(-1) - y.reshape(-1)).square().mean()  # not the mean of a broadcast [6, 6]
    assert torch.allclose(trained(rule, model, (X, y)), expected)


def test_cross_entropy_of_all_tokens() -> None:
    model, tokens = Plain(), torch.randn(2, 5, X.shape[-1])
    classes = torch.tensor([[0, 1, 2, 0, -100], [2, 1, 0, 0, 1]])
    rule = resolve_loss(model, (tokens, classes))
    assert (rule.name, rule.inferred) == ("cross_entropy", True)
    expected = F.cross_entropy(model.layer(tokens).flatten(0, 1), classes.flatten())
    assert torch.allclose(trained(rule, model, (tokens, classes)), expected)
    with pytest.raises(WorkloadError, match="no loss can be inferred"):
        resolve_loss(model, (tokens, classes + 10))  # classes that the model has no scores for


def test_mse_loss_of_an_output_without_the_last_dimension() -> None:
    class Flat(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden(x)[:, 0]

    model, y = Flat(1), torch.arange(6.0)[:, None]
    loss = trained(resolve_loss(model, (X, y)), model, (X, y))
    assert torch.allclose(loss, (model.layer(X) - y).square().mean())


# -- rule 5


class Triple(Model):
    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> Any:
        return self.hidden(x), torch.tensor(1.0)


class Scalar(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden(x).mean()


@pytest.mark.parametrize(
    ("model", "batch", "text"),
    [
        (Plain(), X, r"Tensor: float32\[B, 4\].*returns float32\[6, 3\]"),
        (Plain(), (X, CLASSES + 1), "no loss can be inferred"),  # class 3 of 3: would stop a CUDA device
        (Plain(), (X, -CLASSES), "no loss can be inferred"),
        (Plain(1), (X, CLASSES % 2), "no loss can be inferred"),  # one score: not cross-entropy
        (Plain(), (X, CLASSES.bool()), "no loss can be inferred"),
        (Plain(), (X, torch.zeros(6, 2)), r"\[1\] float32\[B, 2\]"),
        (Plain(), (X, torch.tensor(1.0)), "no loss can be inferred"),
        (Plain(), (X, ["a"] * 6), r"\[1\]\[B\] str"),
        (Labelled(), {"x": X}, "returns an Output"),
        (Dictionary(), {"x": X}, "loss is None: the batch may lack labels"),
        (Triple(), (X, CLASSES), r"step_fn=lambda model, batch: model\(\*batch\)\[1\]"),
        (Scalar(), X, r"step_fn=lambda model, batch: model\(batch\)"),
    ],
)
def test_what_no_rule_covers_is_an_error_that_shows_what_was_found(model: Model, batch: Any, text: str) -> None:
    with pytest.raises(WorkloadError, match=text) as caught:
        resolve_loss(model, batch)
    assert "pass loss_fn(outputs, targets) or step_fn(model, batch)" in str(caught.value)


# -- the forward pass of the resolution


@pytest.mark.parametrize("batch", [(X, CLASSES), (X[:1], CLASSES[:1])])
def test_inferring_runs_one_forward_pass_without_gradient(batch: Any) -> None:
    model = Plain()
    resolve_loss(model, batch)
    assert model.seen == [len(batch[0])]
    assert model.graded == [False]


def test_a_batch_that_cannot_be_cut_is_used_whole() -> None:
    class Graph(Model):
        def forward(self, x: torch.Tensor, edges: torch.Tensor, mask: torch.Tensor) -> Output:
            hidden = self.hidden(x)[edges[0]]
            return Output(hidden, hidden.mean())

    model = Graph()
    resolve_loss(model, {"x": X, "mask": X, "edges": torch.tensor([[5, 1, 0], [0, 1, 2]])})
    assert model.seen == [6]


def test_given_functions_run_no_forward_pass() -> None:
    model = Plain()
    resolve_loss(model, (X, CLASSES), loss_fn=F.cross_entropy)
    assert model.seen == []


def test_errors_of_the_forward_are_the_users_own() -> None:
    class Broken(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        resolve_loss(Broken(), (X, CLASSES))


def test_the_users_batch_is_not_changed_by_the_trial() -> None:
    class InPlace(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden(x.zero_())

    batch = (X.clone(), CLASSES)
    resolve_loss(InPlace(), batch)
    assert torch.equal(batch[0], X)


# -- another criterion


@pytest.mark.parametrize(
    ("batch", "given"),
    [((X, CLASSES), F.cross_entropy), ({"x": X, "y": CLASSES}, F.cross_entropy), ((X, CLASSES), None)],
)
def test_the_criterion_of_a_rule_can_be_changed(batch: Any, given: Any) -> None:
    model = Plain()
    rule = resolve_loss(model, batch, loss_fn=given)
    twice = rule.with_criterion(lambda criterion: lambda outputs, targets: 2 * criterion(outputs, targets))
    assert torch.allclose(twice.compute(model, batch), 2 * rule.compute(model, batch))
    assert (twice.name, twice.about, twice.ignore_index) == (rule.name, rule.about, rule.ignore_index)


def test_a_loss_without_a_criterion_or_changed_since_keeps_its_own() -> None:
    model, batch = Plain(), (X, CLASSES)
    own = resolve_loss(model, batch, step_fn=lambda model, batch: model(batch[0]).sum())
    wrapped = replace(resolve_loss(model, batch), compute=lambda model, batch: model(batch[0]).sum())
    for rule in (own, wrapped):
        assert rule.with_criterion(lambda criterion: pytest.fail("it has none")) is rule
