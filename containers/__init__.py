"""Programs that run in containers of their own; each is one module with a `main`."""
