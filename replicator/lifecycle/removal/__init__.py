"""Rules for every job that deletes data: limits, live references, legal holds, audit."""
