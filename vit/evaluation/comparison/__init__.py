"""Several classifiers on the same images: who is ahead, by how much, and whether the images can tell."""
