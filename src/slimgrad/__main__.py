"""`python -m slimgrad`: the same as the `slimgrad` command."""

from slimgrad.cli import main

if __name__ == "__main__":
    main()
