"""The serving side: the plug-in, the loader of bundles, and the readers of their files."""
