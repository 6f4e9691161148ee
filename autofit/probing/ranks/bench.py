"""The benches of a launch of several ranks: the leader's, which a search uses, and those of the followers.

Only the leader runs the search, its probes and their clocks. A follower makes the same step of the same plan, and runs
the steps that the leader announces on its own batches, so that no two ranks can take a different number of steps.

Every plan is rehearsed first: each rank runs its own share of the step beside ranks that do not exist. Nobody waits for
anybody there, so an out-of-memory is an ordinary outcome of one rank. Only a plan that fits everywhere runs for real.
"""

import gc
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import islice, zip_longest
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset

from autofit.core.briefing import Examiner, Options
from autofit.core.environment import RANKS, ROWS, Environment
from autofit.core.errors import AutofitError, RanksLost, SpaceError, UsageError, from_record, to_record
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.space import Refusal
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.gates.compare import REDUCED_L2, GradientDifference, difference, order_l2
from autofit.gates.gradients import generators_restored, seed_all, sketch
from autofit.gates.verdict import Checked, GateVerdict, together
from autofit.identity import digest
from autofit.probing.local_bench import LocalBench, undivided
from autofit.probing.opening import check_divided, chosen
from autofit.probing.probe import Probe
from autofit.probing.ranks.launch import ARRIVAL_S, Launch
from autofit.probing.ranks.outcomes import FAILED, failure_of, joined_outcome, straggler, worst_of
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.strategies import members
from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.batch_store import StepBatch, Typical, unused
from autofit.workloads.divided import divided_already
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.step import PER_MACHINE, Ranks, TrainStep, rows_of, static_bytes
from autofit.workloads.tree import Batch, nbytes, tensors
from autofit.workloads.workload import Workload

REHEARSAL = RunTerms(fit_alone=True)
WORST = -1
"""Stands for the worst batch among the places of a step's micro batches; others are positions in the typical ones, or
lower by the size of the incomplete last batch of an epoch."""
LEAST_S, TIMES = 30.0, 5.0
"""Seconds after which ranks no longer wait for each other in a step, at least, and as a multiple of the time that its
rehearsal took."""
SHORTEST_S = 5.0
"""The same where the time budget, or what is known of a plan's speed, leaves a run less than `LEAST_S`."""
REPLY_S = 120.0
"""Seconds that the leader waits for an answer beyond what its own work took: a rank may be disturbed."""

OPENED = "opened"
"""What ranks say once their benches are open."""
HASHED = 1000
"""Number of values of a tensor by which batches of ranks are compared."""
SAME_SAMPLES = (
    "the loaders of all ranks make the same batch, so that all ranks would train on the same samples: give each its "
    "own part, by its rank"
)
NAMES_GROUP = (
    "found that the step communicates on a process group that it names; expected the default group, which a search "
    "replaces, since it also runs steps on one rank alone. Pass no group to collective operations of the step."
)
OF_A_RANK = ("data", "attributes")
"""Names of settings that may differ: each rank may have its own part of the data, and objects that know its number."""

_Bench = TypeVar("_Bench", bound="RankBench")


class RankBench(LocalBench):
    """The bench of one of several ranks.

    Raises:
        SpaceError: this training cannot be divided among ranks.
        UsageError: its step communicates on a process group of its own.
        AutofitError: as `LocalBench`.
    """

    def __init__(self, launch: Launch, workload: Workload, device: Device, options: Options, watch: Watchdog) -> None:
        self.launch = launch
        self._traced_ranks = launch.fake
        if reason := divided_already(workload.model):  # before a pass of it waits for other ranks
            raise SpaceError(f"found that {reason}. Expected a model that autofit can divide itself.")
        super().__init__(workload, device, divided(options, launch.count), watch=watch)
        if launch.names_groups:  # while all ranks still run the same passes
            raise UsageError(NAMES_GROUP)
        self._draw = launch.number
        check_divided(self.briefing.space, None, launch.count, "or tune it in one process")
        found = self.briefing.environment
        counts = {RANKS: launch.count, ROWS: rows_of(launch.count)}
        known = {name: str(count) for name, count in counts.items() if count > 1}
        environment = found.model_copy(update={"settings": {**found.settings, **known}})
        self.briefing = self.briefing.model_copy(update={"environment": environment})
        if device.is_host and options.memory_budget is None:  # the ranks of a machine share its memory
            here = int(os.environ.get(PER_MACHINE, launch.count))
            self.agree(self.briefing.budget.memory_bytes // here)

    @property
    def facts(self) -> dict[str, Any]:
        """What must be the same on all ranks, and the memory budget."""
        source = self._source
        found = self.briefing.environment
        settings = {name: value for name, value in found.settings.items() if name not in OF_A_RANK}
        return {
            "environment": found.model_copy(update={"settings": settings}).model_dump(mode="json"),
            "parameters": [f"{name} {[*each.shape]}" for name, each in self.workload.model.named_parameters()],
            "batch_size": source.user_batch_size,
            "batches": None if source.length is None else source.length // source.user_batch_size,
            "memory_bytes": self.briefing.budget.memory_bytes,
            "samples": self._samples(),
        }

    def _samples(self) -> str:
        """Returns a digest of a batch whose samples the loader itself chooses; "" if there are indices to divide."""
        loader, size = self.workload.loader, self._source.user_batch_size
        if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
            return ""
        batch = next(self._source.fresh(size, 0))
        return digest([f"{tuple(each.shape)} {each.flatten()[:HASHED].tolist()}" for each in tensors(batch)])

    def note(self, caveat: str) -> None:
        """Adds a caveat to the briefing."""
        self.briefing = self.briefing.model_copy(update={"caveats": (caveat, *self.briefing.caveats)})

    def agree(self, memory_bytes: int) -> None:
        """Takes the memory budget that all ranks have."""
        found = self.briefing.budget
        if memory_bytes == found.memory_bytes:
            return
        note = f"{format_bytes(memory_bytes)}, the least of all ranks"
        budget = found.model_copy(update={"memory_bytes": memory_bytes, "memory_note": note})
        self.briefing = self.briefing.model_copy(update={"budget": budget})

    def rehearse(self, plan: Plan, purpose: Purpose = Purpose.PROBE, most_s: float | None = None) -> Outcome:
        """Returns whether this rank's share of a plan fits, by steps that wait for no other rank.

        As a block, it is timed on typical batches instead. It ends after `most_s` seconds.
        """
        self._ranks, fastest_s = self.launch.fake, self._fastest_s
        terms = (OPEN if purpose is Purpose.BLOCK else REHEARSAL).model_copy(update={"limit_s": most_s})
        try:
            return self._or_poisoned(lambda: LocalBench._evaluated(self, plan, purpose, terms))
        finally:
            self._ranks, self._fastest_s = None, fastest_s

    def compare(self, number: int, plan: Plan, limit_s: float) -> GradientDifference:
        """Compares the gradient of all ranks under a plan with the mean of what each computes alone, on its own data.

        Args:
            number: number of the command, by which the ranks find each other.
            plan: the plan, which divides the training. What else it does, each rank does alone too.
            limit_s: seconds after which the ranks no longer wait for each other.
        """
        alone, failure, parts = None, "", list[Batch]()
        with self._group(plan, limit_s) as ranks:
            ranks.make_alike(self.workload.model)  # as each layout does
            try:
                drawn = self._source.fresh(plan.micro_batch_size, self.launch.number)  # other samples on each rank
                parts += islice(drawn, plan.accumulation_steps)
                alone, allowed = self._gradient(undivided(plan), parts, None)
            except Exception as error:  # noqa: BLE001  # such as a model that only fits on several devices
                failure = failure_of(error, self.device).reason
                self._put_back()
            said = self.launch.exchanged(f"alone/{number}", failure, limit_s + REPLY_S)
            reason = next((f"rank {rank} alone: {each}" for rank, each in enumerate(said) if each), "")
            if reason or alone is None:
                return GradientDifference(reason=reason)
            mean = alone.to(self.device.torch_device)
            distributed.all_reduce(mean, group=ranks.group)
            found, _ = self._gradient(plan, parts, ranks)
        l2 = difference(found, mean.cpu().div_(ranks.count))
        if math.isnan(l2):
            return GradientDifference(reason="it is zero")
        return GradientDifference(l2, max(allowed, REDUCED_L2) if _rounds(plan) else allowed)

    def _group(self, plan: Plan, limit_s: float) -> AbstractContextManager[Ranks]:
        return self.launch.group(limit_s, in_rows=any(member.needs_rows(plan) for member in members()))

    def _gradient(self, plan: Plan, parts: Sequence[Batch], ranks: Ranks | None) -> tuple[torch.Tensor, float]:
        """Returns the sketch of the gradient of micro batches, and by how much rounding may change it."""
        self._ranks = ranks
        try:
            self._make_ready()
            with generators_restored(self.device.torch_device), self._build(plan) as step:
                seed_all(self._options.seed)
                step.draft.weighing = None
                step.backward(StepBatch.alike(unused(parts, self.device.type)))
                return sketch([each for each in step.model.parameters() if each.requires_grad]), order_l2(step)
        finally:
            self._ranks = None
            self._guard.restore_trained()
            self._put_back()

    def _typical(self, plan: Plan) -> Typical:
        return self._batches.store(plan).typical(plan.micro_batch_size, plan.accumulation_steps)


def _rounds(plan: Plan) -> bool:
    return any(member.rounds(plan) for member in members())


def divided(options: Options, count: int) -> Options:
    """Returns the options of a search on `count` ranks. A layout that is not to be searched is that of the baseline.

    Raises:
        SpaceError, UsageError: see `chosen`.
    """
    known = chosen(options.strategies, options.without)
    left = [member for member in members() if member.for_ranks and member not in known]
    changes: dict[str, Any] = {"ranks": count}
    if left:
        pinned = {knob: value for member in left for knob, value in member.unsearched.items()}
        names = tuple(member.name for member in (*known, *left))
        changes |= {"strategies": names, "without": (), "pinned": {**pinned, **options.pinned}}
    return options.model_copy(update=changes)


def opened(launch: Launch, make: Callable[[], _Bench]) -> _Bench:
    """Opens the bench of this rank, and waits for those of the others.

    Raises:
        AutofitError: what the first rank raised that could not open its own, on all ranks.
        UsageError: the ranks differ in something that must be the same.
        RanksLost: a rank did not arrive.
    """
    bench, error = None, None
    try:
        bench = make()
        mine = bench.facts
    except AutofitError as raised:
        error, mine = raised, {"error": to_record(raised)}
    except BaseException as raised:
        launch.tell_all(OPENED, {"error": to_record(AutofitError(f"{type(raised).__name__}: {raised}"))})
        raise
    said = launch.exchanged(OPENED, mine, ARRIVAL_S)
    failed = next((rank for rank, each in enumerate(said) if "error" in each), None)
    if failed is not None:
        record, everywhere = said[failed]["error"], all(each == said[failed] for each in said)
        message = record["message"] if everywhere else f"rank {failed}: {record['message']}"
        raise from_record({**record, "message": message}) from error
    assert bench is not None, "no rank failed"
    check_alike(said)
    bench.agree(min(each["memory_bytes"] for each in said))
    if said[0]["samples"] and len({each["samples"] for each in said}) == 1:
        bench.note(SAME_SAMPLES)
    return bench


def check_alike(facts: Sequence[dict[str, Any]]) -> None:
    """Checks that all ranks train the same model in the same way.

    Raises:
        UsageError: they do not; the message names the first rank that differs from rank 0, and in what.
    """
    first, *others = facts
    for rank, each in enumerate(others, 1):
        found = Environment.model_validate(each["environment"])
        given = found.differences(Environment.model_validate(first["environment"]))
        differences = [f"{text.partition(', was ')[0]} (rank 0: {text.partition(', was ')[2]})" for text in given]
        for name in ("batch_size", "batches"):
            if each[name] != first[name]:
                differences.append(f"{name.replace('_', ' ')}: {each[name]} (rank 0: {first[name]})")
        for mine, theirs in zip_longest(each["parameters"], first["parameters"], fillvalue="none"):
            if mine != theirs:
                differences.append(f"parameter: {mine} (rank 0: {theirs})")
                break
        if differences:
            raise UsageError(
                f"found that rank {rank} differs from rank 0: {'; '.join(differences)}; expected the same model, loss, "
                "kind of optimizer, number of batches, versions and device on all ranks. Change what differs, then "
                "start again."
            )


class LeadingBench(RankBench):
    """The bench with which rank 0 searches. What it measures is that of all ranks: time is its own, memory the worst.

    Raises:
        RanksLost: from any method, if another rank does not answer.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._limits_s, self._rehearsals = dict[str, float](), dict[str, Measurement]()
        self._places, self._differences = dict[int, int](), dict[str, GradientDifference]()
        self._known: Typical | None = None
        self._rests = set[int]()
        self._paces = list[list[float]]()

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Checks a plan as one rank alone, and then its layout on all ranks, unless that was compared before."""
        checked = super().check(plan, known)
        if not checked.passed:
            return checked
        baseline, rounded = self.briefing.space.baseline, _rounds(plan)
        divided = {name: value for name, value in plan.values.items() if name not in undivided(plan).values}
        if rounded:  # then the plan's other formats matter too
            formats = {name for member in members() if member.gated for name in member.owns}
            divided |= {name: value for name, value in plan.values.items() if name in formats}
        sized = {MICRO_BATCH_SIZE: baseline.micro_batch_size, ACCUMULATION_STEPS: 1}
        alike = Plan(values={**sized, **divided})
        if any(member.conflict(alike) for member in members()):  # it has no meaning without accumulation
            alike = alike.replace(accumulation_steps=2)
        if alike.key not in self._differences:
            self._differences[alike.key] = self._compared(alike)
        changed = {name: value for name, value in divided.items() if name in plan.changes_from(baseline)}
        name = together(f"{each}={value}" for each, value in (changed or divided).items())
        return self._judged(name, self._differences[alike.key], checked, rounded=rounded)

    def _judged(self, name: str, found: GradientDifference, checked: Checked, *, rounded: bool) -> Checked:
        """Returns the result of a check of one rank with what a comparison on all ranks has found on some values."""
        if not (reason := found.objection):
            return checked
        note = f"{name}: {reason}"
        if self._options.numerics == "any" if rounded else not found.compared:
            kept = "; kept, as numerics='any' allows" * rounded
            return checked.model_copy(update={"caveats": (*checked.caveats, f"{note}{kept}")})
        refused, verdict = (Refusal(name=name, reason=reason, origin="gate"),), GateVerdict(passed=False, reason=reason)
        return Checked(passed=False, reason=note, verdicts={**checked.verdicts, name: verdict}, refused=refused)

    def _compared(self, plan: Plan) -> GradientDifference:
        limit_s = max(self._limits_s.values(), default=LEAST_S)
        number = self.launch.command("compare", limit_s=limit_s, **self._request(plan))
        try:
            found = self.compare(number, plan, limit_s)
        except RanksLost:
            raise
        except Exception as error:  # noqa: BLE001  # raised by the user's code, or because another rank has failed
            found = GradientDifference(reason=failure_of(error, self.device).reason)
        failures = [each for each in self.launch.replies(number, limit_s + REPLY_S) if each]
        return GradientDifference(reason=failures[0]) if failures else found

    def examine_all(self, examiner: Examiner, plan: Plan, limit_s: float) -> list[str]:
        """Returns what an examiner says on each rank of steps that all of them run, by rank; see `examine`."""
        group_s, said = self._limits_s.get(plan.key, LEAST_S), list[str]()
        asked = {"limit_s": group_s, "examiner": examiner.model_dump(mode="json"), **self._request(plan)}
        number, self._places, closed = self.launch.command("examine", **asked), {}, False
        try:
            with self._group(plan, group_s) as self._ranks:
                mine = self.examine(examiner, plan, limit_s)
                if mine and not mine.startswith(FAILED):  # the followers may still be in the last collective
                    number, closed = self.launch.command("close"), True
                    said = self.launch.replies(number, group_s + REPLY_S)
        finally:
            self._ranks = None
            if not closed:
                number = self.launch.command("close")
        return [mine, *(said or self.launch.replies(number, group_s + REPLY_S))]

    def end(self, **what: object) -> None:
        """Ends the followers' work; they get the answer or the error."""
        with suppress(RanksLost):  # the search has ended all the same
            self.launch.command("end", **what)

    def _evaluated(self, plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        refusal = None if purpose is Purpose.BLOCK else self._rehearsed(plan)
        outcome = self._of_all(self._run_on_all(plan, purpose, terms) if refusal is None else refusal)
        if purpose is not Purpose.PROOF or outcome.measurement is None:
            return outcome
        alone = [each.measurement for each in self._rehearse(plan, Purpose.BLOCK)]
        took_s = [each.step_time_s for each in alone if each is not None]
        if len(took_s) < len(alone):
            return outcome
        return outcome.with_measured(exchange_s=max(outcome.measurement.step_time_s - max(took_s), 0.0))

    def _of_all(self, outcome: Outcome) -> Outcome:
        """Returns an outcome of one rank with the samples of all."""
        if (found := outcome.measurement) is None:
            return outcome
        count, tokens = self.launch.count, found.tokens_per_step
        return outcome.with_measured(
            samples_per_step=count * found.samples_per_step,
            tokens_per_step=None if tokens is None else count * tokens,
            straggler=straggler(self._paces),
        )

    def _run_on_all(self, plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        known_s = self._limits_s.get(plan.key, LEAST_S)
        limit_s = max(known_s - LEAST_S, min(known_s, terms.limit_s or math.inf), SHORTEST_S)
        self._note_places(plan)  # first, since the followers then wait for this rank to make the group
        asked = {"limit_s": limit_s, "most_s": self._most_s(terms.limit_s), **self._request(plan)}
        number = self.launch.command("run", **asked)
        said: list[Any] | None = None
        try:
            with self._group(plan, limit_s) as self._ranks:
                outcome = super()._evaluated(plan, purpose, terms)
                if outcome.measured:  # the followers may still be in the last collective
                    number = self.launch.command("close")
                    said = self.launch.replies(number, limit_s + REPLY_S)
        except RuntimeError as error:
            outcome = failure_of(error, self.device)
        finally:
            self._ranks = None
            if said is None:
                number = self.launch.command("close")
        found = self.launch.replies(number, limit_s + REPLY_S) if said is None else said
        if self.device.is_host and (alone := self._rehearsals.get(plan.key)) is not None:
            # What gloo copies, and releases in threads of its own, differs from run to run and is not the plan's.
            outcome = outcome.with_measured(memory=alone.memory, growth_bytes=alone.growth_bytes)
            found = [{**each, "memory": None} for each in found]
        return joined_outcome(outcome, found, self.briefing.budget.memory_bytes)

    def _probe(self, plan: Plan, purpose: Purpose, terms: RunTerms) -> Probe:
        probe = super()._probe(plan, purpose, terms)
        if self.device.is_host and not terms.fit_alone:
            probe.budget_bytes = sys.maxsize  # its rehearsal was inside the budget
        return probe

    def _rehearsed(self, plan: Plan) -> Outcome | None:
        """Returns why a plan does not fit on each rank, or None. One that fits is not rehearsed again."""
        if plan.key in self._limits_s:
            return None
        outcomes = self._rehearse(plan, Purpose.PROBE)
        if (worst := worst_of(outcomes)) is not None:
            return worst
        self._limits_s[plan.key] = LEAST_S + TIMES * max(each.duration_s for each in outcomes)
        measured = [each.measurement for each in outcomes if each.measurement is not None]
        self._rehearsals[plan.key] = max(measured, key=lambda each: each.memory.judged_bytes)
        # Alone, a rank waits for nobody, so that its steps show its own speed.
        self._paces.append([min(each.step_times_s) for each in measured])
        return None

    def _rehearse(self, plan: Plan, purpose: Purpose) -> list[Outcome]:
        """Returns the outcomes of a rehearsal by rank, which has all the time that is left: it may have to compile."""
        most_s = self._most_s(None)
        asked = {"purpose": purpose, "most_s": most_s, **self._request(plan)}
        began, number = perf_counter(), self.launch.command("rehearse", **asked)
        mine = self.rehearse(plan, purpose, most_s)
        took_s = perf_counter() - began
        others = self.launch.replies(number, TIMES * took_s + REPLY_S)
        return [mine, *(Outcome.model_validate(each) for each in others)]

    def _most_s(self, limit_s: float | None) -> float | None:
        """Returns after how many seconds each rank ends a run; None: never."""
        most_s = min(self._watch.clock.patience_s(), limit_s or math.inf)
        return None if math.isinf(most_s) else max(most_s, SHORTEST_S)

    def _request(self, plan: Plan) -> dict[str, object]:
        weighing = None if self._weighing is None else str(self._weighing)
        return {"plan": plan.model_dump(mode="json"), "weighing": weighing}

    def _note_places(self, plan: Plan) -> None:
        """Notes where the micro batches are among the typical ones, which the followers have too."""
        try:
            self._known = self._typical(plan)  # kept, so that no other batch gets the identity of one of these
        except (AutofitError, RuntimeError):
            self._known = None  # the probe will fail in the same way, and say so
        source, sizes = self._batches.source(plan), (plan.micro_batch_size, self._source.user_batch_size)
        rests = {source.remainder(size, self.launch.count) for size in sizes}
        self._rests = rests - {0, plan.micro_batch_size}
        batches = () if self._known is None else self._known.batches
        self._places = {id(batch): place for place, batch in enumerate(batches)}

    def _announce(self, parts: Sequence[Batch]) -> bool:
        if self._ranks is not None and not self._ranks.is_fake:
            self.launch.command("step", places=[self._place(part) for part in parts])
        return True

    def _place(self, part: Batch) -> int:
        """Returns where a micro batch is among the typical ones; of the last one of an epoch, `WORST` less its size."""
        if (known := self._places.get(id(part))) is not None:
            return known
        size = batch_size(part) if self._rests else 0
        return WORST - size if size in self._rests else WORST


class FollowingBench(RankBench):
    """The bench of another rank, which does what the leader says."""

    _closed: int | None = None
    """Number of the command with which the leader closed the run."""

    def serve(self) -> dict[str, Any]:
        """Follows the leader until it ends the search. Returns what it says then.

        Raises:
            RanksLost: the leader no longer answers.
        """
        while True:
            number, command = self.launch.next()
            if command["do"] == "end":
                return command
            if command["do"] not in ("rehearse", "run", "compare", "examine"):
                continue  # of a run that failed here
            plan, weighing = Plan.model_validate(command["plan"]), command["weighing"]
            self._weighing = None if weighing is None else Weighing.parse(weighing)
            if command["do"] == "rehearse":
                found = self.rehearse(plan, Purpose(command["purpose"]), command["most_s"])
                self.launch.reply(number, found.model_dump(mode="json"))
            elif command["do"] == "compare":
                self.launch.reply(number, self._objection(number, plan, command["limit_s"]))
            elif command["do"] == "examine":
                self._follow(plan, command["limit_s"], Examiner.model_validate(command["examiner"]))
            else:
                self._follow(plan, command["limit_s"], most_s=command["most_s"])

    def _objection(self, number: int, plan: Plan, limit_s: float) -> str:
        """Compares gradients as the leader does. Returns why that failed here, or ""."""
        try:
            self.compare(number, plan, limit_s)
        except RanksLost:
            raise
        except Exception as error:  # noqa: BLE001  # raised by the user's code, or because another rank has failed
            return failure_of(error, self.device).reason
        return ""

    def _follow(
        self, plan: Plan, limit_s: float, examiner: Examiner | None = None, most_s: float | None = None
    ) -> None:
        """Runs the steps of a plan that the leader announces, and says what came of it, or what an examiner says."""
        closed, failure, peaks, self._closed, text = None, None, list[Memory](), None, ""
        try:
            with self._group(plan, limit_s) as self._ranks:
                if examiner is None:
                    closed = self._watch.allowed(lambda: self._ran(plan, peaks), most_s or math.inf)
                else:
                    text = self._examined(examiner.model_copy(update={"seconds": math.inf}), plan)
                    closed = self._closed
        except (KeyboardInterrupt, RanksLost):
            raise
        except Overdue as error:
            failure = Outcome(status=Status.TIMED_OUT, reason=str(error))
        except BaseException as error:  # noqa: BLE001  # any failure of a plan is an outcome; SystemExit too
            failure = failure_of(error, self.device)
        finally:
            self._ranks = None
        gc.collect()  # the frames that held the failed step are gone, and with them its connections
        self._guard.restore_trained()
        self._put_back()
        while closed is None:
            number, command = self.launch.next()
            closed = number if command["do"] == "close" else None
        if examiner is not None:
            self.launch.reply(closed, text if failure is None else f"{FAILED}: {failure.reason}")
            return
        worst = max(peaks, key=lambda each: each.judged_bytes, default=None)
        said = {
            "failure": None if failure is None else failure.model_dump(mode="json"),
            "memory": None if worst is None else worst.model_dump(mode="json"),
        }
        self.launch.reply(closed, said)

    def _announce(self, parts: Sequence[Batch]) -> bool:
        """Waits until the leader runs a step too. Returns False if it has closed the run."""
        if self._ranks is None or self._ranks.is_fake:
            return True
        number, command = self.launch.next()
        self._closed = None if command["do"] == "step" else number
        return self._closed is None

    def _ran(self, plan: Plan, peaks: list[Memory]) -> int:
        """Runs steps until the leader closes them. Returns the number of that command."""
        source = self._batches.source(plan)
        typical, worst = self._typical(plan), source.worst(plan.micro_batch_size)
        self._make_ready()
        with self._build(plan) as step:
            while True:
                number, command = self.launch.next()
                if command["do"] != "step":
                    self.device.synchronize()
                    return number
                places = command["places"]
                if places[0] < WORST:
                    eager = torch.compiler.set_stance("force_eager") if step.draft.compiled else nullcontext()
                    with suppress(Exception), eager:  # the leader decides what its failure says of the plan
                        step(StepBatch.alike(unused(source.typical(WORST - places[0], 1), self.device.type)))
                elif set(places) == {WORST}:
                    peaks.append(self._metered(step, [worst] * len(places), plan.accumulation_steps))
                else:
                    known = typical.batches
                    parts = [worst if place == WORST else known[place % len(known)] for place in places]
                    step(StepBatch.alike(unused(parts, self.device.type)))

    def _metered(self, step: TrainStep, parts: Sequence[Batch], count: int) -> Memory:
        """Runs a step on the worst batch, and returns the memory of a whole step of `count` micro batches."""
        with self.device.meter(partial(static_bytes, step)) as reading:
            step(StepBatch.alike(unused(parts, self.device.type)))
        assert reading.memory is not None, "the meter has filled its reading"
        held = (count - len(parts)) * nbytes(parts[0]) if self.device.is_host else 0
        found = reading.memory
        more = {"allocated_bytes": found.allocated_bytes + held, "judged_bytes": found.judged_bytes + held}
        return found.model_copy(update=more)
