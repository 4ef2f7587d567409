"""Measurement on the nodes of a Kubernetes cluster: the controller searches, Jobs measure.

The controller (a flow) searches. Each batch of measurement requests becomes one Indexed Job for every
backend group with enough work; each pod of a Job works on one shard, with the `LocalMeasurer` of a laptop.
Costs, kernels and reports pass through the store alone; the end of a Job is only the signal to read it. So
a crash of either side loses nothing.

    controller/   settings and environments of the operator, Jobs of a search, `ClusterMeasurer`,
                  `ClusterCompileService`
    pod/          work of a pod: build a shard, measure a shard, answer a probe, build the bundle
    kubernetes/   manifests and calls of the Kubernetes API; Jobs from creation, or adoption, to their end
    shards, shard_reports, kernel_records, exit_codes
                  formats that both sides share; no import of the Kubernetes client (its image has none)

A candidate passes through these stages: `KeyedRequest` (a measurement request and its cost key), `JobShare`
(the part of a batch for one Job), `ShardRequest` (its wire form in a shard), `Task` (one Job to create),
`FinishedJob` (an ended Job with the keys of its candidates).
"""
