"""What a technique that `autofit tune` searches would save at the peak, measured by running the step under it."""

from collections.abc import Iterator
from typing import ClassVar

from autofit.core.plan import KnobValue
from autofit.core.units import format_bytes, short_number
from autofit.doctor.diagnosis import Finding, Size
from autofit.doctor.findings.base import Detector, at_peak, is_nothing
from autofit.doctor.observation import Observation
from autofit.doctor.what_if import Change

LEAST_PADDING = 0.05
"""Smallest share of padding that is shown."""

LEAST_WORKSPACE, LEAST_WORKSPACE_BYTES = 0.05, 16 * 2**20
"""Smallest workspaces that are shown: share of the peak, and bytes."""


class _Alternative(Detector):
    """A value of a knob that saves memory."""

    knob: ClassVar[str]
    value: ClassVar[KnobValue]
    what: ClassVar[str]
    remedy: ClassVar[str]
    runs = True

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding if the step under the plan has a lower peak."""
        change = observation.further.plan(self.knob, self.value)
        saved_bytes = None if change is None else observation.further.saved_bytes(change)
        if change is None or saved_bytes is None or is_nothing(observation, saved_bytes):
            return
        yield Finding(
            id=self.id,
            what=self.what,
            remedy=f"{self.remedy}; autofit tune searches this",
            confirmed=change.about,
            **at_peak(observation, saved_bytes, basis="measured"),
        )


class AttentionScores(_Alternative):
    """Attention that is computed by plain products, which keeps the scores of all pairs of tokens."""

    id = "attention-scores"
    about = "attention scores of all pairs of tokens, kept for the backward pass"
    knob, value = "attention", "sdpa"
    what = "attention is computed by plain products, and keeps a matrix of all pairs of tokens for each head"
    remedy = 'load the model with attn_implementation="sdpa"'


class Logits(_Alternative):
    """A loss over a large vocabulary that has the logits, their log-probabilities and gradients in memory at once."""

    id = "logits"
    about = "logits of a large vocabulary, several times at the peak"
    knob, value = "linear_cross_entropy", "chunked"
    what = "the logits of the whole batch, their log-probabilities and their gradient are in memory at once"
    remedy = "compute the head and its loss over chunks of tokens, as F.linear_cross_entropy of torch 2.13 does"


class OptimizerPeak(_Alternative):
    """An update whose temporary tensors make the peak."""

    id = "optimizer-peak"
    about = "temporary tensors of the update that make the peak"
    knob, value = "optimizer_implementation", "fused"
    what = "the peak is in the update, which makes temporary tensors of the size of parameters"
    remedy = "pass fused=True to the optimizer"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding if the peak is in the update, and lower with a fused one."""
        if observation.views.use.peak.name.endswith("optimizer"):
            yield from super().find(observation)


class Padding(Detector):
    """Batches of which a large part is padding."""

    id = "padding"
    about = "elements of batches that are padding"
    runs = True

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if the samples cannot be batched anew."""
        return "the loader's samples cannot be batched anew" if observation.further.padding() is None else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding."""
        share = observation.further.padding()
        if share is None or share < LEAST_PADDING:
            return
        yield Finding(
            id=self.id,
            what=f"{share:.0%} of the elements of a batch are padding, which costs memory and time",
            remedy="batch samples of similar length, or pack several into one row: autofit tune searches both",
        )


class Loader(Detector):
    """A loader that makes batches more slowly than the step could take them."""

    id = "loader"
    about = "a loader that does not keep up with the steps"
    runs = True

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding if more worker processes make the training faster."""
        loading = observation.further.loading()
        if loading is None:
            return
        alone = next(trial for trial in loading.trials if trial.workers == 0)
        chosen = next(trial for trial in loading.trials if trial.workers == loading.workers)
        before, after = loading.training_per_s(alone), loading.training_per_s(chosen)
        yield Finding(
            id=self.id,
            what=(
                f"the loader makes {short_number(alone.samples_per_s or 0.0)} samples/s in one process, and the steps "
                f"could take {short_number(loading.needed_per_s)}: with {loading.workers} workers, training runs at "
                f"{short_number(after)} samples/s instead of {short_number(before)} without any"
            ),
            remedy=f"pass num_workers={loading.workers} to the DataLoader",
            evidence=("The loader was read alone, without training steps.",),
        )


class Workspaces(Detector):
    """Memory that libraries such as cuDNN allocate inside an operator, beyond all tensors of the step."""

    id = "cudnn-workspace"
    about = "memory that libraries use inside operators at the peak"
    runs = True
    for_accelerators = True

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if the device's own count is unknown."""
        return "the device's own count of its memory is unknown" if observation.further.transient_bytes is None else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding if a step needs clearly more memory than its tensors."""
        measured = observation.further.transient_bytes
        if measured is None:
            return
        tensors = observation.peak_bytes - observation.watch.levels[observation.step - 1]
        beyond = measured - tensors
        if beyond < max(LEAST_WORKSPACE * observation.peak_bytes, LEAST_WORKSPACE_BYTES):
            return
        yield Finding(
            id=self.id,
            what=(
                f"a step needs {format_bytes(measured)} beside what stays, of which its tensors are only "
                f"{format_bytes(tensors)}: the rest is workspaces of libraries such as cuDNN"
            ),
            remedy=(
                "try memory_format=torch.channels_last, which autofit tune searches, torch.backends.cudnn.benchmark = "
                "False, or CUBLAS_WORKSPACE_CONFIG"
            ),
            size=Size(peak_bytes=beyond, basis="measured", bound="at most"),
        )

    def change(self, observation: Observation, finding: Finding) -> Change | None:
        """Returns the step in channels-last format, if the model has convolutions."""
        return observation.further.plan("memory_format", "channels_last")
