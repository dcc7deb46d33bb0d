"""Updates: stages between gradients and optimizer: accumulation, local SGD, LARC, loss scaling, divergence guard."""
