"""What `check` looks at: metastores, places, and what a policy's runs have left. `check` puts them together."""
