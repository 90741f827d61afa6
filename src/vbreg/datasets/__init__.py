"""Where pairs of clouds come from: benchmark layouts, virtual scans, and match sets to train on."""
