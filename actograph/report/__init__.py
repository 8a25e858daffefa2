"""Reports: jobs and analyses as one HTML page that loads nothing, with its figures as files."""
