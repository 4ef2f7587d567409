"""The documents, and the files that a host of repositories shows: changelog, hooks, the site."""
