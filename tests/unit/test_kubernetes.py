"""The Kubernetes manifests: valid for the official schemas, and about commands and settings that exist.

KEDA's resources have no schema in the registry: their fields are compared with the names in KEDA's
documentation.
"""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from actograph.contract.resources.queue import Queue
from actograph.settings import Settings
from tests.conftest import unavailable

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "deploy" / "kubernetes"
KUBERNETES = "1.34"
#: fields of keda.sh/v1alpha1, and of the trigger `metrics-api`
SCALED_OBJECT = {
    *("scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount"),
    *("minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers"),
}
METRICS_API = {"url", "valueLocation", "targetValue", "activationTargetValue", "authMode", "format", "method"}


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


MANIFESTS = [
    pytest.param(one, id=f"{path.parent.name}/{path.stem}-{number}")
    for path in sorted(FOLDER.rglob("*.yaml"))
    if path.name != "kustomization.yaml"
    for number, one in enumerate(documents(path))
]
KUSTOMIZATIONS = sorted(FOLDER.rglob("kustomization.yaml"))


def containers() -> Iterator[dict[str, Any]]:
    for manifest in (parameter.values[0] for parameter in MANIFESTS):
        assert isinstance(manifest, dict)
        pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
        yield from [*pod.get("initContainers", []), *pod.get("containers", [])]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_fits_its_schema(manifest: dict[str, Any]) -> None:
    if manifest["apiVersion"].startswith("keda.sh/"):
        check_keda(manifest)
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the package's own imports
            import kubernetes_validate
    except ImportError:
        unavailable("kubernetes-validate is not installed; run: pip install -c constraints.txt -e '.[dev]'")
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest | {"speck": {}}, KUBERNETES, strict=True)


def check_keda(manifest: dict[str, Any]) -> None:
    if manifest["kind"] == "TriggerAuthentication":
        assert set(manifest["spec"]) == {"secretTargetRef"}
        assert all(set(one) == {"parameter", "name", "key"} for one in manifest["spec"]["secretTargetRef"])
        return
    assert manifest["kind"] == "ScaledObject"
    assert set(manifest["spec"]) <= SCALED_OBJECT
    for trigger in manifest["spec"]["triggers"]:
        assert trigger["type"] == "metrics-api"
        assert {"url", "valueLocation", "targetValue"} <= set(trigger["metadata"]) <= METRICS_API
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        first, status = trigger["metadata"]["valueLocation"].split(".")
        assert first in Queue.model_fields
        assert status in ("pending", "leased")


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_a_kustomization_names_what_exists(path: Path) -> None:
    (kustomization,) = documents(path)
    assert kustomization["apiVersion"] == "kustomize.config.k8s.io/v1beta1"
    listed = {path.parent / name for name in kustomization["resources"]}
    assert all(one.exists() for one in listed)
    files = {one for one in path.parent.glob("*.yaml") if one != path}
    assert files <= listed, "every file is used"
    patched = [yaml.safe_load(one["patch"]) for one in kustomization.get("patches", [])]
    base = {(one["kind"], one["metadata"]["name"]) for f in (FOLDER / "base").glob("*.yaml")
            if f.name != "kustomization.yaml" for one in documents(f)}  # fmt: skip
    assert {(one["kind"], one["metadata"]["name"]) for one in patched} <= base


def test_containers_run_modules_that_exist_with_settings_that_exist() -> None:
    ours = [one for one in containers() if one["image"].startswith("actograph/")]
    assert len(ours) >= 6
    for one in ours:
        module = one["command"][-1]
        place = REPO.joinpath(*module.split("."))
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module
    names = re.findall(r"\bACTOGRAPH_[A-Z0-9_]+", "\n".join(p.read_text() for p in FOLDER.rglob("*.yaml")))
    assert len(set(names)) >= 5
    assert {name.removeprefix("ACTOGRAPH_").lower() for name in names} <= set(Settings.model_fields)


def test_images_are_targets_of_the_dockerfile() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", (REPO / "Dockerfile").read_text(), re.MULTILINE))
    used = {one["image"].removeprefix("actograph/") for one in containers() if "actograph/" in one["image"]}
    assert used == {"api", "worker", "analysis"} & stages
    (base,) = documents(FOLDER / "base" / "kustomization.yaml")
    assert {image["name"] for image in base["images"]} == {f"actograph/{name}" for name in used}


def test_every_scaled_object_scales_a_deployment_without_replicas() -> None:
    found = [one for path in FOLDER.rglob("*.yaml") for one in documents(path)]
    deployments = {one["metadata"]["name"]: one for one in found if one["kind"] == "Deployment"}
    scaled = [one["spec"]["scaleTargetRef"]["name"] for one in found if one["kind"] == "ScaledObject"]
    assert sorted(scaled) == sorted(name for name in deployments if "worker" in name)
    assert all("replicas" not in deployments[name]["spec"] for name in scaled)
