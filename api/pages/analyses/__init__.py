"""Pages of analyses: the list, the results with their charts, and the form that starts one."""
