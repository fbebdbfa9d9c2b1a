"""What the CUDA backend stands on: the driver behind a protocol, arenas, kernels, graphs, identity. Imports no cupy."""
