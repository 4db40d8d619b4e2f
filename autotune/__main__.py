"""`python -m autotune`: the command line, from a checkout that was never installed too."""

from autotune.cli import main

if __name__ == "__main__":
    main()
