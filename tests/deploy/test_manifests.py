"""Kubernetes' schemas accept every resource of deploy/, ours every JobSet; what they refuse is refused here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from launch_files import DEPLOY, MANIFESTS, jobs, one, pods, resources

import cojax

SCHEMA = json.loads((Path(__file__).parent / "jobset-v1alpha2.json").read_text())
VERSION = kubernetes_validate.latest_version()
TEXTS = {name: (DEPLOY / name).read_text() for name in MANIFESTS}


def check(resource: dict[str, Any]) -> None:
    """Raises jsonschema's ValidationError for what the schema of its kind does not have."""
    if resource["kind"] != "JobSet":
        kubernetes_validate.validate(resource, VERSION, strict=True)
        return
    jsonschema.validate(resource, SCHEMA, cls=jsonschema.Draft202012Validator)
    for name, spec in jobs(resource).items():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        kubernetes_validate.validate(job, VERSION, strict=True)


def check_all(text: str) -> None:
    for resource in resources(text):
        check(resource)


@pytest.mark.parametrize("name", MANIFESTS)
def test_schemas_accept_all_resources(name: str) -> None:
    check_all(TEXTS[name])


@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        ("gpu-job.yaml", "parallelism:", "paralelism:", "'paralelism' was unexpected"),
        ("gpu-job.yaml", "&hosts 2", '&hosts "2"', "'2' is not of type 'integer'"),
        ("gpu-job.yaml", "nodeSelector:", "nodeselector:", "'nodeselector' was unexpected"),
        ("gpu-job.yaml", "serviceName:", "service:", "'service' was unexpected"),
        ("gpu-job.yaml", 'HOSTS: "2"', "HOSTS: 2", "2 is not of type 'string'"),
        ("tpu-jobset.yaml", "successPolicy:", "succesPolicy:", "'succesPolicy' was unexpected"),
        ("tpu-jobset.yaml", "operator: All", "operator: Every", "'Every' is not one of ['All', 'Any']"),
        ("tpu-jobset.yaml", "backoffLimit: 0", "backofLimit: 0", "'backofLimit' was unexpected"),
        ("tpu-jobset.yaml", "exclusive-topology", "exclusive-topologie", "was unexpected"),
        ("tpu-jobset.yaml", "v1alpha2", "v1alpha1", "'jobset.x-k8s.io/v1alpha2' was expected"),
    ],
)
def test_a_wrong_field_is_refused(name: str, right: str, wrong: str, said: str) -> None:
    assert right in TEXTS[name]
    with pytest.raises(jsonschema.ValidationError) as refused:
        check_all(TEXTS[name].replace(right, wrong))
    assert said in refused.value.message


def unpinned(text: str) -> list[str]:
    """The images of a manifest without a version of their own."""
    images = [container["image"] for spec in pods(text).values() for container in spec["containers"]]
    return [image for image in images if not re.search(r":[0-9][^:/]*$|@sha256:[0-9a-f]{64}$", image)]


@pytest.mark.parametrize("name", MANIFESTS)
def test_images_are_those_of_the_dockerfile_of_this_version(name: str) -> None:
    text, built = TEXTS[name], (DEPLOY / "Dockerfile").read_text()
    assert not unpinned(text)
    for spec in pods(text).values():
        image = spec["containers"][0]["image"]
        assert f" --tag {image} " in built
        assert f":{cojax.__version__}-" in image
    image = next(iter(pods(text).values()))["containers"][0]["image"]
    assert unpinned(text.replace(image, image.rpartition(":")[0]))
    assert unpinned(text.replace(image, image.rpartition(":")[0] + ":latest"))


def test_the_end_of_training_ends_the_jobset() -> None:
    assert one(TEXTS["tpu-jobset.yaml"], "JobSet")["spec"]["successPolicy"]["targetReplicatedJobs"] == ["train"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_values_to_set_stand_first_and_are_explained_and_used(name: str) -> None:
    text = TEXTS[name]
    assert resources(text)[0]["kind"] == "ConfigMap"
    head, _, rest = text.partition("    data:\n")[2].partition("\n\n")
    for line in head.splitlines():
        assert re.fullmatch(r" {6}[A-Z_]+: .*\S # \S.*", line), line
        anchor, key = re.search(r"&([\w-]+)", line), line.split(":")[0].strip()
        assert f"$({key})" in rest or (anchor and f" *{anchor[1]}\n" in rest), line
