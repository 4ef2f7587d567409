"""Every command line of README.md, docs/, the chart and the examples is run by a test, or says why not."""
