"""What model families share: embeddings, dropout, initial values, output layers, devices."""
