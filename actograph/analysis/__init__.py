"""Analyses of activations as functions of arrays: numpy alone, without a service."""
