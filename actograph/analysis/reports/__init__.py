"""Reports of jobs: one HTML file with its figures."""
