"""The base of all tables: names of constraints, and how Python types are stored."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

ID_LENGTH = 64


class Base(DeclarativeBase):
    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        float: sa.Double,
        dict[str, Any]: sa.JSON(none_as_null=True),
        list[str]: sa.JSON(none_as_null=True),
        list[dict[str, Any]]: sa.JSON(none_as_null=True),
    }


def id_key() -> Mapped[str]:
    return mapped_column(sa.String(ID_LENGTH), primary_key=True)


def partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """An index of some rows alone. A query uses it if it repeats the condition with literal values."""
    condition = sa.text(where)
    return sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition)
