"""Role changes: switchover, failover, failback, and the account of losses."""
