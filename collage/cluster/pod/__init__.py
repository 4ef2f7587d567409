"""The working side: one shard, one probe or one bundle per pod."""
