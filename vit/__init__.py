"""Vision Transformers to train, trust and look inside."""
