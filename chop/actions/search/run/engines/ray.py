"""The engine that runs trials on a Ray cluster, or on a local Ray that it starts."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from chop.actions.search.run.engines.base import Event, Work
from chop.actions.search.run.engines.pool import STARTS, Member, PoolEngine
from chop.extras import install_command
from chop.system.processes import import_path

logger = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds without a worker after which a warning is logged
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set for a job of `ray job submit`, which has a folder
# we log the same in our words
SILENCE = {"RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass
class _Actor(Member):
    actor: Any
    asked: Any  # a reference to the answer; None while it has nothing to do


class RayEngine(PoolEngine[_Actor]):
    """Actors that each have the study in memory."""

    def __init__(
        self,
        packed: bytes,
        workers: int,
        trial_timeout: float | None = None,
        *,
        cpus: float = 1,
        gpus: float = 0,
        address: str | None = None,
    ) -> None:
        super().__init__(workers, trial_timeout)
        self._ray = import_ray()
        self._began = time.monotonic()
        self._is_our_ray = not self._ray.is_initialized()
        try:
            if self._is_our_ray:
                _connect(self._ray, address)
            self.slots = _slots(workers, self._ray.nodes(), cpus, gpus)
            resources = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
            self._class = self._ray.remote(_actor_class()).options(**resources)
            self._packed = self._ray.put(packed)
            self._members = [self._start() for _ in range(self.slots)]
        except BaseException:
            self.close()
            raise

    def _start(self) -> _Actor:
        actor = self._class.remote()
        return _Actor(actor, actor.begin.remote(import_path(), os.getcwd(), self._packed))

    def _send(self, member: _Actor, work: Work) -> None:
        member.asked = member.actor.run.remote(work)

    def _answered(self, seconds: float) -> list[_Actor]:
        self._warn_of_slow_start()
        asked = [member.asked for member in self._members if member.asked is not None]
        if not asked:
            time.sleep(seconds)
            return []
        answered, _ = self._ray.wait(asked, num_returns=1, timeout=seconds)
        return [member for member in self._members if member.asked in answered]

    def _receive(self, member: _Actor) -> list[Event]:
        try:
            answer = self._ray.get(member.asked)
        except self._ray.exceptions.RayError as error:
            self._replace(member, _reason(error))
            return self._lost(member, _reason(error))
        member.asked = None
        if member.ready:
            return [event for message in answer for event in self._take(member, message)]
        if answer is not None:
            raise ValueError(f"a worker of the Ray cluster could not start: {answer}")
        member.ready, self._lost_starts = True, 0
        return []

    def _replace(self, member: _Actor, reason: str) -> None:
        """Start another actor in the place of one that is lost."""
        self._lost_starts += not member.ready
        if self._lost_starts >= STARTS:
            raise ChildProcessError(
                f"{STARTS} workers of the Ray cluster in a row could not start: {reason}"
            )
        self._ray.kill(member.actor)
        self._members[self._members.index(member)] = self._start()

    def _kill(self, member: _Actor) -> None:
        self._replace(member, "it took too long")

    def _warn_of_slow_start(self) -> None:
        waited = time.monotonic() - self._began
        if waited < PATIENCE or any(member.ready for member in self._members):
            return
        self._began = math.inf  # one warning is enough
        logger.warning(
            "The Ray cluster has not started a worker after %.0f seconds; run `ray "
            "status` to see what keeps it busy",
            waited,
        )

    def close(self) -> None:
        for member in self._members:
            self._ray.kill(member.actor)
        self._members = []
        if self._is_our_ray:  # a Ray that was running already is left alone
            self._ray.shutdown()


def import_ray() -> Any:
    """Import Ray without its messages."""
    for key, value in SILENCE.items():
        os.environ.setdefault(key, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
            import ray.exceptions
    except ImportError as error:
        raise ValueError(
            f"--engine ray needs Ray, which is not installed; {install_command('cluster')}"
        ) from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """Connect to the cluster at `address`, of RAY_ADDRESS or of `ray start`, or start a local Ray.

    address="auto" would join the private Ray of any process of this machine, and end with that.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _signals_kept(), warnings.catch_warnings(), TemporaryDirectory() as empty:
            warnings.simplefilter("ignore")
            # without a folder for the job, Ray's workers import from the current one
            environment = {} if SUBMITTED in os.environ else {"working_dir": empty}
            options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
            options |= {"include_dashboard": False} if address is None else {"address": address}
            ray.init(**options, runtime_env=environment)
    except Exception as error:  # Ray raises what it likes
        reason = str(error).strip().partition("\n")[0]
        raise ConnectionError(
            f"--engine ray cannot reach or start Ray: {reason}; check that the cluster "
            f"is running, or give the address of another with --ray-address"
        ) from error


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _slots(workers: int, nodes: Iterable[Mapping[str, Any]], cpus: float, gpus: float) -> int:
    """Return the number of workers that the cluster has room for."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    room = sum(_room(node, cpus, gpus) for node in alive)
    if room >= workers:
        return workers
    each = f"{cpus:g} CPUs and {gpus:g} GPUs"
    if room == 0:
        raise ValueError(
            f"no machine of the Ray cluster has {each}, which each trial needs; lower "
            f"cpus_per_trial or gpus_per_trial in search.strategy.setup"
        )
    logger.warning(
        "The Ray cluster has room for %d of %d workers with %s each; starting %d",
        *(room, workers, each, room),
    )
    return int(room)


def _room(node: Mapping[str, float], cpus: float, gpus: float) -> float:
    """Return how many trials a machine can hold; infinitely many that need nothing."""
    wanted = {"CPU": cpus, "GPU": gpus}
    fits = [node.get(name, 0.0) / amount + 1e-9 for name, amount in wanted.items() if amount]
    return min((int(fit) for fit in fits), default=float("inf"))


def _reason(error: Exception) -> str:
    """Return Ray's reason of a loss as one sentence: it comes last, before advice."""
    line = str(error).strip().splitlines()[-1]
    return f"its Ray worker was lost: {line.partition('. ')[0].rstrip('.')}"


def _actor_class() -> type:
    """Return a class that Ray sends by value, as a worker does not know where `chop` is."""

    class Trials:
        def begin(self, path: list[str], folder: str, packed: bytes) -> str | None:
            """Make the worker; return the error, if any."""
            import contextlib
            import logging
            import os
            import sys

            sys.path[:] = dict.fromkeys([*path, *sys.path])
            with contextlib.suppress(OSError):  # of another machine
                os.chdir(folder)
            try:
                from chop.actions.search.run.worker import Worker
                from chop.actions.search.spec.study_spec import unpacked

                logging.getLogger("chop").setLevel(logging.ERROR)
                self.worker = Worker(unpacked(packed))
            except Exception as error:
                return f"{error}"
            return None

        def run(self, work: Any) -> Any:
            from chop.actions.search.run.engines.base import reported

            return list(reported(self.worker, work))

    return Trials
