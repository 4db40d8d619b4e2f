"""`python -m autotune.cli`, the same as `python -m autotune`."""

from autotune.cli import main

if __name__ == "__main__":
    main()
