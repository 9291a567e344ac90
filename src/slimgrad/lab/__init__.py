"""What the command line and the benches run: models, data, training, comparison. Nothing of the library imports it."""
