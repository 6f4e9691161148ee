"""Optuna's TPE over the knobs that autofit has, each trial in a forked process of its own."""

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
from autofit.probing.workload_facts import facts_of
from autofit.strategies import members
from scripts.bench.peers.models import STEPS, Problem

TIMED = 4
"""Steps that a TPE trial times, as many as a block of autofit's race."""
TRIAL_S = 30
"""A TPE trial that takes longer is ended, and worth nothing: a convolution in fp16 may take minutes here."""
WARM_UP_TIMES = 8
"""A TPE trial's first step, in which kernels are made for its size, may take this many budgets."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
UNDER_LIMIT, ORDINARY = (2**16, 2**16), (2**26, 2**25)
"""malloc's thresholds to trim and to map, in bytes: those of autofit's proof; and where glibc's own moving ones end."""

Finder = Callable[[Problem, float], Plan]


def tpe() -> Finder:
    """Returns plain Optuna: TPE over autofit's own knobs, each trial in a forked process, the best value wins."""
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
    """Returns the knobs beside the batch that autofit has on this model, with their values."""
    source, cpu = problem.source, devices.choose("cpu")
    facts = facts_of(problem.workload, source, cpu, Options(), dataset_size=source.length)
    knobs = chain.from_iterable(member.offer(facts).knobs for member in members())
    return {knob.name: knob.values for knob in knobs if knob.name not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)}


def _forked(problem: Problem, plan: Plan) -> float:
    """Runs a plan in a forked process; returns its samples per second, 0 where it does not run."""
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
    told: dict[str, float] = {"speed": 0.0, "steps": 0, "failures": 0}
    try:
        if mine.poll(TRIAL_S):
            told = mine.recv()
    except EOFError:  # it died, in a place where nothing could be said any more
        told["failures"] = 1
    child.kill()
    child.join()
    mine.close()
    problem.steps += int(told["steps"])
    problem.failures += int(told["failures"])
    if told["speed"]:
        problem.ran.add(plan.key)
    return float(told["speed"])


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
    return plan.micro_batch_size / fmean(times)  # batches differ in length: the median of them is no measure


def _malloc(trim: int, map_: int) -> None:
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_TRIM_THRESHOLD, trim)
    mallopt(M_MMAP_THRESHOLD, map_)
