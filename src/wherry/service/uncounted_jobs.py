"""Reports jobs whose calls of MPI are not counted although they could be: programs that load their MPI late, or keep
libraries from being loaded. They are left alone; the reason is in the job's row, and in one event.

Invariant: processes are read alone, and the state of this object may be lost at any time.
"""

from __future__ import annotations

from contextlib import suppress

from wherry.base.errors import WherryError
from wherry.job import mpi_profile, uncounted
from wherry.model.records import Job, JobState
from wherry.service.context import Managers, ServiceContext
from wherry.service.periodic import PeriodicTask

_EVERY = 2.0
_AGES = (5.0, 30.0, 120.0)
"""Seconds after which a job is looked at: programs may read their input before they call MPI_Init."""


class UncountedJobs(PeriodicTask):
    """Does nothing while no job runs that is to be looked at."""

    def __init__(self, context: ServiceContext, every: float = _EVERY) -> None:
        super().__init__("uncounted", every)
        self._context = context
        self._looks: dict[str, int] = {}
        """How often each running job was looked at."""

    def run_once(self) -> None:
        managers = self._context.managers
        if managers is None:
            return
        running = [job for job in self._context.store.jobs_under_way() if job.kind == "mpi"]
        self._looks = {job.id: self._looks.get(job.id, 0) for job in running}
        for job in running:
            looks = self._looks[job.id]
            if job.state is JobState.RUNNING and looks < len(_AGES) and managers.jobs.ran(job) >= _AGES[looks]:
                self._looks[job.id] += 1
                if job.uncounted not in (uncounted.PLAIN, uncounted.MACHINES):
                    self._look(managers, job)

    def _look(self, managers: Managers, job: Job) -> None:
        reading = mpi_profile.take(job, self._context.store.nodes(job.cluster), managers.placements, managers.ranks)
        with suppress(WherryError):  # it has ended, or its host is silent
            why = uncounted.while_it_runs(reading, managers.ranks)
            if why == job.uncounted or not (why or reading.pages):
                return
            managers.jobs.update(job.id, lambda row: row.model_copy(update={"uncounted": why}))
            if why:
                self._context.store.add_event("job.uncounted", job.id, f"its calls of MPI are not counted: {why}")
