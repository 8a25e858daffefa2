"""Requests and answers of chats."""
