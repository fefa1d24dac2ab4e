"""Grafana's dashboard and Prometheus's alerts ask for what /metrics exposes, and nothing else."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # it ships no types

from tests.app.scraping import done, families
from tests.app.world import ROOT, World

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "grasp.json"
PROVISIONING = DEPLOY / "grafana" / "provisioning"
PROMETHEUS = DEPLOY / "prometheus"
ADDED = {"job", "instance"}  # labels that Prometheus gives to all that it scrapes


@cache
def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def rules() -> list[dict[str, Any]]:
    groups = read_yaml(PROMETHEUS / "rules.yml")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def overlay() -> dict[str, Any]:
    loaded: dict[str, Any] = read_yaml(DEPLOY / "compose.observe.yml")
    return loaded


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = read_yaml(ROOT / "docker-compose.yml")
    return loaded


def queries() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"]["query"] for variable in dashboard()["templating"]["list"][1:])
    yield from (rule["expr"] for rule in rules())


def labels_in(query: str) -> set[str]:
    grouped = re.findall(r"\b(?:by|without) \(([^)]*)\)", query)
    selected = [re.findall(r"(\w+)\s*[!=]", braces) for braces in re.findall(r"\{([^}]*)\}", query)]
    return {name.strip() for group in grouped for name in group.split(",")}.union(*selected)


def test_dashboard_and_alerts_ask_for_what_is_exposed(world: World) -> None:
    world.add_worker(totals=done())
    world.client.get("/healthz")  # of requests there is nothing to publish before the first
    labels: dict[str, set[str]] = {"up": set()}  # Prometheus's own
    for family in families(world):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)

    asked = list(queries())

    assert len(asked) > 30
    for query in asked:
        names = set(re.findall(r"\b(?:grasp_\w+|process_\w+|up)\b", query))
        assert names, query
        assert names <= labels.keys(), query
        assert labels_in(query) <= ADDED.union(*(labels[name] for name in names)), query


def test_what_is_exposed_is_shown_or_is_known_otherwise(world: World) -> None:
    world.add_worker(totals=done())
    exposed = {f.name for f in families(world) if f.name.startswith("grasp_")}

    shown = " ".join(queries())

    about_only = {"grasp_worker_info"}
    assert {name for name in exposed if name not in shown} == about_only


def test_brackets_of_queries_close() -> None:
    for query in queries():
        for opening, closing in ("()", "[]", "{}"):
            assert query.count(opening) == query.count(closing), query


def test_panels_differ_and_say_what_they_are() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels)
    for panel in panels:
        assert panel["type"] == "row" or panel["targets"], panel["title"]


def test_alerts_say_what_happened_and_how_bad_it_is() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()
        assert re.fullmatch(r"[1-9]\d*[mh]", rule.get("for", "5m"))


def test_prometheus_comes_with_a_key_and_finds_its_rules() -> None:
    config = read_yaml(PROMETHEUS / "prometheus.yml")
    (job,) = config["scrape_configs"]
    key = Path(job["authorization"]["credentials_file"])
    (target,) = job["static_configs"][0]["targets"]

    assert all((PROMETHEUS / name).exists() for name in config["rule_files"])
    assert job["job_name"] == "grasp"  # by which the rules know it
    assert key.parent == Path("/run/secrets")
    assert (
        overlay()["services"]["prometheus"]["secrets"] == list(overlay()["secrets"]) == [key.name]
    )
    assert target.partition(":")[0] in compose()["services"]


def test_the_overlay_mounts_what_is_there_and_publishes_grafana_on_loopback_only() -> None:
    for name, service in overlay()["services"].items():
        assert name not in compose()["services"]
        assert re.fullmatch(r"\w+/\w+:v?\d+\.\d+\.\d+", service["image"])
        assert set(service["networks"]) <= compose()["networks"].keys()
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            there = (ROOT / source).is_dir() and volume.endswith(":ro")
            assert there or source in overlay()["volumes"], volume
    published = [each["ports"] for each in overlay()["services"].values() if "ports" in each]
    assert published == [["${GRAFANA_ADDRESS:-127.0.0.1}:${GRAFANA_PORT:-3000}:3000"]]


def test_grafana_is_given_the_dashboard_and_prometheus() -> None:
    (provider,) = read_yaml(PROVISIONING / "dashboards" / "grasp.yaml")["providers"]
    (source,) = read_yaml(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    volumes = overlay()["services"]["grafana"]["volumes"]
    mounts = dict(volume.removesuffix(":ro").split(":") for volume in volumes)

    assert mounts[f"./{DASHBOARD.parent.relative_to(ROOT)}"] == provider["options"]["path"]
    assert mounts[f"./{PROVISIONING.relative_to(ROOT)}"] == "/etc/grafana/provisioning"
    assert source["url"] == "http://prometheus:9090"
    assert dashboard()["templating"]["list"][0]["query"] == source["type"] == "prometheus"
