"""Many runs from one file, night after night: what is asked for, how far it is, and what came of it."""
