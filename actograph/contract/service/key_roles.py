"""The roles of API keys. Apart from `keys`, so that the command line shows its help without pydantic."""

from enum import StrEnum


class Role(StrEnum):
    """What a key may do; each role includes the ones before it."""

    READ = "read"  # read what its owner has
    SUBMIT = "submit"  # make, change and delete what its owner has
    ADMIN = "admin"  # everything, of every owner

    def includes(self, other: "Role") -> bool:
        """Whether a key of this role may do what needs the other."""
        order = list(Role)
        return order.index(self) >= order.index(other)
