"""Operations are found by their idempotency key in an index, and rows keep the beginning of a long command line alone.

Profiles of programs with long arguments are removed: their key is another one now, and the next run measures them.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_KEPT = 4096
"""Characters of a command line that a row keeps."""


def upgrade() -> None:
    """Adds the columns and fills them; shortens records."""
    op.add_column("operations", sa.Column("uid", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("operations", sa.Column("key", sa.String, nullable=False, server_default=""))
    for id, record in _records("operations", "id"):
        job = (record.get("result") or {}).get("job")
        values: dict[str, object] = {"id": id, "uid": record.get("uid", 0), "key": record.get("key", "")}
        change = "uid = :uid, key = :key"
        if isinstance(job, dict) and _shorten(job):
            values["record"], change = _text(record), f"{change}, record = :record"
        op.get_bind().execute(sa.text(f"UPDATE operations SET {change} WHERE id = :id"), values)
    op.create_index("ix_operations_key", "operations", ["key"])
    for id, record in _records("jobs", "id"):
        if _shorten(record):
            change = "UPDATE jobs SET record = :record WHERE id = :id"
            op.get_bind().execute(sa.text(change), {"id": id, "record": _text(record)})
    for key, record in _records("programs", "key"):
        if _long(record.get("program") or {}):
            op.get_bind().execute(sa.text("DELETE FROM programs WHERE key = :key"), {"key": key})


def downgrade() -> None:
    """Removes the columns. Text that was cut off is lost."""
    op.drop_index("ix_operations_key", "operations")
    op.drop_column("operations", "key")
    op.drop_column("operations", "uid")


def _records(table: str, key: str) -> list[tuple[str, dict]]:
    rows = op.get_bind().execute(sa.text(f"SELECT {key}, record FROM {table}"))
    return [(id, json.loads(text)) for id, text in rows]


def _text(record: dict) -> str:
    return json.dumps(record, separators=(",", ":"))


def _long(program: dict) -> bool:
    return sum(len(word) + 1 for word in program.get("arguments", ())) > _KEPT


def _shorten(job: dict) -> bool:
    """Cuts a job's command line as `wherry.model.kept_words` did when this was written; whether it was too long."""
    words, room = job.get("argv", []), _KEPT
    changed = _long(job.get("program") or {})
    if changed:
        job["program"] = None
    for number, word in enumerate(words):
        if len(word) + 1 > room:
            job["argv"] = [*words[:number], f"{word[:room]}…"]
            job["argv_cut"] = sum(len(left) + 1 for left in words[number:]) - room
            return True
        room -= len(word) + 1
    return changed
