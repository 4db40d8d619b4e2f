"""What holds for every test."""

import signal

# A shell that starts a job in the background has it ignore Ctrl-C, and so would every tuner that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
