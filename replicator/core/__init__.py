"""Values and services that all rooms share: policies, configuration, engines, connections, progress, logging.

Imports `cmroot` only. Begin with `model.py` (databases, tables, partitions), then `policy.py` and `config.py`.
"""
