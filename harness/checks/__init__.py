"""Is what was measured what was asked for? Passes, kernels, answers, accuracy."""
