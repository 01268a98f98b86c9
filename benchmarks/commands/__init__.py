"""The commands of `python -m benchmarks`: options of each, checked before anything heavy is imported."""
