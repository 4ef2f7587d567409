"""What serving needs and nothing more: the plug-in, the loader, and what both of them read."""
