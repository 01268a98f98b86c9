"""Looking inside a model: attention, positions, representations. It knows nothing of training."""
