"""Predict bytes: the caching allocator simulated, peaks, corrections by probes, and host memory."""
