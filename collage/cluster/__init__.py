"""Measure on the nodes of a Kubernetes cluster: a search here, its batches as Jobs there.

The controller (a flow) searches; each batch of candidates becomes one Indexed Job for every group of
backends that is worth one. Its pods work through a shard each with the same `LocalMeasurer` that a laptop
uses. All that passes between them is in the store: a Job that ends says only that it is worth looking. So a
crash of either side loses nothing.

    environments, settings   what the operator says
    shards, records, kernels what both sides share; imports no Kubernetes client (nor does the image)
    pod, measuring, building what the pods do
    manifests, api           the two modules that know the Kubernetes client
    groups, sender           which candidates share a Job, and the Jobs of one search
    jobs                     Jobs from their creation, or adoption, to their end
    measurer, site           `SearchMeasurer` and `Site`
"""
