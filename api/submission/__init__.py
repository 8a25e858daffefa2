"""The way of a spec from the request to inserted samples.

Each job kind has a file with the same three steps, and each step hands a value to the next. *Resolve* finds
uploads, task, vectors and the state of the service. *Check* compares the spec with the structure of the
model. *Expand* reads the dataset and makes samples. `submit.check` runs the steps of a kind, `planning.admit`
checks memory, disk and quotas, and `submit.insert` stores the job.
"""
