"""The steps of operations, each with its time and user, in the transaction that writes the operation's row.

Invariants: steps are numbered from 1 in the order in which they happened; an operation has at most `MOST` lines of
progress, and its end whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from wherry.model.operation_step import OperationStep, OperationStepKind
from wherry.store import tables
from wherry.store.accounts import Opened

MOST = 500
_TABLE = tables.operation_steps


class OperationSteps:
    """The steps in the database."""

    def __init__(self, read: Opened) -> None:
        self._read = read

    def of(self, operation: str) -> list[OperationStep]:
        """Those of an operation, oldest first."""
        query = sa.select(_TABLE).where(_TABLE.c.operation == operation).order_by(_TABLE.c.number)
        with self._read() as connection:
            rows = connection.execute(query).mappings().all()
        return [OperationStep(**{key: row[key] for key in OperationStep.model_fields}) for row in rows]

    @staticmethod
    def add(connection: Connection, operation: str, steps: Iterable[OperationStep]) -> None:
        """Appends steps; their numbers are given here."""
        for step in steps:
            newest = sa.select(sa.func.max(_TABLE.c.number)).where(_TABLE.c.operation == operation)
            number = int(connection.scalar(newest) or 0) + 1
            if number <= MOST or step.kind != OperationStepKind.PROGRESS:
                values = step.model_dump(mode="json") | {"operation": operation, "number": number}
                connection.execute(_TABLE.insert().values(values))

    @staticmethod
    def prune(connection: Connection) -> None:
        """Deletes the steps of operations that there are no more."""
        there = sa.select(tables.operations.c.id)
        connection.execute(_TABLE.delete().where(_TABLE.c.operation.not_in(there)))
