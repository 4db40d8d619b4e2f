"""One disposable probe from launch to verdict: its messages, its supervisor, and how its end is classified."""
