"""Every method on the same matches: predict into a cache, then score the cache, then report."""
