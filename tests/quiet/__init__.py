"""What Collage's programs say to the world and write to disk, seen from outside: `python -m tests.quiet`."""
