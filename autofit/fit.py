"""Fit: the result of `tune()`. It can prepare a train step, save itself and export its plan."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import torch
from torch import distributed, nn

from autofit import devices, exporters, planfile
from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.environment import UPDATE
from autofit.core.errors import PlanFileError, UsageError, WorkloadError
from autofit.core.measurement import Measurement
from autofit.core.plan import Plan
from autofit.core.wording import describe_plan
from autofit.exporters.base import Export
from autofit.guard import Guard
from autofit.identity import model_signature, signature
from autofit.prepare import batches_of, prepare
from autofit.reports import sources, writing
from autofit.reports.assemble import assembled
from autofit.reports.canvas import Canvas
from autofit.reports.page import card
from autofit.reports.report import Report
from autofit.reports.summary import brief, summarize
from autofit.reports.svg import Plot, plot
from autofit.search.evidence import SearchResult
from autofit.splitting import Splitting, check_step, checked, wanted
from autofit.strategies import members
from autofit.study import splits
from autofit.workloads.batches import BatchSource
from autofit.workloads.dataloaders import shared
from autofit.workloads.divided import inside
from autofit.workloads.first_loss import loss_of
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.sources import loader_changes, source_of
from autofit.workloads.step import Draft, Ranks, Scheduler, Splits, StepLoader, TrainStep
from autofit.workloads.votes import EndingTogether, Votes
from autofit.workloads.workload import OptimizerRecipe, Terms, Workload, names_of

_SCANNED = 64
"""Number of samples inspected to rebuild a loader. Their lengths do not matter here."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of `tune()`: a proven plan that can be applied, saved and exported.

    Attributes:
        answer: the record that `save` writes.
        terms: loss and optimizer of the tuned workload. Empty after `autofit.load`, since a plan file holds no code.
        result: the search that found the plan, for reports; None after `autofit.load`, when its study is read.
        plan_file: path that the plan was loaded from, or "".
    """

    answer: Answer
    terms: Terms = field(default_factory=Terms)
    result: SearchResult | None = field(default=None, repr=False)
    plan_file: str = ""

    @property
    def plan(self) -> Plan:
        """The recommended plan."""
        return self.answer.plan

    @property
    def proof(self) -> Measurement:
        """The measurement of the run that proved the plan."""
        return self.answer.proof

    @property
    def baseline(self) -> Candidate:
        """The baseline, with its measurement or the reason why there is none."""
        return self.answer.baseline

    @property
    def gain(self) -> Ratio | None:
        """Throughput over the baseline, with its interval. None if it is unknown; see `Answer.gain`."""
        return self.answer.gain

    @property
    def evaluation(self) -> "Fit | None":
        """The plan for evaluation, as a fit of its own; None without an `eval_loader`, or if a caveat says why.

        Its changes to the model hold inside `with fit.evaluation.prepare(model, eval_loader) as step:`.
        """
        found = self.answer.evaluation
        return None if found is None else Fit(found, Terms(step_fn=self.terms.step_fn), plan_file=self.plan_file)

    @property
    def alternatives(self) -> tuple[Candidate, ...]:
        """Other plans that were measured, best first."""
        return self.answer.alternatives

    @property
    def caveats(self) -> tuple[str, ...]:
        """Notes to read before using the plan."""
        return self.answer.caveats

    @property
    def stopped(self) -> str:
        """What ended the search: its time, an error, the user, or that nothing was left that was worth a probe."""
        return self.answer.stopped

    def __str__(self) -> str:
        return brief(self.answer, Canvas.of(sys.stdout))

    def __repr__(self) -> str:
        r = self.answer
        gain = "" if r.gain is None else f", {r.gain} the throughput of the baseline"
        return f"Fit({describe_plan(r.plan, r.baseline.plan)}{gain})"

    def details(self) -> str:
        """Returns the answer with all that was tried and left out, and how it was found, for a person to read."""
        return summarize(self.answer, Canvas.of(sys.stdout))

    def _repr_html_(self) -> str:
        return card(self.answer)

    def plot(self, kind: str = "front") -> Plot:
        """Returns one chart of the report, which a notebook shows and which can be saved as SVG.

        Args:
            kind: "why" (what each change brings), "front" (throughput against peak memory), "curves" (speed by micro
                batch size), "breakdown" (what the memory holds), "timeline" (memory during one optimizer step),
                "answers" (when each answer came) or "race".

        Raises:
            UsageError: no chart has this name, or the search kept no values for it.
        """
        return plot(self._report(), kind)

    def prepare(  # noqa: PLR0913  # the public call: each argument is an object of the user's
        self,
        model: nn.Module,
        loader: Any,
        optimizer: OptimizerRecipe = None,
        *,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        step_fn: Callable[..., torch.Tensor] | None = None,
        update_fn: Callable[..., Any] | None = None,
        scheduler: Scheduler | None = None,
        scaler: torch.amp.GradScaler | None = None,
        max_grad_norm: float | None = None,
        on_oom: Literal["raise", "split"] = "raise",
    ) -> TrainStep:
        """Returns the train step that was measured, applied to your objects and ready to train with.

        Use it as `for batch in step.loader: loss = step(batch)`. With several accumulation steps, such a batch is a
        `StepBatch`, whose micro batches are `batch.parts`.

        A plan for inference gives a step that runs only the forward pass and returns the model's output.

        Args:
            model: the tuned model, or one of the same structure, on the device to train on. The plan changes its
                modules until `step.close()`. Switching between train and eval mode is up to you.
            loader: the tuned loader. `step.loader` is rebuilt from it at the plan's micro batch size, with the worker
                processes with which it keeps up (`proof.loading`). If the plan batches samples of similar length, all
                samples are read once, now. Of several ranks, each gets its part of the samples, unless the loader has a
                sampler of its own, such as a `DistributedSampler`.
            optimizer: see `autofit.tune`. None uses the optimizer given to `tune` (after `autofit.load`: AdamW).
                `step.optimizer` is the optimizer in use.
            loss_fn: see `autofit.tune`. Without any of the three functions, that given to `tune` is used.
            step_fn: see `autofit.tune`.
            update_fn: see `autofit.tune`.
            scheduler: learning rate scheduler; its `step()` is called after each optimizer step.
            scaler: gradient scaler to use with fp16. None makes a new one if the plan needs one.
            max_grad_norm: clip gradients to this L2 norm. None uses the value given to `tune`.
            on_oom: what a step does if a micro batch runs out of memory. "split" cuts it in two and runs the step again
                from the state in which it began, so that the global batch and, up to rounding, the gradient stay. You
                get one warning, `step.splits` counts, and the next search with this study leaves the plan out. A few
                gradients are computed now, to check that micro batches may be cut. Of several ranks, all cut the micro
                batch that fails on one; another error of one is a `RanksLost` on the others. "raise" raises the error.

        Raises:
            PlanFileError: the plan was made for a model with a different structure.
            SpaceError: the plan cannot be applied to this model or device.
            UsageError: the plan is for several ranks, and this process does not belong to as many; or `on_oom` is
                "split", and micro batches cannot be cut without a change of the result.
            WorkloadError: the loader, loss or optimizer cannot be used.
        """
        terms = Terms(loss_fn, step_fn, optimizer, update_fn).completed_by(self.terms)
        model = inside(model) if self.answer.environment.ranks > 1 else model
        self._check(model, terms, scaler, scheduler)
        workload = Workload(
            model,
            loader,
            loss_fn=terms.loss_fn,
            step_fn=terms.step_fn,
            optimizer=terms.optimizer,
            mode="inference" if self.answer.environment.is_inference else "train",
            max_grad_norm=self._clipping() if max_grad_norm is None else max_grad_norm,
            update_fn=terms.update_fn,
        )
        device, guard = self._device_of(workload), Guard.of(workload)
        ranks = self._ranks(device)
        part = loader if ranks is None else shared(loader, ranks.number, ranks.count)
        votes = Votes.of(ranks) if ranks is not None and (part is loader or wanted(on_oom)) else None
        with guard.backstop, guard:  # undoes the effects of inspecting samples and computing a first loss
            source = source_of(part, scan=_SCANNED)
            loss = loss_of(workload, source, device)
            rebuilt = self._loader(source)
            splitting = self._splitting(workload, source, loss, guard, device, votes) if wanted(on_oom) else None
            small = None if splitting is None else source.typical(source.small_size, 1)[0]
        weighing, host_bytes = Weighing.of(self.answer.environment.settings), devices.available_host_bytes()
        draft = Draft.of(workload, loss, device, weighing, host_bytes, varies=source.varies)
        draft.scaler, draft.scheduler, draft.ranks = scaler, scheduler, ranks
        found = signature(model, source.structure(), loss.name)
        for doubt in self._doubts(loss, found, source.length, draft.optimizer):
            warnings.warn(doubt, stacklevel=2)
        step = prepare(self.plan, draft, members())
        if splitting is not None:
            check_step(step, splitting.votes)
            splitting.learn(step, small)
            step.splitting = splitting
        if votes is not None and part is loader:  # of a part of its own, one rank may have more than the others
            rebuilt = EndingTogether(rebuilt, votes)
        step.loader = StepLoader.of(self.plan, rebuilt, drop_last=bool(getattr(loader, "drop_last", False)))
        if draft.optimizer is not None and loss.update is None:
            # Each step clears gradients after its update; before the first step they may be set.
            draft.optimizer.zero_grad(set_to_none=True)
        return step

    def _splitting(
        self,
        workload: Workload,
        source: BatchSource,
        loss: LossRule,
        guard: Guard,
        place: torch.device,
        votes: Votes | None,
    ) -> Splitting:
        """Returns what cuts micro batches that run out of memory, for steps of the plan.

        Raises:
            UsageError: micro batches cannot be cut without a change of the result.
            RanksLost: those of another rank cannot.
        """
        device, files = devices.choose(str(place)), splits.places(self.answer.study, self.plan_file)
        with nullcontext() if votes is None else votes.together():
            weighing, moving = checked(workload, source, loss, device, guard)
        training, settings = uuid4().hex, Weighing.of(self.answer.environment.settings)

        def record(found: Splits) -> str:
            known = {"training": training, "plan": self.plan, "environment": self.answer.environment}
            return splits.write(files, splits.TrainingSplits.model_validate({**known, **asdict(found)}))

        return Splitting(device, settings or weighing, moving, record, votes=votes)

    def _ranks(self, device: torch.device) -> Ranks | None:
        """Returns the ranks that train together; None if the plan is for one.

        Raises:
            UsageError: this process does not belong to as many ranks.
        """
        wanted, joined = self.answer.environment.ranks, distributed.is_available() and distributed.is_initialized()
        found = distributed.get_world_size() if joined else 1
        if wanted == 1:
            return None
        if found != wanted:
            group_found = f"a process group of {found}" if joined else "no process group"
            raise UsageError(
                f"the plan is for {wanted} ranks, and found {group_found}; expected as many ranks. Start "
                f"{wanted} processes, such as with torchrun, and call torch.distributed.init_process_group before "
                "prepare; or tune again."
            )
        group: Any = distributed.group.WORLD
        ranks = Ranks.of(group, device.type)
        return ranks.in_rows(distributed.new_group) if any(each.needs_rows(self.plan) for each in members()) else ranks

    def _loader(self, source: BatchSource) -> Iterable[Any]:
        """Returns the loader of the micro batches of the plan."""
        size, counted = self.plan.micro_batch_size, self.plan.accumulation_steps > 1
        changes = loader_changes(self.proof.loading)
        return batches_of(self.plan, source, members()).rebuild(size, counted=counted, changes=changes)

    def save(self, path: str | Path) -> None:
        """Writes the plan file (YAML, schema autofit.plan/1). An existing plan file is replaced atomically.

        Raises:
            PlanFileError: the path cannot be written, or holds a file that is not a plan file.
        """
        planfile.save(self.answer, path)

    def report(self, path: str | Path, *, force: bool = False) -> None:
        """Writes a report of the search: what was found, what else was tried, and why. An earlier report is replaced.

        After `autofit.load`, the trials are read from the study file that the plan file names, never from a server. The
        report says what is missing if it is not there.

        Args:
            path: where to. The suffix decides the format: .html, .md or .json.
            force: whether any other file may be replaced too.

        Raises:
            UsageError: the suffix is not known, the path cannot be written, or holds a file that is not a report.
        """
        kind = writing.format_of(path)
        writing.check_replaceable(path, force=force)
        writing.write(writing.rendered(self._report(), kind), path, force=force)

    def export(self, target: str, target_version: str | None = None) -> Export:
        """Returns the plan for a framework, such as "python", with the knobs that the framework cannot express.

        Without `target_version`, it is for the installed version, or else for the newest that is known.

        Raises:
            UsageError: there is no such exporter or version, or it cannot express the plan's batch.
        """
        return exporters.by_name(target).export(self.answer, target_version)

    def _report(self) -> Report:
        if self.result is not None and self.result.answer is not None:
            return assembled(sources.of_result(self.result, self.plan_file))
        return assembled(sources.of_answer(self.answer, self.plan_file))

    def _setting(self, name: str) -> str | None:
        return self.answer.environment.settings.get(name)

    def _doubts(
        self, loss: LossRule, found: str, length: int | None, optimizer: torch.optim.Optimizer | None
    ) -> Iterator[str]:
        """Yields how the loss, the loader and the optimizer of a step differ from what was measured."""
        tuned, used, total = self._setting("optimizer"), names_of(optimizer), self.plan.global_batch_size
        if loss.inferred and found != self.answer.environment.workload:
            yield (
                f"the loss was inferred here ({loss.about}), but the plan was measured with another loss or other "
                "batches. Pass loss_fn= or step_fn= as in your call of autofit.tune."
            )
        if length is not None and length < total:
            yield (
                f"one pass over this loader gives {length} samples, fewer than the global batch of {total}: no step "
                "will have the plan's global batch. Give more data, or tune with a smaller global_batch_size."
            )
        if used and tuned is not None and used != tuned:
            yield (
                f"the plan was measured with {tuned}, but this step uses {used}: memory and speed will differ. "
                f"Pass a {tuned} as optimizer, or tune with {used}."
            )

    def _clipping(self) -> float | None:
        text = self._setting("max_grad_norm")
        try:
            return None if text in (None, "None") else float(text)
        except ValueError:
            raise PlanFileError(
                f"the plan's environment has max_grad_norm: {text!r}; expected a number or None. Correct the plan "
                "file, or pass max_grad_norm=."
            ) from None

    def _check(
        self, model: nn.Module, terms: Terms, scaler: torch.amp.GradScaler | None, scheduler: Scheduler | None
    ) -> None:
        made_for, found = self.answer.environment.workload.partition("-")[0], model_signature(model)
        if found != made_for:
            raise PlanFileError(
                f"the plan was made for a model with a different structure, or other trainable parameters (signature "
                f"{made_for}, this model has {found}). Tune this model: autofit.tune(model, loader)."
            )
        if terms.update_fn is None and self._setting(UPDATE) is not None:
            raise WorkloadError("found no update_fn; expected the one that the plan was tuned with. Pass update_fn=.")
        if terms.update_fn is not None and scaler is not None:
            raise WorkloadError("found scaler beside update_fn, which scales its losses; expected none. Leave it out.")
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise WorkloadError(
                "found a ReduceLROnPlateau, whose step() takes a metric; expected a scheduler that each step advances. "
                "Leave it out, and give it the metric in your own loop."
            )

    def _device_of(self, workload: Workload) -> torch.device:
        """Returns the device that a step runs on. Warns if the plan was proven on another."""
        model = workload.model
        place = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
        device, proven = devices.choose(str(place)), self.answer.environment
        if (place.type, device.name()) != (proven.device_type, proven.device_name):
            warnings.warn(
                f"the plan was proven on {proven.device_name} ({proven.device_type}) and is used on {device.name()} "
                f"({place.type}), where its speed and peak memory are unknown. Tune again on this device.",
                stacklevel=3,
            )
        if not workload.training:
            device.release()  # an evaluation was proven from an empty cache, and the training's is full
        return place
