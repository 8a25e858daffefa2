"""The way of a spec from the request to inserted samples.

`submit.check` takes three steps. *Resolve* locates the datasets, reads the task file and sets the defaults.
*Check* compares the spec with the structure of the model. *Expand* reads the dataset and makes samples.
Then `planning.admit` checks memory, disk and quotas, and `submit.insert` stores the job.
"""
