"""A job that somebody has cancelled while it published: only the metastore knows whether readers see it."""

from __future__ import annotations

from replicator.errors import ObjectNotFound
from replicator.ingestion.landing.landing_schema import marked
from replicator.ingestion.landing.landing_work import Facts, Work


def is_there(work: Work, facts: Facts) -> bool:
    """Whether anything of the job is there, in its table or one that nested rows were taken apart into; so is a table
    missing that it may have dropped to make it again. Changes nothing."""
    before = work.remembered.get("parts", {})
    parts = {name: name in before for name in facts.get("parts", ())}
    return _is_there(work, bool(work.remembered)) or any(_is_there(work.part(name), had) for name, had in parts.items())


def _is_there(work: Work, had: bool) -> bool:
    """had: whether there was a table before the job."""
    db, name = work.request.target
    try:
        table = work.metastore.table(db, name)
    except ObjectNotFound:
        return had and work.request.schema_policy == "recreate" and work.request.mode != "append"
    if not table.is_partitioned:
        return marked(table.parameters)[0] == work.claimed.job
    some = work.metastore.all_partitions(db, name)
    return any(marked(part.parameters)[0] == work.claimed.job for parts in some for part in parts)
