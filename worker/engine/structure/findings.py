"""What structure discovery has found so far."""

from dataclasses import dataclass, field

from worker.engine.structure.moe import Router


@dataclass
class Findings:
    """Points found so far and why others are missing."""

    hooks: dict[str, str] = field(default_factory=dict)  # canonical name -> location
    missing: dict[str, str] = field(default_factory=dict)  # point or <point>.<layer> -> reason
    proofs: dict[str, int] = field(default_factory=dict)  # identity -> layers it was checked on
    mlps: dict[int, str] = field(default_factory=dict)  # layer -> path of its MLP
    routers: list[Router] = field(default_factory=list)

    def prove(self, identity: str) -> None:
        self.proofs[identity] = self.proofs.get(identity, 0) + 1

    def lack(self, point: str, layer: int, reason: str) -> None:
        self.missing[f"{point}.{layer}"] = reason
