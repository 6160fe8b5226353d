"""`python -m harness` is `mtpbench`: for machines where it runs from a checkout without being installed."""


def main() -> None:
    """The command line. Load processes import their parent's main module anew, this one: so it imports nothing else."""
    import os
    import signal

    def early(_number: int, _frame: object) -> None:
        """Ctrl-C while Python still imports: a second in which there is nothing to end and nothing to save."""
        os.write(2, b"interrupted before anything began\n")
        os._exit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, early)
    from harness.cli.app import main as command_line

    command_line()


if __name__ == "__main__":
    main()
