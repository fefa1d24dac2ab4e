"""One process per job: how it answers, how it dies, and that nothing of it stays behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import running
from tests.worker import faults
from tests.worker.waiting import PATIENCE_S, drained, is_gone, last, result, until
from worker.child import Child, SparePool
from worker.child_process import PROGRESS_S
from worker.messages import Failed, Progressed, Stopped, describe


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(warm=False) as child:
        yield child


def test_a_task_runs_elsewhere_and_its_result_comes_back(child: Child) -> None:
    assert child.alive

    child.start(faults.Echo(value=Path("x")), {"job": "job_1", "model": "mdl_1"})
    reported = result(drained(child)[-1])

    assert reported["value"] == Path("x")
    assert reported["pid"] == child.pid
    assert reported["context"] == {"job": "job_1", "model": "mdl_1"}
    assert reported["loaded"] is False
    assert reported["interrupt"] == signal.SIG_IGN
    assert reported["blocked"] == set()
    until(lambda: not child.alive)
    assert result(child.poll(0)) == reported  # type: ignore[arg-type]


def test_progress_comes_in_order_and_reaches_the_newest(child: Child) -> None:
    child.start(faults.Echo(steps=50), {})

    *progress, _ = drained(child)

    fractions = [event.fraction for event in progress if isinstance(event, Progressed)]
    assert fractions == sorted(set(fractions))
    assert progress[-1] == Progressed("step 49", 49 / 50, {"step": 49.0})


def test_within_a_stage_progress_is_told_now_and_then(child: Child) -> None:
    child.start(faults.Chatter(seconds=3 * PROGRESS_S), {})

    *progress, finished = drained(child)

    reports = result(finished)
    assert reports["count"] > 100
    assert 1 <= len(progress) <= 1 + reports["seconds"] / PROGRESS_S


def test_a_parent_who_does_not_read_holds_up_nothing(child: Child, tmp_path: Path) -> None:
    """Thousands of reports are far more than a pipe holds."""
    operation = faults.ChangingStages(count=5000, done=tmp_path / "done")

    child.start(operation, {})
    until(operation.done.exists)  # before anything was read
    events = drained(child)

    assert result(events[-1]) == operation.count
    assert len(events) < operation.count
    newest = events[-2]
    assert isinstance(newest, Progressed)
    assert newest.stage.startswith(f"{operation.count - 1} ")


@pytest.mark.parametrize("kind", ["value", "unpicklable"])
def test_an_exception_is_told_with_where_it_came_from(child: Child, kind: str) -> None:
    failed = last(child, faults.Raise(kind))

    assert isinstance(failed, Failed)
    assert (failed.code, failed.hint, failed.retryable) == ("internal_error", None, True)
    error = faults.ERRORS[kind]
    assert failed.message.endswith(f"{type(error).__name__}: {error}")
    assert "raise ERRORS[self.kind]" in (failed.traceback or "")


def test_an_error_of_the_input_keeps_its_code_and_is_final(child: Child) -> None:
    failed = last(child, faults.Raise("target"))

    assert failed == Failed("invalid_target", "no images", "add some", False, None)


@pytest.mark.parametrize(
    ("kind", "code", "reported"),
    [
        ("missing", "internal_error", None),
        ("memory", "out_of_memory", "GRASP_JOB_MEMORY_BYTES"),
        ("torch memory", "out_of_memory", "micro_batch"),
        ("cuda memory", "out_of_memory", "micro_batch"),
        ("unmapped", "out_of_memory", "micro_batch"),  # a CheckpointError, though not its fault
        ("full", "storage_full", "free some space"),
        ("limited", "storage_full", "free some space"),
    ],
)
def test_what_the_machine_lacks_is_not_the_inputs_fault(
    kind: str, code: str, reported: str | None
) -> None:
    failed = describe(faults.ERRORS[kind])

    assert (failed.code, failed.retryable) == (code, True)
    assert type(faults.ERRORS[kind]).__name__ in failed.message
    assert failed.hint is None if reported is None else reported in (failed.hint or "")


def test_a_result_that_cannot_travel_is_an_error_and_not_a_silence(child: Child) -> None:
    class Local:
        pass

    with pytest.raises((AttributeError, TypeError)):  # nor can such an operation
        child.start(faults.Echo(value=Local()), {})

    failed = last(child, faults.ReturnLambda())

    assert isinstance(failed, Failed)
    assert failed.code == "internal_error"
    assert "lambda" in failed.message


def test_a_task_that_the_child_cannot_load_fails(child: Child) -> None:
    failed = last(child, faults.CannotLoad())

    assert isinstance(failed, Failed)
    assert (failed.code, failed.message) == ("internal_error", "LookupError: not here")


@pytest.mark.parametrize(
    ("how", "code", "reported"),
    [
        ("SIGKILL", "child_killed", "out-of-memory killer"),
        ("SIGTERM", "child_crashed", "SIGTERM"),
        ("SIGILL", "child_crashed", "SIGILL"),
        ("fault", "child_crashed", "SIGSEGV"),
        ("exit", "child_crashed", "exit code 3"),
        ("_exit", "child_crashed", "exit code 0"),
    ],
)
def test_a_process_that_dies_without_an_answer_has_failed(
    child: Child, how: str, code: str, reported: str
) -> None:
    child.start(faults.Die(how), {})

    *_, failed = drained(child)

    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (code, True)
    assert reported in failed.message
    assert ("ONEDNN_MAX_CPU_ISA" in (failed.hint or "")) == (how == "SIGILL")
    assert child.poll(0) == failed
    assert not child.alive


def test_a_child_killed_before_its_task_has_failed_too(child: Child) -> None:
    child.kill()

    child.start(faults.Echo(), {})
    child.ask_to_stop()
    failed = child.poll(PATIENCE_S)

    assert isinstance(failed, Failed)
    assert failed.code == "child_killed"


def test_it_stops_when_asked(child: Child, tmp_path: Path) -> None:
    child.start(faults.Forever(tmp_path / "began"), {})
    until((tmp_path / "began").exists)

    child.ask_to_stop()

    assert drained(child)[-1] == Stopped()


def test_it_is_killed_in_the_middle(child: Child, tmp_path: Path) -> None:
    child.start(faults.Forever(tmp_path / "began"), {})
    until((tmp_path / "began").exists)

    child.kill()
    child.kill()

    assert is_gone(child.pid)
    assert not child.alive
    failed = drained(child)[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "child_killed"


def test_closing_ends_what_runs_and_can_be_repeated(tmp_path: Path) -> None:
    with Child(warm=False) as child:
        child.start(faults.Forever(tmp_path / "began"), {})
        until((tmp_path / "began").exists)

    child.close()
    child.kill()
    child.ask_to_stop()

    assert is_gone(child.pid)
    assert not child.alive
    assert child.poll(0) is None


def test_an_interrupt_is_the_parents_business(child: Child, tmp_path: Path) -> None:
    process = psutil.Process(child.pid)
    process.send_signal(signal.SIGINT)  # at once, while Python itself still starts
    child.start(faults.Forever(tmp_path / "began"), {})
    until((tmp_path / "began").exists)
    process.send_signal(signal.SIGINT)

    child.ask_to_stop()

    assert drained(child)[-1] == Stopped()


def test_setup_comes_first() -> None:
    with Child(warm=False, threads=3, setup=faults.mark_setup) as child:
        reported = result(last(child, faults.Echo()))

    assert reported["context"] == {"setup": "done", "torch": "False"}
    assert reported["threads"] == "3"


def test_a_setup_that_fails_is_told() -> None:
    with Child(warm=False, setup=faults.fail_setup) as child:
        failed = last(child, faults.Echo())

        assert isinstance(failed, Failed)
        assert failed.message == "ValueError: no logs today"
        assert not child.ready


def test_a_tensor_beyond_the_limit_fails_and_one_below_does_not() -> None:
    with Child(warm=False, threads=1, memory_limit=2**32) as child:
        child.start(faults.Allocate(sizes=(2**26, 2**33)), {})
        allocated, failed = drained(child)

    assert allocated == Progressed(f"{2**26} bytes", 0.0, {"sum": 2.0**26})
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == ("out_of_memory", True)
    assert str(2**33) in failed.message


def test_a_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """Not even a parent killed by SIGKILL, nor in the middle of one long torch operation."""
    began = tmp_path / "began"
    script = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.worker import faults
from tests.worker.waiting import PATIENCE_S, drained, is_gone, last, result, until
from worker.child import Child
if __name__ == "__main__":
    child = Child(warm=False, threads=1)
    child.start(faults.LongOperation(Path({str(began)!r})), {{}})
    time.sleep({PATIENCE_S})
"""
    file = tmp_path / "parent.py"
    file.write_text(script)
    with running([sys.executable, file]) as parent:
        until(lambda: began.exists() and began.read_text())
        pid = int(began.read_text())
        try:
            assert not is_gone(pid)
            parent.kill()
            parent.wait()
            until(lambda: is_gone(pid))
        finally:
            if not is_gone(pid):
                psutil.Process(pid).kill()


def test_a_spare_waits_and_is_taken() -> None:
    made: list[Child] = []

    def make() -> Child:
        made.append(Child(warm=False))
        return made[-1]

    with SparePool(make) as spares:
        assert len(made) == 1
        until(lambda: made[0].ready)

        first = spares.take()
        assert first is made[0]
        assert len(made) == 2  # the next is on its way

        made[1].kill()
        second = spares.take()
        assert second is made[2]  # the dead one is not given away
        assert len(made) == 4

    assert [child.alive for child in made] == [True, False, True, False]
    for child in (first, second):
        assert result(last(child, faults.Echo()))["pid"] == child.pid
        child.close()


def test_without_a_spare_children_are_made_when_needed() -> None:
    made: list[int] = []

    def make() -> Child:
        made.append(1)
        return Child(warm=False)

    with SparePool(make, spare=False) as spares:
        assert made == []
        spares.take().close()
        assert made == [1]


def test_importing_tasks_and_children_loads_no_torch() -> None:
    code = "import sys, worker.child, grasp_core.operations; print('torch' in sys.modules)"

    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )

    assert process.stdout.strip() == "False"
