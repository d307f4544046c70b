"""Landing: verifies copied rows and publishes them as a table of the warehouse, step by step."""
