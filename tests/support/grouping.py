"""An engine for tests of `cmroot`, which knows none: everything in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class InProcess:
    """Runs and groups as `replicator.core.engine.LocalEngine` does."""

    def run(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        return map(function, tasks)

    def group(
        self,
        read: Callable[[Any], Iterator[pa.RecordBatch]],
        sources: Iterable[Any],
        key: str,
        decide: Callable[[pa.Table], pa.Table],
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        batches = [batch for source in sources for batch in read(source)]
        if not batches:
            return
        whole = pa.Table.from_batches(batches)
        for value in pc.unique(whole[key]).to_pylist():
            answer = decide(whole.filter(pc.equal(whole[key], value)))
            yield from answer.select(schema.names).cast(schema).to_batches()
