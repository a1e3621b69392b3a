"""Trials as tasks of a Ray cluster, or of a Ray of our own on this machine."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from chop.actions.search.run.engines.base import (
    Event,
    Note,
    WarningRelay,
    Work,
    WorkerDied,
    overdue,
)
from chop.processes import import_path

logger = logging.getLogger(__name__)

STARTS = 3  # workers in a row that may be lost before one of them is ready
PATIENCE = 60.0  # seconds without a worker after which that is said
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set for a job of `ray job submit`, which has a folder
# what Ray tells the driver by itself; we say the same in our words
SILENCE = {"RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass
class _Member:
    """An actor, and what it was last asked."""

    actor: Any
    asked: Any  # a reference to the answer; None while it has nothing to do
    ready: bool = False
    task: Work | None = None
    since: float = 0.0


class RayEngine:
    """Actors that each have the problem in memory; tasks wait here until one of them is ready."""

    in_order = False

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
        self._ray = import_ray()
        self._timeout, self._members = trial_timeout, list[_Member]()
        self._waiting: deque[Work] = deque()
        self._lost_starts, self._began, self._said = 0, time.monotonic(), False
        self._warnings = WarningRelay()
        self._ours = not self._ray.is_initialized()
        try:
            if self._ours:
                _connect(self._ray, address)
            self.slots = _slots(workers, self._ray.nodes(), cpus, gpus)
            resources = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
            self._class = self._ray.remote(_actor_class()).options(**resources)
            self._packed = self._ray.put(packed)
            self._members = [self._start() for _ in range(self.slots)]
        except BaseException:
            self.close()
            raise

    def _start(self) -> _Member:
        actor = self._class.remote()
        return _Member(actor, actor.begin.remote(import_path(), os.getcwd(), self._packed))

    def free(self) -> int:
        return self.slots - len(self._waiting) - sum(m.task is not None for m in self._members)

    def submit(self, work: Work) -> None:
        self._waiting.append(work)
        self._hand_out()

    def _hand_out(self) -> None:
        """Only who is ready gets a task, so that a worker that never comes holds up nothing."""
        for member in self._members:
            if self._waiting and member.ready and member.task is None:
                member.task, member.since = self._waiting.popleft(), time.monotonic()
                member.asked = member.actor.run.remote(member.task)

    def wait(self, seconds: float) -> Sequence[Event]:
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, min(until, self._next_deadline()) - time.monotonic())
            events = [e for member in self._answered(left) for e in self._heard(member)]
            events += [e for member in self._late() for e in self._killed(member)]
            self._hand_out()
            if events or time.monotonic() >= until:
                self._complain()
                return events

    def _answered(self, seconds: float) -> list[_Member]:
        asked = [member.asked for member in self._members if member.asked is not None]
        if not asked:
            time.sleep(seconds)
            return []
        there, _ = self._ray.wait(asked, num_returns=1, timeout=seconds)
        return [member for member in self._members if member.asked in there]

    def _heard(self, member: _Member) -> list[Event]:
        try:
            said = self._ray.get(member.asked)
        except self._ray.exceptions.RayError as error:
            return self._buried(member, _reason(error))
        member.asked = None
        if not member.ready:
            if said is not None:
                raise ValueError(f"a worker of the Ray cluster could not start: {said}")
            member.ready, self._lost_starts = True, 0
            return []
        member.task = None
        for note in (each for each in said if isinstance(each, Note)):
            self._warnings.pass_on(note)
        return [each for each in said if not isinstance(each, Note)]

    def _buried(self, member: _Member, reason: str) -> list[Event]:
        """Its trial is free again, and another actor takes its place."""
        self._lost_starts += not member.ready
        if self._lost_starts >= STARTS:
            raise ChildProcessError(
                f"{STARTS} workers of the Ray cluster in a row could not start: {reason}"
            )
        self._ray.kill(member.actor)
        self._members[self._members.index(member)] = self._start()
        numbers = () if member.task is None else member.task.numbers
        return [WorkerDied(number, reason) for number in numbers]

    def _deadline(self, member: _Member) -> float:
        if member.task is None or self._timeout is None:
            return float("inf")
        return member.since + self._timeout * len(member.task.numbers)

    def _next_deadline(self) -> float:
        return min(self._deadline(member) for member in self._members)

    def _late(self) -> list[_Member]:
        now = time.monotonic()
        return [member for member in self._members if self._deadline(member) <= now]

    def _killed(self, member: _Member) -> list[Event]:
        assert member.task is not None
        assert self._timeout is not None
        self._buried(member, "it took too long")
        return [overdue(number, self._timeout) for number in member.task.numbers]

    def _complain(self) -> None:
        waited = time.monotonic() - self._began
        if self._said or waited < PATIENCE or any(member.ready for member in self._members):
            return
        self._said = True
        logger.warning(
            "The Ray cluster has not started a worker after %.0f seconds; run `ray "
            "status` to see what keeps it busy",
            waited,
        )

    def close(self) -> None:
        for member in self._members:
            self._ray.kill(member.actor)
        self._members, self._waiting = [], deque()
        if self._ours:  # what we started ends, from what we found we take leave
            self._ray.shutdown()


def import_ray() -> Any:
    """Ray, quiet."""
    for key, value in SILENCE.items():
        os.environ.setdefault(key, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
            import ray.exceptions
    except ImportError as error:
        raise ValueError(
            "--engine ray needs Ray, which is not installed; "
            '.venv/bin/pip install -c constraints.txt -e ".[cluster]"'
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
            # without a folder of the job's own, Ray's workers import from the present one
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
    """Ray would take SIGTERM, for which the search has an answer of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _slots(workers: int, nodes: Iterable[Mapping[str, Any]], cpus: float, gpus: float) -> int:
    """As many of the workers as there is room for."""
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
    """How many trials a machine can hold; any number of those that ask for nothing."""
    wanted = {"CPU": cpus, "GPU": gpus}
    fits = [node.get(name, 0.0) / amount + 1e-9 for name, amount in wanted.items() if amount]
    return min((int(fit) for fit in fits), default=float("inf"))


def _reason(error: Exception) -> str:
    """Ray's account of a loss in one sentence: it comes last, before advice."""
    line = str(error).strip().splitlines()[-1]
    return f"its Ray worker was lost: {line.partition('. ')[0].rstrip('.')}"


def _actor_class() -> type:
    """A class that Ray sends by value, for a worker has to be told where `chop` is."""

    class Trials:
        def begin(self, path: list[str], folder: str, packed: bytes) -> str | None:
            """Make the worker; what is wrong, if something is."""
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
