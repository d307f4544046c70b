"""Policies: their runs, plans, history, schedule and lag.

Imports all rooms below. Begin with `run.py`; `checks/` evaluates a policy, `role_changes/` does switchover, failover
and failback, `drill.py` rehearses a failover, `lineage.py` reports runs as OpenLineage events.
"""
