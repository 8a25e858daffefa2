"""Fixtures of the tests of OpenAI's routes."""

from tests.integration.openai.conftest import client, service

__all__ = ["client", "service"]
