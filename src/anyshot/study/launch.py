"""Where the models of a study run: in processes of this machine, under torchrun, on Ray, on Slurm.

A launcher is a context that yields `submit(work, job)`, which returns something with `done()` and `result()`. That is
all in which they differ: the work, its order, its resuming and the table are the study's, and the same everywhere.
Folders of data and results must be seen by all machines; a lost worker's job is started again and goes on from there.
"""

import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from anyshot.errors import BadInput, as_bad_input

Work = Callable[[Any], str]


@runtime_checkable
class PendingJob(Protocol):
    """A job under way."""

    def done(self) -> bool: ...

    def result(self) -> str: ...


Submit = Callable[[Work, Any], PendingJob]
RETRIES = 5  # of a job whose machine was lost


def get_launcher(on: str, workers: int, threads: int, logs: Path) -> AbstractContextManager[Submit]:
    """The launcher that `on` names: here, ray, ray://address, or slurm."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _torchrun()
    if on == "here":
        return _here(workers)
    if on == "ray" or on.startswith("ray://"):
        return _ray(None if on == "ray" else on, threads)
    if on == "slurm":
        return _slurm(logs, threads)
    raise BadInput(f"a study runs on here, ray, ray://ADDRESS or slurm, not on {on!r}.")


@contextmanager
def _here(workers: int) -> Iterator[Submit]:
    """Processes of this machine; where it has GPUs, one GPU each."""
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(workers):
        numbers.put(number)
    with ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(), numbers)) as pool:
        try:
            yield pool.submit
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(parent: int, numbers: Any) -> None:
    number = numbers.get()
    import torch

    if gpus := torch.cuda.device_count():  # asked without waking them
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number % gpus)
    exit_with_parent(parent)


def exit_with_parent(parent: int) -> None:
    """A worker must not outlive its study, however the study ended."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _torchrun() -> Iterator[Submit]:
    """All processes that torchrun started work on each model together, one model after the other."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

    def submit(work: Work, job: Any) -> PendingJob:
        if failure := work(job):  # perhaps of this process only: it must not leave the others waiting
            raise BadInput(failure)
        future: Future[str] = Future()
        future.set_result("")
        return future

    try:
        yield submit
    finally:
        dist.destroy_process_group()


@contextmanager
def _ray(address: str | None, threads: int) -> Iterator[Submit]:
    """A task a model, with a GPU each where the cluster has any; a task whose machine is lost is started elsewhere."""
    with as_bad_input(ImportError, "`--on ray` needs the extra: pip install 'anyshot[ray]'."):
        import ray
    started = not ray.is_initialized()
    if started:
        ray.init(address, log_to_driver=False, logging_level="warning")
    gpus = 1 if ray.cluster_resources().get("GPU") else 0

    def submit(work: Work, job: Any) -> PendingJob:
        task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(work)
        return task.remote(job).future()

    try:
        yield submit
    finally:
        if started:
            ray.shutdown()


@contextmanager
def _slurm(logs: Path, threads: int, cluster: str = "slurm") -> Iterator[Submit]:
    """A Slurm job a model, through submitit; one that runs out of time or is preempted is queued again. Partition,
    account, time and GPUs are told by sbatch's own variables (SBATCH_PARTITION, SBATCH_TIMELIMIT, SBATCH_GRES, ...)."""
    with as_bad_input(ImportError, "`--on slurm` needs the extra: pip install 'anyshot[slurm]'."):
        import submitit
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise BadInput("`--on slurm` needs sbatch, and this machine has none: run it where jobs are submitted.")
    executor = submitit.AutoExecutor(folder=logs, cluster=cluster, slurm_max_num_timeout=RETRIES)
    executor.update_parameters(name="anyshot", timeout_min=24 * 60, cpus_per_task=threads)
    jobs: list[Any] = []

    def submit(work: Work, job: Any) -> PendingJob:
        jobs.append(executor.submit(_Again(work), job))
        return jobs[-1]

    try:
        yield submit
    finally:
        for job in jobs:
            if not job.done():
                job.cancel(check=False)


class _Again:
    """Work that is queued again as it was: what it had done lies in its folder."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, job: Any) -> str:
        return self.work(job)

    def checkpoint(self, job: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)
