"""Launchers: run the models of a study in processes of this machine, under torchrun, on Ray or on Slurm.

A launcher is a context that yields `submit(work, job)`, which returns a future, an object with `done()` and `result()`.
The result is the error message of the job, empty where it went well. Launchers differ in nothing else: the jobs, their
order, resuming and the tables belong to the study.
All machines must see the folders of data and results. The job of a lost worker is started again and resumes.
"""

import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from anyshot.concurrency import connect_ray
from anyshot.errors import BadInput, as_bad_input

Work = Callable[[Any], str]
Submit = Callable[[Work, Any], Any]
RETRIES = 5  # of a job whose machine was lost
# How long a process of torchrun waits for the others. One validates and tests while the others wait: hours for a large
# model, where torch's own limit is 10 minutes.
GROUP_TIMEOUT = timedelta(hours=12)


def get_launcher(on: str, workers: int, threads: int, logs: Path) -> AbstractContextManager[Submit]:
    """Return the launcher that `on` names: here, ray, ray://address, or slurm; under torchrun always torchrun's."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _use_torchrun()
    if on == "here":
        return _use_processes(workers)
    if on == "ray" or on.startswith("ray://"):
        return _use_ray(on, threads)
    if on == "slurm":
        return use_slurm(logs, threads)
    raise BadInput(f"a study runs on here, ray, ray://ADDRESS or slurm, not on {on!r}.")


@contextmanager
def _use_processes(workers: int) -> Iterator[Submit]:
    """Run jobs in processes of this machine; where it has GPUs and `--device` names none of them, on one GPU each."""
    import torch

    from anyshot.models.devices import training_device

    context = multiprocessing.get_context("spawn")
    gpus = [] if ":" in training_device() else visible_gpus(torch.cuda.device_count())
    own_gpus = context.Queue()
    for number in range(workers):
        own_gpus.put(gpus[number % len(gpus)] if gpus else "")
    with ProcessPoolExecutor(workers, context, _start_worker, (own_gpus,)) as pool:
        try:
            yield pool.submit
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(own_gpus: Any) -> None:
    if gpu := own_gpus.get():
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End this process when its parent ends: a worker must not outlive its study, however the study ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def visible_gpus(count: int) -> list[str]:
    """Return the GPUs that a study may use, as CUDA_VISIBLE_DEVICES names them.

    Args:
        count: How many torch sees. Where the user has set CUDA_VISIBLE_DEVICES, these are the first entries of it.
    """
    chosen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (chosen or [str(number) for number in range(count)])[:count]


@contextmanager
def _use_torchrun() -> Iterator[Submit]:
    """Run one job after the other, each in all processes that torchrun started."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=GROUP_TIMEOUT)

    def submit(work: Work, job: Any) -> Any:
        if failure := work(job):  # it may have failed in this process only: the others must not wait for it
            raise BadInput(failure)
        future: Future[str] = Future()
        future.set_result("")
        return future

    try:
        yield submit
    finally:
        dist.destroy_process_group()


@contextmanager
def _use_ray(on: str, threads: int) -> Iterator[Submit]:
    """Run each job as a Ray task, with a GPU each where the cluster has any; Ray retries tasks of lost machines."""
    with connect_ray(on) as ray:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0

        def submit(work: Work, job: Any) -> Any:
            task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(work)
            return task.remote(job).future()

        yield submit


@contextmanager
def use_slurm(logs: Path, threads: int, cluster: str = "slurm") -> Iterator[Submit]:
    """Run each job as a Slurm job, through submitit; one that runs out of time or is preempted is queued again.

    Partition, account, time and GPUs are set by sbatch's own variables (SBATCH_PARTITION, SBATCH_TIMELIMIT,
    SBATCH_GRES, ...).
    """
    with as_bad_input(ImportError, "`--on slurm` needs the extra: pip install 'anyshot[slurm]'."):
        import submitit
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise BadInput("`--on slurm` needs sbatch, and this machine has none: run it where jobs are submitted.")
    executor = submitit.AutoExecutor(folder=logs, cluster=cluster, slurm_max_num_timeout=RETRIES)
    executor.update_parameters(name="anyshot", timeout_min=24 * 60, cpus_per_task=threads)
    jobs: list[Any] = []

    def submit(work: Work, job: Any) -> Any:
        jobs.append(executor.submit(_Requeued(work), job))
        return jobs[-1]

    try:
        yield submit
    finally:
        for job in jobs:
            if not job.done():
                job.cancel(check=False)


class _Requeued:
    """Work that submitit queues again unchanged: it resumes from the model's folder."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, job: Any) -> str:
        return self.work(job)

    def checkpoint(self, job: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)
