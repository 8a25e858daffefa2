"""Results and sessions as files on disk: folders, archives, checksums."""
