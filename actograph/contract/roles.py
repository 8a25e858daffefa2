"""Roles of API keys. Without pydantic, so that `actograph --help` starts fast."""

from enum import StrEnum


class Role(StrEnum):
    """Permissions of a key; each role includes the roles before it."""

    READ = "read"  # read the owner's data
    SUBMIT = "submit"  # create, change and delete the owner's data
    ADMIN = "admin"  # everything, for all owners

    def includes(self, other: "Role") -> bool:
        """True if this role has all permissions of the other."""
        order = list(Role)
        return order.index(self) >= order.index(other)
