"""What an API server or a pod would refuse is refused when the file is read, in one sentence that names the setting."""

import re

import pytest

from cluster.config.kubernetes import POD_FOLDERS
from cluster.config.load import config_from_flags
from cluster.kuberay.write import manifests
from skim_common.errors import SkimError
from tests.unit.cluster.kuberay.parts import DEMO, pods

BATCH = {"input": "s3://a/in", "output": "s3://a/out"}
LONG = "a" * 64


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("target.cpu", "16Gi", "must be a number of cores above 0, such as 4, 0.5 or 500m, not '16Gi'"),
        *(("router.cpu", cpu, "a number of cores") for cpu in ("2k", "0", "0m", "0.0005", "4 ", "")),
        *(("head.memory", size, "an amount of memory") for size in ("8m", "0.5", "8 Gi", "0Gi", "8gb", "")),
        ("target.shared_memory", "1e9", "an amount of memory"),
        *(("target.devices", {name: 1}, "a resource") for name in ("rdma", "cpu", "r x/a", f"rdma/{LONG}")),
        ("target.devices", {"rdma/hca": 0}, "greater than 0"),
        ("gpu_resource", "gpu", "a resource"),
        ("target.node_selector", {"zone": "in(a)"}, "the value of a label"),
        ("target.node_selector", {"zone": LONG}, "the value of a label"),
        *(("router.node_selector", {key: "a"}, "the key of a label") for key in ("", "a b", "/a", "A.b/c", LONG)),
        *(("hub.endpoint", url, "a URL") for url in ("hub.example.com", "ftp://a", "http://a b", "http://")),
        *(("hub.endpoint", f"http://a:{port}", "between 1 and 65535") for port in (0, 65536, 99999)),
        ("batch", {**BATCH, "endpoint": "http://a:70000"}, "between 1 and 65535"),
        ("batch", {**BATCH, "endpoint": "http://a/v1"}, "a URL without a path"),
        ("batch", {**BATCH, "keep_minutes": 10**8}, "less than or equal to 43200"),
        ("batch", {**BATCH, "nodes": 2**31}, "less than or equal to 10000"),
        ("redis.address", "redis:99999", "between 1 and 65535"),
        ("redis.address", "redis", "host:port"),
        ("redis", {"address": "r:1", "password_key": "a/b"}, "a key of a Secret"),
        ("hub.token_key", "..", "a key of a Secret"),
        *((name, "Own_Secret", "the name of an object") for name in ("secret", "tls_secret", "image_pull_secret")),
        ("models.claim", "a..b", "the name of an object"),
        ("name", "1skim", "a name of at most 40"),
        ("name", "a" * 41, "a name of at most 40"),
        ("namespace", "a.b", "a name of at most 63"),
        ("network", {"client_namespaces": ["Apps"]}, "a name of at most 63"),
        ("image", "skim:gpu ", "the name of an image"),
        ("monitor_labels", {"a": "b c"}, "the value of a label"),
        ("labels", {"a": "b c"}, "the value of a label"),
        ("annotations", {"a b": "c"}, "the key of a label"),
        ("max_start_minutes", 10**9, "less than or equal to 43200"),
        ("drain_seconds", 10**10, "less than or equal to 2592000"),
        *(("models.mount_path", path, "a folder in the pods") for path in ("models", "/", "/a b", "/a:b", "")),
        *(("models.mount_path", path, "neither may hold the other") for path in ("/hub/", "//hub/x", "/a/..")),
        ("hub.mount_path", "/models/hub", "neither may hold the other"),
        *(("models.mount_path", path, "would hide") for path in ("/tmp", "/etc/", "/home", "/home/skim")),
    ],
)
def test_one_sentence_says_what_it_must_be(setting, value, reason):
    with pytest.raises(SkimError, match=re.escape(reason)) as refused:
        config_from_flags(DEMO, {f"kubernetes.{setting}": value})
    assert f"kubernetes.{setting}".partition(".")[0] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("target.cpu", cpu) for cpu in (4, 0.5, "500m", "16")),
        *(("target.memory", size) for size in (8_000_000_000, "1.5Gi", "64G", "100Ti")),
        ("target.devices", {"rdma/hca_shared-a.b": 8}),
        ("target.node_selector", {"a.b.example.com/zone": "", "zone": "true"}),
        ("target.tolerations", [{"key": "a/b", "operator": "Equal", "value": "c"}, {"key": "a"}]),
        *(("hub.endpoint", url) for url in ("http://a:65535", "https://a.b/c")),
        *(("redis.address", address) for address in ("a:1", "redis://a:65535", "rediss://a.b:6379")),
        ("secret", "1.my-secret"),
        ("models.mount_path", "/tmp/models//big/"),
    ],
)
def test_what_they_take_is_taken(setting, value):
    assert config_from_flags(DEMO, {f"kubernetes.{setting}": value})


def test_the_folders_of_pods_are_known():
    """A mount path of the file is compared with them."""
    files = {"channel.tls_cert": "a", "channel.tls_key": "b", "channel.tls_ca": "c"}
    secrets = {"kubernetes.tls_secret": "tls", "kubernetes.api_keys_secret": "keys", "kubernetes.models.claim": "tmp"}
    config = config_from_flags(DEMO, {**files, **secrets, "target.model": "owner/big", "kubernetes.batch.claim": "tmp"})
    for _, pod in pods([thing for things in manifests(config).values() for thing in things]):
        mounts = [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
        assert len(mounts) == len(set(mounts))
        names = [volume["name"] for volume in pod["spec"]["volumes"]]
        assert len(names) == len(set(names)) == len(mounts)
        assert all(mount.startswith((*POD_FOLDERS, "/models", "/hub", "/data")) for mount in mounts)
