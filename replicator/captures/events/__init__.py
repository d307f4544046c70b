"""Events: the notification log, read and decoded into changes."""
