"""`python -m harness` is `mtpbench`: for machines where it runs from a checkout without being installed."""

from harness.cli import main

if __name__ == "__main__":
    main()
