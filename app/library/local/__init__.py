"""The models on this machine's disks: names, files, facts, imports and removals."""
