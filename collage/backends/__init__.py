"""One folder a toolchain; `registry` says which there are and which can be used here."""
