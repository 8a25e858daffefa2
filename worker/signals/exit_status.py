"""Exit statuses of a worker's child process that ends itself, so that its parent starts a new one."""

#: the device made no progress: nothing but the end of the process gets a stuck kernel off it
STALLED = 70
#: the device reported an error that only a new process recovers from
DEVICE_LOST = 71
