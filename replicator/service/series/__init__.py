"""Series: the lag of policies and the size of roots over time, recorded by the server that schedules."""
