"""The logit lens and direct logit attribution, from the files of a checkpoint."""
