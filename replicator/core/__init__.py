"""Values and services that all rooms share: objects, policies, configuration, engines, progress."""
