"""Several machines on one study: one leads, the others are guests that measure what it offers.

Everything goes through the storage. Whoever takes part writes a beat into the study now and then;
whose beat does not change for a while is gone, whatever the clocks of the machines say.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chop.actions.search.engines.base import Died, Engine, Group, Task
from chop.actions.search.outcome import Outcome
from chop.actions.search.record import Record, StorageError, Stored

logger = logging.getLogger(__name__)

LEADER = "leader"
GUEST = "guest:"
GRACE = 5  # beats without which somebody is gone
LOOK = 0.5  # seconds between two looks of a guest


@functools.cache
def _here() -> str:
    """Where process numbers mean the same: hosts may share a name, and containers a host."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
        parts.append(os.readlink("/proc/self/ns/pid").strip("pid:[]"))
    return "/".join(parts)


@dataclass(frozen=True)
class Identity:
    """A process that takes part."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    host: str = field(default_factory=_here)
    pid: int = field(default_factory=os.getpid)

    @property
    def name(self) -> str:
        return f"{socket.gethostname()}:{self.pid}:{self.id}"

    def sign(self, beat: int) -> dict[str, Any]:
        return {"id": self.id, "host": self.host, "pid": self.pid, "beat": beat}


class Pulse:
    """Writes our beat under a key until it is told to stop."""

    def __init__(self, record: Record, key: str, me: Identity, beat: float) -> None:
        self._record, self._key, self._me, self._beat = record, key, me, beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        record.note(key, me.sign(1))
        self._thread.start()

    def _run(self) -> None:
        number = 1
        while not self._over.wait(self._beat):
            number += 1
            try:
                self._strike(number)
            except StorageError:  # a leader that fell silent here would soon have a rival
                logger.debug("a beat could not be noted", exc_info=True)

    def _strike(self, number: int) -> None:
        self._record.note(self._key, self._me.sign(number))

    def silence(self) -> None:
        """Stop without a word."""
        self._over.set()
        self._thread.join()

    def stop(self) -> None:
        """The last word: we are gone."""
        self.silence()
        try:
            self._record.note(self._key, self._me.sign(-1) | {"ended": True})
        except StorageError:
            logger.debug("the end could not be noted", exc_info=True)


class Reign(Pulse):
    """The beat of a leader, who may have slept so long that another leads by now."""

    deposed = False

    def _strike(self, number: int) -> None:
        said = self._record.attributes()[LEADER]
        # who only wants to lead has not struck yet, and will see that we do
        if said.get("id") != self._me.id and said.get("beat"):
            self.deposed = True
            self._over.set()
        else:
            super()._strike(number)

    def stop(self) -> None:
        if self.deposed:
            self.silence()
        else:
            super().stop()


class Ear:
    """Hears who is still there."""

    def __init__(self, beat: float) -> None:
        self._grace = GRACE * beat
        self._heard: dict[str, tuple[Any, float]] = {}

    def alive(self, key: str, said: Any) -> bool:
        """Whether what `key` says has changed of late."""
        if not isinstance(said, dict) or said.get("ended") or _is_dead_here(said):
            return False
        now = time.monotonic()
        before = self._heard.get(key)
        if before is None or before[0] != said:
            self._heard[key] = (said, now)
            return True
        return now - before[1] < self._grace


def _is_dead_here(said: dict[str, Any]) -> bool:
    """Whether it was a process of this machine, and is no more."""
    if said.get("host") != _here():
        return False
    try:
        os.kill(int(said.get("pid", 0)), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError):
        return False
    return False


def is_led(record: Record, beat: float) -> bool:
    """Whether somebody leads the study now; that may take a few beats to find out."""
    ear, first = Ear(beat), _first_word(record, beat)
    if not ear.alive(LEADER, first):
        return False
    end = time.monotonic() + GRACE * beat
    while time.monotonic() < end:
        time.sleep(min(LOOK, beat / 2))
        said = record.attributes().get(LEADER)
        if not ear.alive(LEADER, said):
            return False
        if said != first:
            return True
    return False


def _first_word(record: Record, beat: float) -> Any:
    """What the leader says; who has just made the study and may be slow is about to say so."""
    end = time.monotonic() + GRACE * beat
    while True:
        said = record.attributes().get(LEADER)
        # who adds trials has said before that it leads, or never does
        if said is not None or time.monotonic() >= end or record.frozen():
            return said
        time.sleep(min(LOOK, beat / 2))


def is_led_at(url: str, study: str, beat: float) -> bool:
    """Whether somebody leads the study of that name, if there is one."""
    record = Record.found(url, study)
    if record is None:
        return False
    try:
        return is_led(record, beat)
    finally:
        record.close()


class Lead:
    """Being the leader: nobody else is, and the others are known."""

    _pulse: Reign

    def __init__(self, record: Record, beat: float) -> None:
        self.record, self.beat, self.me = record, beat, Identity()
        self.guests = Guests(record, beat, self.me.id)

    @classmethod
    def taken(cls, record: Record, beat: float) -> Lead | None:
        """The lead, unless another process had the same idea at the same time and got it."""
        lead = cls(record, beat)
        record.note(LEADER, lead.me.sign(0))
        time.sleep(2 * min(LOOK, beat) if record.existed else 0)
        if record.attributes()[LEADER].get("id") != lead.me.id:
            record.existed = True  # at the latest now
            return None
        lead._pulse = Reign(record, LEADER, lead.me, beat)
        return lead

    @property
    def deposed(self) -> bool:
        """Whether another process leads by now."""
        return self._pulse.deposed

    def __enter__(self) -> Lead:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, StorageError):  # others who reach the storage can still go on
            self._pulse.silence()
        else:
            self._pulse.stop()


class Guests:
    """The others, as the leader sees them."""

    def __init__(self, record: Record, beat: float, leader: str) -> None:
        self._record, self._leader = record, leader
        self._ear, self._looked = Ear(beat), -1.0
        self._alive: set[str] = set()
        self._trusted: set[str] = set()  # who has ever been there
        self._orphans: dict[int, float] = {}  # trials of nobody, and since when

    def present(self) -> bool:
        """Whether somebody is there, or has left trials behind."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            found = {k: v for k, v in self._record.attributes().items() if k.startswith(GUEST)}
            self._alive = {k.removeprefix(GUEST) for k, v in found.items() if self._ear.alive(k, v)}
            self._trusted |= self._alive
        return bool(self._trusted)

    def has(self, worker: str) -> bool:
        return worker in self._alive

    def lost(self) -> Iterable[int]:
        """Trials that run, and for a while now nobody who is there has had them."""
        here, now = self._alive | {self._leader}, time.monotonic()
        held = [trial for trial in self._record.unfinished() if not trial.waiting]
        orphans = [t.number for t in held if t.worker not in here]
        # who claims a trial signs it a moment later
        self._orphans = {number: self._orphans.get(number, now) for number in orphans}
        if not orphans:
            self._trusted &= self._alive
        gone = [number for number, since in self._orphans.items() if now - since >= LOOK]
        for number in gone:  # who takes one of them now has a moment again
            del self._orphans[number]
        return gone


class Guest:
    """Takes trials that a leader offers, or groups of them as wholes, until there are no more."""

    def __init__(
        self,
        record: Record,
        engine: Engine,
        beat: float,
        retries: int = 0,
        *,
        group: int = 1,
        recorded: Callable[[int], None] = lambda first: None,
    ) -> None:
        self.record, self.engine, self.beat, self.retries = record, engine, beat, retries
        self.group = group  # trials that are measured together
        self.recorded = recorded  # is told the first trial of each group that was finished here
        self.me = Identity()
        self.done = 0
        self._ours: dict[int, Task] = {}  # claimed, not finished
        self._alone: deque[Task] = deque()  # of groups that bring processes down; not begun
        self._deaths: Counter[int] = Counter()

    def run(self) -> bool:
        """True when the search is over, False when its leader is gone and somebody has to lead."""
        pulse = Pulse(self.record, GUEST + self.me.id, self.me, self.beat)
        ear = Ear(self.beat)
        try:
            while True:
                leader = self.record.attributes().get(LEADER, {})
                ended = bool(leader.get("ended"))
                if ended or not ear.alive(LEADER, leader):
                    self._bring_home()
                    return ended
                self._take()
                self._hear(LOOK)
        finally:
            pulse.stop()

    def _bring_home(self) -> None:
        """Finish what was begun, which is then there for whoever goes on."""
        while self._ours:
            self._take_alone()
            self._hear(LOOK)

    def _hear(self, seconds: float) -> None:
        for event in self.engine.wait(seconds):
            self._handle(event)

    def _take(self) -> None:
        self._take_alone()
        if self.engine.free() == 0:
            return
        for trials in self.record.unfinished_groups(self.group):
            if self._is_mine(trials):
                self._begin(trials)
            if self.engine.free() == 0:
                return

    def _take_alone(self) -> None:
        while self._alone and self.engine.free() > 0:
            self.engine.submit(self._alone.popleft())

    def _is_mine(self, trials: Sequence[Stored]) -> bool:
        """Claim a group: it belongs to who gets the first of those that are not finished."""
        wanted = [trial for trial in trials if trial.outcome is None]
        is_whole = trials[-1].number >= max(trial.last for trial in wanted)
        if not is_whole or not all(trial.waiting for trial in wanted):
            return False
        if not self.record.claim(wanted[0].number, self.me.id):
            return False
        for trial in wanted[1:]:
            self.record.claim(trial.number, self.me.id)
        return True

    def _begin(self, trials: Sequence[Stored]) -> None:
        known = frozenset(trial.number for trial in trials if trial.outcome is not None)
        # all of a group were asked for at once, but what was recorded in one go has no front
        before = self.record.before(next(t for t in trials if t.number not in known))
        tasks = tuple(Task(trial.number, trial.chosen, before) for trial in trials)
        self._ours |= {task.number: task for task in tasks if task.number not in known}
        self.engine.submit(tasks[0] if self.group == 1 else Group(tasks, known))

    def _handle(self, event: Outcome | Died) -> None:
        if isinstance(event, Died):
            again = self._again(event)
            if again is None:
                return
            event = again
        self.record.finish(event)
        self.done += 1
        del self._ours[event.number]
        first = event.number - event.number % self.group
        if self._ours.keys().isdisjoint(range(first, first + self.group)):
            self.recorded(first)
        logger.info("Trial %d is done (%d here)", event.number, self.done)

    def _again(self, event: Died) -> Outcome | None:
        """A trial whose process died is offered again, until it has killed too many.

        One of a group that dies again and again is first tried alone.
        """
        deaths = self._deaths[event.number] = self._deaths[event.number] + 1
        if deaths > self.retries:
            return Outcome(event.number, "FAIL", error=event.reason, worker=self.me.name)
        if self.group > 1 and deaths == self.retries:
            logger.warning("Trial %d: %s; it is run alone", event.number, event.reason)
            self._alone.append(self._ours[event.number])
            return None
        logger.warning("Trial %d: %s; it is offered again", event.number, event.reason)
        del self._ours[event.number]
        self.record.requeue(event.number)
        return None
