"""One folder per toolchain; `registry` lists them and their availability."""
