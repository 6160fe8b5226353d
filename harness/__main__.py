"""`python -m harness` is `mtpbench`: for machines where it runs from a checkout without being installed."""


def main() -> None:
    """The command line. Load processes import their parent's main module anew, this one: so it imports nothing else."""
    from harness.cli.early import leave_at_once

    leave_at_once()
    from harness.cli.app import main as command_line

    command_line()


if __name__ == "__main__":
    main()
