"""A file per kind of job, each with the same three steps from a submitted body to the samples of a job.

*Resolve* turns the body into a spec that needs nothing more: files are found, names are canonical, defaults
are set. *Check* compares the spec with what the service knows, such as the structure of its model. *Expand*
makes the samples. `api/submit.py` takes a body through them.
"""
