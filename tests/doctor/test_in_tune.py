"""What `autofit tune` says of a finding at its end, and that nothing else depends on it."""

import gc
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit import devices
from autofit.core.briefing import DOCTOR, Examiner, Options
from autofit.core.errors import DevicePoisoned
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.doctor import in_tune
from autofit.doctor.diagnose import observed
from autofit.doctor.diagnosis import Diagnosis, Finding, Size
from autofit.doctor.loops import ALONE
from autofit.doctor.session import COMPILED, Session
from autofit.fit import Fit
from autofit.probing.local_bench import LocalBench
from autofit.search.evidence import FOUND_BY_DOCTOR
from autofit.workloads.step import StepBatch, TrainStep
from autofit.workloads.workload import Workload
from tests.cli.processes import TARGETS, command, environment
from tests.cli.targets import make_keeping
from tests.digests import digest_of
from tests.probing.benches import CPU

BY = Examiner(function=DOCTOR, more="`autofit doctor`")
OPTIONS = Options(memory_budget="1GiB", strategies=("batching",))


def tuned(mended: bool, study: str = ":memory:", **more: Any) -> Fit:
    given = make_keeping(mended) | {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1)} | more
    model, loader = given.pop("model"), given.pop("loader")
    given |= {"strategies": ["batching"], "memory_budget": "1GiB", "device": "cpu", "progress": False}
    return autofit.tune(model, loader, study=study, **given)


def bench_of(device: Any = None, **changes: Any) -> LocalBench:
    return LocalBench(Workload(**make_keeping() | changes), device or devices.host(), OPTIONS)


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Diagnosis]:
    """Returns a list that gets each diagnosis that is asked for a sentence."""
    found, sentence = list[Diagnosis](), in_tune.sentence

    def kept(diagnosis: Diagnosis, more: str) -> str:
        found.append(diagnosis)
        return sentence(diagnosis, more)

    monkeypatch.setattr(in_tune, "sentence", kept)
    return found


def test_a_finding_is_the_last_line_of_text_plan_file_and_report(tmp_path: Path) -> None:
    fit = tuned(mended=False, study=str(tmp_path / "study.journal"))
    line = fit.caveats[-1]
    assert line.startswith("doctor: `model.outputs` in tuned (tests/doctor/test_in_tune.py:")
    assert ") keeps float32 [" in line
    assert ", made at tests/cli/targets.py:" in line
    assert line.endswith(" of the peak; `autofit.diagnose(model, loader)` says more")
    for text in (str(fit), fit.details()):
        assert " ".join(text.rpartition("\n\n")[2].split()) == line
        assert text.count("doctor:") == 1
    fit.save(tmp_path / "autofit.yaml")
    assert str(autofit.load(tmp_path / "autofit.yaml")).count("doctor: ") == 1
    fit.report(tmp_path / "of_fit.html")
    assert (tmp_path / "of_fit.html").read_text().count("doctor: `model.outputs`") >= 1
    words = command("report", str(tmp_path / "study.journal"), "-o", str(tmp_path / "of_study.html"))
    subprocess.run(words, cwd=tmp_path, env=environment(), check=True, capture_output=True)
    assert "doctor: `model.outputs`" in (tmp_path / "of_study.html").read_text()


def test_mended_code_has_no_line() -> None:
    fit = tuned(mended=True)
    assert not any(text.startswith(FOUND_BY_DOCTOR) for text in fit.caveats)
    assert "doctor:" not in str(fit)


def test_everything_is_as_before_and_the_search_counts_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    given = make_keeping()
    model, loader = given["model"], given["loader"]
    optimizer = torch.optim.AdamW(model.parameters())
    looked = looked_at(monkeypatch)
    before, backward = digest_of(model, optimizer, loader), torch.autograd.backward
    fit = tuned(mended=False, **given | {"optimizer": optimizer})
    assert len(looked) == 1
    assert fit.caveats[-1].startswith(FOUND_BY_DOCTOR)
    assert digest_of(model, optimizer, loader) == before
    assert torch.autograd.backward is backward
    assert gc.isenabled()
    assert not hasattr(model, "outputs")
    assert not ALONE.locked()
    assert fit.answer.duration_s > 0
    assert set(fit.answer.counts) == {"measured"}


def test_an_evaluation_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_tune, "finding", lambda *asked: pytest.fail("it was"))
    assert tuned(mended=False, mode="inference", step_fn=None).caveats


def fails(*asked: object) -> Any:
    raise ValueError("a defect")


def exits(*asked: object) -> Any:
    raise SystemExit(3)


def lacks_memory(*asked: object) -> Any:
    raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("inside", [fails, exits, lacks_memory])
def test_a_failure_inside_says_nothing_and_changes_nothing(
    inside: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench_of() as bench:
        state = digest_of(bench.workload.model)
        plan = bench.briefing.space.baseline
        with monkeypatch.context() as patch:
            patch.setattr(in_tune, "observed", inside)
            assert bench.examine(BY, plan) == ""
        assert not ALONE.locked()
        assert digest_of(bench.workload.model) == state
        assert bench.examine(BY, plan).startswith("doctor: ")
        assert bench.evaluate(plan, Purpose.PROOF).status is Status.MEASURED
        assert digest_of(bench.workload.model) == state


def test_a_failure_inside_leaves_the_answer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_tune, "observed", fails)
    fit = tuned(mended=False)
    assert fit.proof.proven
    assert not any(text.startswith(FOUND_BY_DOCTOR) for text in fit.caveats)
    assert "interrupted" not in fit.stopped


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_step_that_fails_under_the_watch_says_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[int]()

    def failing(session: Session, step: TrainStep, batch: Callable[[], StepBatch]) -> Diagnosis:
        def step_that_fails(each: StepBatch) -> Any:
            runs.append(1)
            found = step(each)
            if len(runs) == number:
                raise ValueError("only sometimes")
            return found

        return observed(session, step_that_fails, batch)  # type: ignore[arg-type]  # it is called as one

    monkeypatch.setattr(in_tune, "observed", failing)
    with bench_of() as bench:
        assert bench.examine(BY, bench.briefing.space.baseline) == ""
    assert len(runs) == number


class Dying(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device that stops answering when it is told to."""

    dead = False

    def synchronize(self) -> None:
        if self.dead:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_device_that_dies_inside_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Dying()

    def dies(*asked: object) -> Any:
        device.dead = True
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(in_tune, "observed", dies)
    bench = bench_of(device)
    with pytest.raises(DevicePoisoned), bench:
        bench.examine(BY, bench.briefing.space.baseline)


def test_too_little_time_inside_says_nothing() -> None:
    with bench_of() as bench:
        assert bench.examine(BY, bench.briefing.space.baseline, limit_s=0.0) == ""


def test_another_observation_in_this_process_is_left_alone() -> None:
    with bench_of() as bench, ALONE:
        assert bench.examine(BY, bench.briefing.space.baseline) == ""
        assert ALONE.locked()


def test_only_what_takes_much_of_the_peak_is_said_and_the_rest_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked_at(monkeypatch)
    with bench_of() as bench:
        bench.examine(BY, bench.briefing.space.baseline)

    def of(*sizes: Size | None, **more: Any) -> str:
        findings = tuple(Finding(id="x", what=f"x{n}", remedy="", size=size) for n, size in enumerate(sizes))
        return in_tune.sentence(found[0].model_copy(update={"peak_bytes": 1000, "findings": findings, **more}), "y")

    small, large, larger = Size(peak_bytes=50), Size(peak_bytes=51), Size(peak_bytes=400, bound="at most")
    assert of(small, None, Size(bytes_per_step=10**9)) == ""
    assert of(small, large) == "doctor: x1: 5% of the peak; y says more"
    assert of(large, larger, small) == "doctor: x1: at most 40% of the peak, and 1 more; y says more"
    assert of(large, failed=True) == ""
    assert of(large, notes=(COMPILED,)).endswith(" of the peak of uncompiled steps; y says more")
    minor = Finding(id="x", what="x", remedy="", size=large, minor=True)
    assert in_tune.sentence(found[0].model_copy(update={"peak_bytes": 1000, "findings": (minor,)}), "y") == ""


@pytest.mark.parametrize("mended", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_ends_with_the_line(mended: bool, tmp_path: Path) -> None:
    arguments = ["--strategies", "batching", "--device", "cpu", "--memory", "1GiB", "--arg", f"mended={mended}"]
    words = command("tune", f"{TARGETS}:make_keeping", *arguments)
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "looking at the steps of micro batch" in done.stderr
    last = " ".join(done.stdout.rpartition("\n\n")[2].split())
    assert last.startswith("doctor: `model.outputs` keeps") is not mended
    if not mended:
        assert last.endswith(f"of the peak; `autofit doctor {TARGETS}:make_keeping --arg mended=False` says more")


@pytest.mark.parametrize("value", ["default", "reduce-overhead"])
@pytest.mark.parametrize("mended", [False, True])
def test_a_compiled_plan_is_examined_uncompiled(mended: bool, value: str) -> None:
    workload, options = Workload(**make_keeping(mended)), OPTIONS.model_copy(update={"strategies": None})
    with LocalBench(workload, devices.host(), options) as bench:
        baseline = bench.briefing.space.baseline
        plan = baseline.model_copy(update={"values": {**baseline.values, "compile": value}})
        compiled = counters["frames"]["total"]
        line = bench.examine(BY, plan)
        assert counters["frames"]["total"] == compiled, "nothing was compiled for it"
        assert line.startswith("doctor: `model.outputs` keeps") is not mended
        assert mended or line.endswith(" of the peak of uncompiled steps; `autofit doctor` says more")


def test_a_plain_model_has_no_line_under_any_plan() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    data = TensorDataset(torch.randn(512, 64), torch.randint(64, (512,)))
    workload = Workload(model, DataLoader(data, batch_size=128), loss_fn=F.cross_entropy)
    options = Options(memory_budget="1GiB", numerics="any", without=("compilation",))
    with LocalBench(workload, devices.host(), options) as bench:
        space = bench.briefing.space
        values = [(knob.name, v) for knob in space.knobs for v in knob.values if v != knob.default]
        plans = [space.baseline.model_copy(update={"values": {**space.baseline.values, n: v}}) for n, v in values]
        assert len(plans) > 2
        assert [bench.examine(BY, plan) for plan in (space.baseline, *plans)] == [""] * (len(plans) + 1)
