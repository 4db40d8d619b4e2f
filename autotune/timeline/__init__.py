"""What a trace knows: allocations, releases, FLOPs and bytes moved, as functions of the micro-batch."""
