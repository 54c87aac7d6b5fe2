"""The script `tacit`, and `python -m tacit`: an interrupt is one line from the first moment on."""

from __future__ import annotations

from tacit.cli.signals import one_line


def main() -> None:
    """Run the command line in a process of its own."""
    with one_line():
        # Loaded only now: most of the time until a command does something goes into loading.
        from tacit.cli.main import main as command_line

        command_line()


if __name__ == "__main__":
    import tacit_dp

    tacit_dp.main()
