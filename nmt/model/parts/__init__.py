"""Shared parts of the model families: embeddings, dropout, initializers, output layers, device placement."""
