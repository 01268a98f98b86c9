"""Experiments with training runs: accuracy against the number of images, and where a run's time goes."""
