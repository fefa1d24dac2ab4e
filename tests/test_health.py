from importlib.metadata import version

from starlette.testclient import TestClient

from app.main import create_app


def test_healthz_says_ok_and_which_version() -> None:
    response = TestClient(create_app()).get("/healthz")

    assert response.status_code == 200
    assert response.json() == {"status": "ok", "version": version("grasp-merge")}
