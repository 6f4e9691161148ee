"""Optuna's TPE over autofit's knobs, with each trial in its own forked process."""

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain, islice
from multiprocessing import get_context
from statistics import fmean
from time import perf_counter
from typing import Any

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.probing.opening import facts_of
from autofit.strategies import members
from autofit.workloads.first_loss import loss_of
from scripts.bench.peers.models import STEPS, Problem

TIMED = 4
"""Number of timed steps of a trial, the same as in a block of autofit's race."""
TRIAL_S = 30
"""A trial that takes longer is killed and scores 0: a convolution in fp16 may take minutes on a CPU."""
WARM_UP_TIMES = 8
"""Memory limit of the first step of a trial, as a multiple of the budget: kernels for its size are created in it."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
UNDER_LIMIT, ORDINARY = (2**16, 2**16), (2**26, 2**25)
"""Trim and mmap thresholds of malloc, in bytes: those of autofit's proof, and the maximum of glibc's dynamic ones."""

Finder = Callable[[Problem, float], Plan]


def tpe() -> Finder:
    """Returns plain Optuna: TPE over autofit's knobs, each trial in a forked process; the best value wins."""
    import optuna  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def find(problem: Problem, seconds: float) -> Plan:
        knobs = _knobs(problem)

        def plan(chosen: Mapping[str, Any]) -> Plan:
            return Plan(values={ACCUMULATION_STEPS: 1, **chosen})

        def objective(trial: optuna.Trial) -> float:
            trial.suggest_int(MICRO_BATCH_SIZE, 1, problem.most, log=True)
            for name, values in knobs.items():
                trial.suggest_categorical(name, values)
            return _forked(problem, plan(trial.params))

        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(objective, timeout=seconds)
        return plan(study.best_params)

    return find


def _knobs(problem: Problem) -> dict[str, tuple[Any, ...]]:
    """Returns autofit's knobs for this model, except those of the batch, with their values."""
    workload, source, cpu = problem.workload, problem.source, devices.choose("cpu")
    budget, loss = cpu.budget(None, source.varies), loss_of(workload, source, cpu.torch_device)
    facts = facts_of(workload, source, cpu, Options(), budget, loss)
    knobs = chain.from_iterable(member.offer(facts).knobs for member in members())
    return {knob.name: knob.values for knob in knobs if knob.name not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)}


def _forked(problem: Problem, plan: Plan) -> float:
    """Runs a plan in a forked process; returns its samples per second, or 0 if it does not run."""
    context = get_context("fork")
    mine, its = context.Pipe(duplex=False)

    def run() -> None:
        steps, problem.steps = problem.steps, 0
        speed, before = 0.0, problem.failures
        with suppress(RuntimeError, MemoryError), problem.watched():
            speed = _speed(problem, plan)
        its.send({"speed": speed, "steps": problem.steps, "failures": problem.failures - before})
        problem.steps = steps

    child = context.Process(target=run)
    child.start()
    its.close()
    answer: dict[str, float] = {"speed": 0.0, "steps": 0, "failures": 0}
    try:
        if mine.poll(TRIAL_S):
            answer = mine.recv()
    except EOFError:  # the process died before it could report
        answer["failures"] = 1
    child.kill()
    child.join()
    mine.close()
    problem.steps += int(answer["steps"])
    problem.failures += int(answer["failures"])
    if answer["speed"]:
        problem.ran.add(plan.key)
    return float(answer["speed"])


def _speed(problem: Problem, plan: Plan) -> float:
    """Returns the samples per second of a plan whose steps fit."""
    batches = problem.batches(plan.micro_batch_size)
    held = list(islice(batches, STEPS + TIMED))
    with problem.draft(plan) as step:
        with problem.limited(WARM_UP_TIMES * problem.budget_bytes):
            step(held[0])
        _malloc(*UNDER_LIMIT)
        with problem.limited():
            for batch in held[:STEPS]:
                step(batch)
        _malloc(*ORDINARY)
        step(held[0])
        times = []
        for batch in held[STEPS:]:
            began = perf_counter()
            step(batch)
            times.append(perf_counter() - began)
    return plan.micro_batch_size / fmean(times)  # the mean, because batches differ in length


def _malloc(trim: int, map_: int) -> None:
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_TRIM_THRESHOLD, trim)
    mallopt(M_MMAP_THRESHOLD, map_)
