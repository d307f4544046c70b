"""Events: reads the notification log and decodes it into changes."""
