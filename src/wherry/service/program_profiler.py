"""Profiles of programs: a thread that measures running jobs for a few seconds, and keeps the profile by program, so
that the next run of it is placed by that.

Invariants: a job is measured a few times and then left alone; a job that shares its cluster is not measured, as
the job of each message is not known. The state of this object may be lost at any time.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from wherry.base.errors import WherryError
from wherry.job.profile import Sample, foreign
from wherry.model.records import Job, JobState, ProgramKey
from wherry.schedule.program_class import program_profile
from wherry.schedule.routes import Routes
from wherry.schedule.step_model import World
from wherry.service.balance_sampling import BalanceSampling, sampling, unmeasurable
from wherry.service.context import ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 1.0
_SECONDS = 2.5
"""Least length of a measurement."""
_AGES = (2.0, 15.0, 120.0)
"""Seconds after which a run is measured; each measurement replaces the one before, as programs begin by reading."""
_ATTEMPTS = 5
"""How often a measurement is tried that finds nothing to keep, as where some ranks have not started yet."""


@dataclass(frozen=True)
class _Window:
    view: BalanceSampling
    before: Sample
    jobs: tuple[Job, ...]


class ProgramProfiler(PeriodicTask):
    """Does nothing while no job runs that is to be measured."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("program", every)
        self._context = context
        self._window: _Window | None = None
        self._taken: dict[str, int] = {}
        """How often each running job was measured; a measurement counts also when all attempts at it have failed."""
        self._attempts: dict[str, int] = {}
        """Those of the next measurement that found nothing to keep."""

    def run_once(self) -> None:
        """Begins a measurement of the jobs that are due, or ends the one under way."""
        window = self._window
        if window is None:
            self._begin()
            return
        if self._context.managers is not window.view.managers:
            self.close()
            return
        if time.monotonic() - window.before.time < _SECONDS:
            return
        kept = set[str]()
        try:
            after = window.view.sample()
            kept = {job.id for job in window.jobs if self._keep(window, after, job)}
        finally:
            self._count(window.jobs, kept)
            self.close()

    def close(self) -> None:
        """Ends the counting of frames."""
        if self._window is not None:
            self._window.view.close()
            self._window = None

    def _count(self, jobs: tuple[Job, ...], kept: set[str]) -> None:
        """Counts a measurement of the jobs, or an attempt at it."""
        for job in jobs:
            attempts = self._attempts.pop(job.id, 0) + 1
            if job.id in kept or attempts == _ATTEMPTS:
                self._taken[job.id] = self._taken.get(job.id, 0) + 1
            else:
                self._attempts[job.id] = attempts

    def _begin(self) -> None:
        managers, running = self._context.managers, self._context.store.jobs_under_way()
        self._taken, self._attempts = (
            {job.id: counts[job.id] for job in running if job.id in counts} for counts in (self._taken, self._attempts)
        )
        if managers is None:
            return
        due, on = [], Counter(job.cluster for job in running)
        for job in running:
            taken = self._taken.get(job.id, 0)
            shared = on[job.cluster] > 1
            if job.program is None or job.state is not JobState.RUNNING or shared or taken >= len(_AGES):
                continue
            if managers.jobs.ran(job) >= _AGES[taken]:
                due.append(job)
        if due:
            view = sampling(self._context)
            try:
                self._window = _Window(view, view.sample(), tuple(due))
            except BaseException:
                view.close()
                raise

    def _keep(self, window: _Window, after: Sample, job: Job) -> bool:
        """Keeps the profile of the job's program, unless the job or its nodes changed while it was measured. True when
        it was kept."""
        store, managers = self._context.store, window.view.managers
        nodes, current = store.nodes(job.cluster), store.job(job.id)
        if current is None or not current.state.under_way or unmeasurable(window.before, after, nodes):
            return False
        try:
            found = window.view.profile(window.before, after, job.cluster)
        except WherryError:  # a node does not answer; the next measurement may do
            return False
        if found.jobs != (job.id,) or job.program is None:
            return False
        hosts = {host.name: host for host in self._context.hosts()}
        routes = Routes(managers.fabric.spec.effective_links())
        world = World(hosts, routes, foreign(window.before, after, list(hosts)), {})
        key: ProgramKey = job.program
        profile = program_profile(key, job.id, found, nodes, world, store.program(key.key))
        if profile is None:
            return False
        store.put_program(profile)
        text = f"{key.name} with {key.ranks} ranks is {profile.kind}"  # everybody may read it
        store.add_event("program.profile", job.id, text, key=profile.key)
        return True
