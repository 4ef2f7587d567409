"""Parts that backends of several devices share."""
