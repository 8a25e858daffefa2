"""The results folder of a job: everything that its samples were asked, said and scored, as files."""
