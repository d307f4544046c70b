"""Benchmarks: each measures a stage of the tool and a plain yardstick in one run. See docs/performance.md."""
