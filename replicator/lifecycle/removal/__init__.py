"""Rules for every job that removes: limits, live references, legal holds, audit."""
