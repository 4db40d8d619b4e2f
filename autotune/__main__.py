"""`python -m autotune`: the command line, from a checkout that was never installed too."""

import sys

if __name__ == "__main__":
    try:
        from autotune.cli import main
    except KeyboardInterrupt:  # before anything was started
        sys.exit(130)
    main()
