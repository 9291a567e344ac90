"""Memory and time of training before it runs: what fits, at which batch, how fast."""
