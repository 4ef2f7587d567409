"""The side of the cluster that works: one shard, or one question, per pod."""
