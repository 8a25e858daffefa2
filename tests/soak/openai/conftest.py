"""Fixtures of the OpenAI tests."""

from tests.integration.openai.conftest import client, engine, service

__all__ = ["client", "engine", "service"]
