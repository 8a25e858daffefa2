"""Fixtures of the tests of OpenAI's routes."""

from tests.integration.openai.conftest import client, engine, service

__all__ = ["client", "engine", "service"]
