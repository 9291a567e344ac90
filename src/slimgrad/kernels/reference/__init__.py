"""Plain torch: what every other kernel must equal, byte for byte."""
