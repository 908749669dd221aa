"""The objects match the config, and fit Ray, Serve and each other."""

import math
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from cluster.config.load import config_from_flags, load_config
from cluster.kuberay.service import ray_service
from cluster.kuberay.write import DNS_PORTS, HEADER, manifest_yaml, manifests, write_manifests
from cluster.serve.app import SERVE_SWITCHES, serve_app
from cluster.serve.pod_draining import DRAINING_FILE, DRAINING_SWITCHES
from skim_common.errors import SkimError
from skim_common.proxies import DIRECT_GRPC
from tests.unit.cluster.kuberay.conftest import ROOT
from tests.unit.cluster.kuberay.parts import DEMO, pods, pools_of, service_of

TOKEN, KEY = "the-token-of-the-channel", "the-key-of-the-api"


def replicas_of(config):
    """Ray resources of one replica of each deployment on its first node, by the Serve config."""
    served = yaml.safe_load(service_of(config)["serveConfigV2"])["applications"][0]
    router = serve_app(served["args"])._bound_deployment
    for deployment in [router, *pools_of(router)]:
        options = deployment.ray_actor_options
        if bundles := deployment._replica_config.placement_group_bundles:
            on_first = bundles[: len(bundles) // config.pools[deployment.name].nodes_per_replica]
            yield deployment.name, {r: sum(bundle.get(r, 0) for bundle in on_first) for r in on_first[0]}
            continue
        asked = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), **options.get("resources", {})}
        if kind := options.get("accelerator_type"):
            asked[f"accelerator_type:{kind}"] = 0.001
        yield deployment.name, asked


def test_each_replica_fits_on_the_nodes_of_its_pool_and_no_other(example):
    """Ray's own autoscaler code reads the cluster."""
    cluster = {"metadata": {"namespace": "x", "name": "x"}, "spec": service_of(example)["rayClusterConfig"]}
    nodes = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    asked = dict(replicas_of(example))
    assert asked.keys() == {"router", *example.pools}
    for name, needs in asked.items():
        fitting = [n for n, node in nodes.items() if all(node["resources"].get(r, 0) >= x for r, x in needs.items())]
        assert fitting == [name]
    most = {name: pool.most_replicas * pool.nodes_per_replica for name, pool in example.pools.items()}
    assert {name: nodes[name]["max_workers"] for name in most} == most
    assert nodes["headgroup"]["resources"]["CPU"] == 0


def test_the_models_are_found_where_the_pods_have_them(tmp_path):
    demo = yaml.safe_load(service_of(load_config(DEMO))["serveConfigV2"])["applications"][0]["args"]
    assert [demo[pool]["model"] for pool in ("speculator", "target")] == ["/models/speculator", "/models/target"]
    inside = config_from_flags(DEMO, {"target.model": "/models/deep/big"})
    assert "model: /models/deep/big" in service_of(inside)["serveConfigV2"]
    with pytest.raises(SkimError, match=r"both would be /models/same in the pods: give the folders different names"):
        ray_service(config_from_flags(DEMO, {"target.model": "/a/same", "speculator.model": "/b/same"}))
    named = yaml.safe_load(service_of(config_from_flags(DEMO, {"target.model": "owner/big@v1"}))["serveConfigV2"])
    assert named["applications"][0]["args"]["target"]["model"] == "owner/big@v1"


def test_pods_hold_what_their_replica_takes(example):
    groups = {g["groupName"]: g for g in service_of(example)["rayClusterConfig"]["workerGroupSpecs"]}
    for name, pool in (("speculator", example.speculator), ("target", example.target)):
        container = groups[name]["template"]["spec"]["containers"][0]
        limits = container["resources"]["limits"]
        assert math.ceil(float(limits["cpu"])) >= pool.cpus_per_replica
        gpus = (pool.gpus_per_replica or 0) / pool.nodes_per_replica
        assert limits.get("nvidia.com/gpu") == (f"{gpus:g}" if gpus else None)


def test_a_replica_on_two_nodes_is_a_group_of_two_pods():
    objects = [t for ts in manifests(load_config(ROOT / "examples" / "llama-405b.yaml")).values() for t in ts]
    spec = next(t for t in objects if t["kind"] == "RayService")["spec"]
    groups = {group["groupName"]: group for group in spec["rayClusterConfig"]["workerGroupSpecs"]}
    target = groups["target"]
    assert (target["numOfHosts"], target["replicas"], target["maxReplicas"]) == (2, 1, 1)
    assert "numOfHosts" not in groups["speculator"]
    limits = target["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["rdma/hca"]) == ("8", "8")
    budgets = {
        t["metadata"]["name"]: t["spec"]["maxUnavailable"] for t in objects if t["kind"] == "PodDisruptionBudget"
    }
    assert (budgets["skim-405b-target"], budgets["skim-405b-speculator"]) == (2, 1)


def test_pods_are_guarded(objects):
    found = dict(pods(objects))
    assert {"RayService head", "RayService router", "RayJob head"} < found.keys()
    for template in found.values():
        spec, container = template["spec"], template["spec"]["containers"][0]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        assert {"livenessProbe", "readinessProbe"} <= container.keys()
        shared = next(v for v in spec["volumes"] if v["name"] == "shared-memory")
        assert shared["emptyDir"]["medium"] == "Memory"
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_a_serving_pod_sends_clients_away_before_it_ends(objects):
    """The file comes first, because Ray's command may wait for a head that is gone. Kubernetes waits for all of it."""
    for name, template in pods(objects):
        if name.removeprefix("RayService ") in ("router", "speculator", "target", "prefill"):
            spec, container = template["spec"], template["spec"]["containers"][0]
            *_, hook = container["lifecycle"]["preStop"]["exec"]["command"]
            file, drain, wait = hook.split("; ")
            assert file == f'touch "${DRAINING_FILE}"'
            assert drain.startswith("timeout 20 ray drain-node ")
            assert spec["terminationGracePeriodSeconds"] > 20 + int(wait.removeprefix("sleep "))
            env = {e["name"]: e.get("value") for e in container["env"]}
            assert env.items() >= DRAINING_SWITCHES.items()
            assert {"name": "tmp", "mountPath": str(Path(env[DRAINING_FILE]).parent)} in container["volumeMounts"]


def test_the_head_does_no_work(objects):
    for thing in objects:
        cluster = thing.get("spec", {}).get("rayClusterConfig")
        if cluster:
            assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
            assert cluster["authOptions"] == {"mode": "token"}
            assert cluster["autoscalerOptions"]["version"] == "v2"


def test_redis():
    """The head reaches it, with its own user and Secret."""
    redis = {"address": "rediss://redis.example:7777", "username": "ray", "password_secret": "r", "password_key": "k"}
    config = config_from_flags(DEMO, {"kubernetes.redis": redis})
    assert service_of(config)["rayClusterConfig"]["gcsFaultToleranceOptions"] == {
        "redisAddress": "rediss://redis.example:7777",
        "redisUsername": {"value": "ray"},
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "r", "key": "k"}}},
    }
    assert "gcsFaultToleranceOptions" not in service_of(load_config(DEMO))["rayClusterConfig"]
    for wrong in ({}, {"address": "redis.example"}):
        with pytest.raises(SkimError, match=r"kubernetes\.redis\.address"):
            config_from_flags(DEMO, {"kubernetes.redis": wrong})


def test_every_node_serves_alike(objects):
    """Also on the head: its controller and proxy read the same switches as the replicas."""
    nodes = [pod for name, pod in pods(objects) if name.startswith("RayService")]
    for pod in nodes:
        env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
        assert env.items() >= (SERVE_SWITCHES | DIRECT_GRPC).items()
    assert len(nodes) >= 4


def test_objects_point_at_each_other(example, objects):
    templates = [template for _, template in pods(objects)]

    def selected(selector):
        return [t for t in templates if selector["matchLabels"].items() <= t["metadata"]["labels"].items()]

    for thing in objects:
        assert thing["metadata"]["namespace"] == example.kubernetes.namespace
        if thing["kind"] in ("PodDisruptionBudget", "PodMonitor"):
            assert selected(thing["spec"]["selector"])
        if thing["kind"] == "NetworkPolicy":
            assert selected(thing["spec"]["podSelector"])
        for endpoint in thing.get("spec", {}).get("podMetricsEndpoints", []):
            ports = [
                p["name"] for t in selected(thing["spec"]["selector"]) for p in t["spec"]["containers"][0]["ports"]
            ]
            assert endpoint["port"] in ports
    claims = {v["persistentVolumeClaim"]["claimName"] for t in templates for v in t["spec"].get("volumes", [])
              if "persistentVolumeClaim" in v}  # fmt: skip
    settings = example.kubernetes
    assert claims == {settings.batch.claim, settings.models.claim, settings.hub.claim} - {None}


def test_no_secret_is_written():
    secrets = {"channel.token": TOKEN, "target.engine_options.api_key": KEY}
    things = [t for ts in manifests(config_from_flags(DEMO, secrets)).values() for t in ts]
    text = manifest_yaml(things)
    assert TOKEN not in text
    assert KEY not in text
    # A secret that the config uses must exist: without it, a pod would accept any client.
    router = dict(pods(things))["RayService router"]["spec"]["containers"][0]
    keys = {
        e["valueFrom"]["secretKeyRef"]["key"]: e["valueFrom"]["secretKeyRef"] for e in router["env"] if "valueFrom" in e
    }
    assert {key: ref["optional"] for key, ref in keys.items()} == {"channel-token": False, "api-key": False}
    plain = dict(pods([t for ts in manifests(load_config(DEMO)).values() for t in ts]))["RayService router"]
    assert all(
        e["valueFrom"]["secretKeyRef"]["optional"] for e in plain["spec"]["containers"][0]["env"] if "valueFrom" in e
    )


def test_no_container_can_write_to_its_image(objects):
    autoscalers = [t["spec"]["rayClusterConfig"]["autoscalerOptions"] for t in objects if t["kind"] == "RayService"]
    for container in [*autoscalers, *(pod["spec"]["containers"][0] for _, pod in pods(objects))]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
        assert writable >= {"/tmp", "/home/skim"}


def test_the_file_of_api_keys():
    with pytest.raises(SkimError, match=r"kubernetes\.api_keys_secret: is not set"):
        ray_service(config_from_flags(DEMO, {"router.api_keys_file": "keys.yaml"}))
    things = manifests(config_from_flags(DEMO, {"kubernetes.api_keys_secret": "keys"}))
    mount = {"name": "api-keys", "mountPath": "/etc/skim/api-keys", "readOnly": True}
    groups = dict(pods([t for ts in things.values() for t in ts]))
    holders = {name for name, pod in groups.items() if mount in pod["spec"]["containers"][0].get("volumeMounts", [])}
    assert holders == {"RayService router"}
    [service] = things["rayservice.yaml"]
    router = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["args"]["router"]
    assert router["api_keys_file"] == "/etc/skim/api-keys/keys.yaml"


def test_tls_of_the_endpoint_is_the_ingress():
    with pytest.raises(SkimError, match=r"router\.tls_cert: cannot be set on Kubernetes"):
        ray_service(config_from_flags(DEMO, {"router.tls_cert": "c.pem", "router.tls_key": "k.pem"}))


def test_tls_of_the_channel():
    files = {"channel.tls_cert": "a", "channel.tls_key": "b", "channel.tls_ca": "c"}
    with pytest.raises(SkimError, match=r"kubernetes\.tls_secret: is not set"):
        ray_service(config_from_flags(DEMO, files))
    service = ray_service(config_from_flags(DEMO, {"kubernetes.tls_secret": "certs"}))["spec"]
    channel = yaml.safe_load(service["serveConfigV2"])["applications"][0]["args"]["channel"]
    assert channel["tls_ca"] == "/etc/skim/tls/ca.crt"
    for group in service["rayClusterConfig"]["workerGroupSpecs"]:
        assert {"name": "channel-tls", "mountPath": "/etc/skim/tls", "readOnly": True} in group["template"]["spec"][
            "containers"
        ][0]["volumeMounts"]


def test_traces_of_all_parts_go_to_the_collector():
    traced = config_from_flags(DEMO, {"observability.traces": {"endpoint": "http://c"}})
    served = yaml.safe_load(service_of(traced)["serveConfigV2"])["applications"][0]
    router = serve_app(served["args"])._bound_deployment
    for traces in (router.init_kwargs["traces"], *(pool.init_args[0].traces for pool in pools_of(router))):
        assert traces["endpoint"] == "http://c"


REMOTE = {"input": "s3://a/in", "output": "s3://a/out"}


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, []),
        ({"observability.traces": {"endpoint": "http://collector.tracing:4318"}}, [4318]),
        ({"observability.traces": {"endpoint": "https://traces.example.com/otlp"}}, [443]),
        ({"target.model": "owner/big"}, [443]),
        ({"target.model": "owner/big", "kubernetes.hub.endpoint": "http://hub.mirrors:8080/models"}, [8080]),
        ({"kubernetes.redis.address": "rediss://redis.example:7777"}, [7777]),
        ({"kubernetes.redis.address": "redis:6379"}, [6379]),
        ({"kubernetes.batch": {**REMOTE, "endpoint": "http://gateway"}}, [80, 443]),
    ],
)
def test_pods_reach_only_what_the_deployment_names(settings, ports):
    """DNS, each other, and the head the API server."""
    policies = {
        p["metadata"]["name"]: p["spec"]["egress"]
        for p in manifests(config_from_flags(DEMO, settings))["network-policies.yaml"]
    }
    assert policies.keys() == {"skim-demo-ray", "skim-demo-head"}
    among, outside = policies["skim-demo-ray"]
    assert among["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "skim-demo"
    assert outside["ports"] == DNS_PORTS + [{"protocol": "TCP", "port": port} for port in ports]
    assert [port["port"] for port in policies["skim-demo-head"][0]["ports"]] == [443, 6443]


def test_a_pod_too_small_for_its_replica_is_refused():
    with pytest.raises(SkimError, match=r"kubernetes\.target\.cpu: is 500m, but a replica reserves 4 cores"):
        ray_service(config_from_flags(DEMO, {"kubernetes.target.cpu": "500m", "target.cpus_per_replica": 4}))


@pytest.mark.parametrize("settings", [{"router.port": 8080}, {"channel.port": 6379}, {"channel.port": 8000}])
def test_a_port_that_is_taken_in_the_pods_is_refused(settings):
    [(name, port)] = settings.items()
    with pytest.raises(SkimError, match=rf"^{name}: is {port}, which is taken in the pods"):
        ray_service(config_from_flags(DEMO, settings))


def test_labels_and_resources_of_nodes():
    settings = {"target.node_labels": {"zone": "a"}, "target.resources": {"fast_disk": 0.5}, "kubernetes.gpus": True}
    groups = service_of(config_from_flags(DEMO, settings))["rayClusterConfig"]["workerGroupSpecs"]
    target = groups[2]
    assert target["labels"] == {"zone": "a"}
    assert target["rayStartParams"]["resources"] == r'"{\"target_pool\": 1, \"fast_disk\": 1}"'
    assert target["template"]["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_files_are_written_and_old_ones_go(skim, tmp_path):
    ran = skim("manifests", DEMO, "-o", tmp_path / "out")
    assert (ran.code, "rayservice.yaml" in ran.out) == (0, True)
    files = {str(f.relative_to(tmp_path / "out")): f for f in (tmp_path / "out").rglob("*.yaml")}
    expected = manifests(load_config(DEMO))
    assert files.keys() == expected.keys()
    for name, file in files.items():
        assert file.read_text().startswith(HEADER)
        assert list(yaml.safe_load_all(file.read_text())) == expected[name]
    (tmp_path / "out" / "mine.yaml").write_text("kind: Secret\n")
    (tmp_path / "out" / "old.yaml").write_text(HEADER)
    write_manifests(load_config(DEMO), tmp_path / "out")
    assert {f.name for f in (tmp_path / "out").glob("*.yaml")} - expected.keys() == {"mine.yaml"}


def test_the_batch_job_asks_the_services_endpoint():
    job = next(t for ts in manifests(load_config(DEMO)).values() for t in ts if t["kind"] == "RayJob")
    words = job["spec"]["entrypoint"].split()
    assert words == [
        *("python", "-m", "cluster.batch", "--input", "/data/in.jsonl", "--output", "/data/out.jsonl"),
        *("--endpoint", "http://skim-demo-serve-svc:8000"),
    ]
    head = dict(pods([job]))["RayJob head"]["spec"]
    assert {"name": "data", "mountPath": "/data"} in head["containers"][0]["volumeMounts"]
    assert "OPENAI_API_KEY" in [variable["name"] for variable in head["containers"][0]["env"]]


def test_no_batch_job_without_files():
    plain = manifests(config_from_flags(DEMO, {"kubernetes": {}}))
    assert "jobs/batch.yaml" not in plain
    with pytest.raises(SkimError, match=r"kubernetes\.batch: /data/in\.jsonl is a local file: put it under /data"):
        config_from_flags(DEMO, {"kubernetes.batch": {"input": "/data/in.jsonl", "output": "s3://b/out.jsonl"}})


def test_a_folder_that_cannot_be_written(skim, tmp_path):
    (tmp_path / "file").write_text("")
    ran = skim("manifests", DEMO, "-o", tmp_path / "file")
    assert ran.code == 2
    assert "cannot write to" in ran.error
