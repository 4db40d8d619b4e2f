"""autotune: the fastest training configuration that is proven not to run out of memory."""

__version__ = "0.1.0"
