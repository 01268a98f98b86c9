"""Experiments with runs: accuracy against the number of images, fine-tuning alike, and where a run's time goes."""
