"""Role changes: switchover, failover, failback, and the loss report."""
