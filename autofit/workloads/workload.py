"""Workload: what is trained: the model, batches, loss or step function, and optimizer recipe.

OptimizerSet: the optimizers of a step that has several. Terms: a workload without its model and batches.
"""

import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any, Literal, NoReturn, Self

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from autofit.core.errors import WorkloadError
from autofit.core.wording import WITH_CLOSURE, a_type
from autofit.torch_internals import pytree

OptimizerRecipe = Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | Mapping[str, Optimizer] | None


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained, as the user's objects. `make_workload()` may return one.

    Attributes:
        model: any module. It is restored bit-identically after tuning. Several models are one `nn.ModuleDict`.
        loader: a `DataLoader`, a list of batches, or any other iterable that can be iterated repeatedly.
        loss_fn: `loss_fn(outputs, targets) -> scalar tensor`, for batches `(inputs, targets)`.
        step_fn: `step_fn(model, batch) -> scalar tensor`, for every other kind of loss or batch.
        optimizer: an optimizer over the model's parameters, a callable that makes one from parameters, or None
            for `torch.optim.AdamW` with its defaults. With `update_fn` also a dict of several optimizers.
        global_batch_size: samples per optimizer step, kept exactly. None leaves the batch free.
        max_global_batch_size: largest number of samples per optimizer step if the batch is free. None uses 1/50 of the
            data set. The loader's own batch size is always allowed.
        worst_case: the sample that needs the most memory, or a callable `size -> batch` that makes such a batch. None
            scans the loader's data set for the longest samples.
        mode: "train", or "inference" for the forward pass alone.
        eval_loader: batches on which the model is evaluated between epochs of the training. `autofit.tune` then also
            searches a plan for evaluation, in inference mode.
        max_grad_norm: clip gradients to this L2 norm, as in your training. None does not clip.
        extras: further objects to restore. Objects that the workload reaches through attributes, closures and named
            globals are found automatically. An object with `state_dict` and `load_state_dict` is also restored through
            these.
        update_fn: `update_fn(model, optimizer, batch) -> scalar tensor` (or a dict of them), which does a whole
            optimizer step by itself: for several models, optimizers or losses (a GAN), or an update that is not the
            optimizer's (a moving average of the weights). It gets the model, and the optimizer or the dict of
            optimizers. The modes of modules are left as they are. Techniques that change the inside of a step, such as
            accumulation, are refused. Each call should make the same updates, since few calls are measured.

    Batches for measuring are made from the loader's data set and `collate_fn`:

    * If lengths vary, a plan must fit the longest samples found. For a `DataLoader` over samples, speed is measured on
      batches whose useful and padded elements together match an average batch of that size. Samples are drawn in the
      order of your sampler if that order decides which samples are batched together.
    * Graphs, bags and lists are collated anew at each size. Micro batches are weighted by the samples collated.
    * A batch sampler keeps its rule at other sizes if it has an attribute or argument `batch_size`. Otherwise its
      batches are joined and cut in order.
    * If the loss is a mean over tokens, micro batches are weighted by their tokens.
    """

    model: nn.Module
    loader: Any
    loss_fn: Callable[..., torch.Tensor] | None = None
    step_fn: Callable[..., torch.Tensor] | None = None
    optimizer: OptimizerRecipe = None
    global_batch_size: int | None = None
    max_global_batch_size: int | None = None
    worst_case: Any = None
    mode: Literal["train", "inference"] = "train"
    max_grad_norm: float | None = None
    extras: Sequence[Any] = ()
    eval_loader: Any = None
    update_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise _not_a_model(self.model)
        if lazy := [name for name, parameter in self.model.named_parameters() if is_lazy(parameter)]:
            raise WorkloadError(
                f"{lazy[0]} has no shape yet ({len(lazy)} parameters of lazy modules); expected a model with "
                "initialised parameters. Run one batch through it first, and make the optimizer afterwards."
            )
        if self.mode not in ("train", "inference"):
            raise WorkloadError(f'mode is {self.mode!r}; expected "train" or "inference".')
        self._check_numbers()
        if not isinstance(self.extras, (list, tuple)):
            raise WorkloadError(f"extras is {a_type(self.extras)}; expected a list of objects: extras=[...].")
        if self.loss_fn is not None and self.step_fn is not None:
            raise WorkloadError(
                "both loss_fn and step_fn were given; expected one of them. step_fn computes the loss by itself."
            )
        self._check_update()
        optimizer = self.optimizer
        members = optimizer.values() if isinstance(optimizer, Mapping) and self.update_fn is not None else ()
        several = bool(members) and all(isinstance(each, Optimizer) for each in members)
        if not (several or optimizer is None or isinstance(optimizer, Optimizer) or callable(optimizer)):
            raise WorkloadError(_not_an_optimizer("optimizer is", optimizer))

    def _check_update(self) -> None:
        """Checks that nothing is given that would have to change the inside of the user's step."""
        if self.update_fn is None:
            return
        if not callable(self.update_fn):
            raise WorkloadError(
                f"update_fn is {a_type(self.update_fn)}; expected a function update_fn(model, optimizer, "
                "batch) -> loss."
            )
        beside = {"loss_fn": self.loss_fn, "step_fn": self.step_fn, "max_grad_norm": self.max_grad_norm}
        if given := [name for name, value in beside.items() if value is not None]:
            raise WorkloadError(
                f"found {', '.join(given)} beside update_fn; expected update_fn alone. It does the whole step: compute "
                "the loss and clip gradients in it."
            )
        if not self.training or self.eval_loader is not None:
            found = "eval_loader" if self.training else f"mode={self.mode!r}"
            raise WorkloadError(
                f"found {found} beside update_fn, which trains; expected a training. Tune the evaluation by itself: "
                'autofit.tune(model, eval_loader, mode="inference").'
            )
        if self.optimizer is None:
            raise WorkloadError(
                "found update_fn without an optimizer; expected the optimizer, or the dict of optimizers, that it "
                "steps. Pass optimizer=."
            )

    def _check_numbers(self) -> None:
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise WorkloadError(f"max_grad_norm is {self.max_grad_norm!r}; expected a number above 0, or None.")
        for name in ("global_batch_size", "max_global_batch_size"):
            size = getattr(self, name)
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise WorkloadError(f"{name} is {size!r}; expected an integer of at least 1, or None.")
        if self.global_batch_size is not None and self.max_global_batch_size is not None:
            raise WorkloadError(
                f"found global_batch_size={self.global_batch_size} and max_global_batch_size="
                f"{self.max_global_batch_size}; expected one of them: the first is kept exactly, the second bounds a "
                "free batch."
            )

    @property
    def training(self) -> bool:
        """Whether gradients and updates are part of a step."""
        return self.mode == "train"

    @property
    def evaluation(self) -> "Workload | None":
        """The evaluation between epochs of this training, as a workload of inference; None without an `eval_loader`.

        It has no loss: it runs the forward pass, or `step_fn`. Its optimizer is not used, but its state is in memory.
        """
        if self.eval_loader is None or not self.training:
            return None
        return Workload(
            self.model,
            self.eval_loader,
            step_fn=self.step_fn,
            optimizer=self.optimizer if isinstance(self.optimizer, Optimizer) else None,
            mode="inference",
            extras=self.extras,
        )

    def set_mode(self) -> tuple[str, ...]:
        """Calls `model.train()` or `model.eval()`, as a training or inference loop does, unless `update_fn` is given.

        Returns:
            Names of the modules that were in evaluation mode inside a model in training mode and are now in training
            mode. Modules inside a named module are not listed.
        """
        if self.update_fn is not None:
            return ()  # an EMA teacher stays in evaluation mode
        training = self.training and self.model.training
        evaluating = [(name, module) for name, module in self.model.named_modules() if training and not module.training]
        self.model.train(self.training)
        names = [name for name, module in evaluating if module.training]
        return tuple(name for name in names if name.rpartition(".")[0] not in names)

    def make_optimizer(self) -> Optimizer | None:
        """Returns the optimizer of a step: the user's instance, a new one, or a set of several. None in inference.

        Raises:
            WorkloadError: no parameter is trainable, an optimizer does not hold this model's parameters, or it needs a
                closure.
        """
        if not self.training:
            return None
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        if not trainable:
            raise WorkloadError(
                "the model has no parameter with requires_grad=True, so there is nothing to train. "
                'Unfreeze parameters, or pass mode="inference".'
            )
        optimizer = self._made(trainable)
        for each in each_of(optimizer):
            held = {id(p) for group in each.param_groups for p in group["params"]}
            if not any(id(p) in held for p in trainable):
                raise WorkloadError(
                    f"the optimizer {type(each).__name__} holds none of the model's trainable parameters. Make it from "
                    "this model's parameters(), after the model was moved to its device."
                )
        if self.update_fn is None and _needs_closure(optimizer):
            raise WorkloadError(
                f"step() of the optimizer {type(optimizer).__name__} needs a closure that computes the loss again; "
                f"expected an optimizer whose step() can be called without arguments. {WITH_CLOSURE}"
            )
        return optimizer

    def _made(self, trainable: list[nn.Parameter]) -> Optimizer:
        """Returns the user's optimizer, a set of several, or what the recipe makes of the parameters."""
        if isinstance(self.optimizer, Mapping):
            return OptimizerSet(self.optimizer)
        if isinstance(self.optimizer, Optimizer):
            return self.optimizer
        made = (torch.optim.AdamW if self.optimizer is None else self.optimizer)(trainable)
        if not isinstance(made, Optimizer):
            raise WorkloadError(_not_an_optimizer("the optimizer callable returned", made))
        return made


def _needs_closure(optimizer: Optimizer) -> bool:
    """Returns whether `step()` has a required argument, as in LBFGS."""
    try:
        # The method of the class: a scheduler puts a wrapper on the instance whose signature still has `self`.
        parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    except (TypeError, ValueError):  # no signature
        return False
    passed = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return any(each.default is Parameter.empty and each.kind in passed for each in parameters)


def _not_a_model(found: object) -> WorkloadError:
    held = list(found.values()) if isinstance(found, Mapping) else found
    advice = "Pass the model first and the loader second."
    if isinstance(held, list | tuple) and held and all(isinstance(each, nn.Module) for each in held):
        advice = "Pass several models as one torch.nn.ModuleDict, with update_fn."
    return WorkloadError(f"model is {a_type(found)}; expected a torch.nn.Module. {advice}")


def _not_an_optimizer(where: str, found: object) -> str:
    """Returns the message for an object that is not an optimizer. `where` begins the sentence."""
    count = sum(isinstance(each, Optimizer) for each in pytree.tree_leaves(found))  # also of `configure_optimizers`
    if count > 1:
        return (
            f"{where} {count} optimizers; expected one. For several, as in a GAN, pass a dict of them by name, and "
            "update_fn(model, optimizer, batch), which does the whole step."
        )
    shown = "None" if found is None else a_type(found) + (" that holds one" if count else "")
    if isinstance(found, str):
        shown = f"the text {reprlib.repr(found)}"
    action = "the optimizer itself" if count else "one, as in `lambda params: torch.optim.SGD(params, lr=0.1)`"
    return (
        f"{where} {shown}; expected a torch.optim.Optimizer, or a callable that makes one from parameters. "
        f"Pass {action}."
    )


class OptimizerSet(Optimizer):
    """Several optimizers, such as those of a GAN, with the groups, the state and the gradients of all of them.

    Groups and state that they get later are seen too. The set is never stepped: the user's `update_fn` steps each.

    Attributes:
        members: the optimizers by the user's names.
    """

    def __init__(self, members: Mapping[str, Optimizer]) -> None:
        # torch's constructor is not called: it would group the parameters anew, and keep a state beside the members'.
        self.members = dict(members)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # read from the members
        """The groups of all optimizers."""
        return [group for member in self.members.values() for group in member.param_groups]

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # type: ignore[override]  # read from the members
        """The state of all optimizers, by parameter."""
        return {parameter: kept for member in self.members.values() for parameter, kept in member.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all optimizers."""
        for member in self.members.values():
            member.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> NoReturn:
        """Raises, since only `update_fn` knows when each optimizer is stepped."""
        raise NotImplementedError(f"found a step of {names_of(self)} together; expected that update_fn steps each")


def each_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Returns the optimizers of a step: one, or the members of a set."""
    return tuple(optimizer.members.values()) if isinstance(optimizer, OptimizerSet) else (optimizer,)


def as_given(optimizer: Optimizer) -> Optimizer | dict[str, Optimizer]:
    """Returns the optimizer as the user gave it: one optimizer, or a dict of several."""
    return dict(optimizer.members) if isinstance(optimizer, OptimizerSet) else optimizer


def names_of(optimizer: Optimizer | None) -> str:
    """Returns the class of an optimizer, such as "AdamW", or of each member, as in "d: Adam, g: AdamW"; "" of None."""
    if optimizer is None:
        return ""
    if not isinstance(optimizer, OptimizerSet):
        return type(optimizer).__name__
    return ", ".join(f"{name}: {type(member).__name__}" for name, member in sorted(optimizer.members.items()))


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yields the tensors of an optimizer's state, also those in lists, such as the directions of LBFGS."""
    found = pytree.tree_leaves(list(optimizer.state.values()))
    return (each for each in found if isinstance(each, torch.Tensor))


@dataclass(frozen=True, slots=True)
class Terms:
    """Loss and optimizer of the tuned workload: the defaults of `Fit.prepare`. See `Workload` for the attributes."""

    loss_fn: Callable[..., torch.Tensor] | None = None
    step_fn: Callable[..., torch.Tensor] | None = None
    optimizer: OptimizerRecipe = None
    update_fn: Callable[..., Any] | None = None

    def completed_by(self, tuned: Self) -> Self:
        """Returns these terms; what is missing is that of `tuned`. The functions go together: one replaces all."""
        given = any(function is not None for function in (self.loss_fn, self.step_fn, self.update_fn))
        functions = self if given else tuned
        optimizer = tuned.optimizer if self.optimizer is None else self.optimizer
        return replace(functions, optimizer=optimizer)
