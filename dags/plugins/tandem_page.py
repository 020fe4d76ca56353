"""An Airflow plugin: the page *Tandem* in the navigation, which the API server serves."""

from typing import Any

from airflow.plugins_manager import AirflowPlugin

#: Where the API server mounts the page, below its own address.
PREFIX = "/tandem"


class TandemPage(AirflowPlugin):  # type: ignore[misc]
    name = "tandem_page"

    # Every process of Airflow loads plugins, and only the API server asks for these: tasks must not pay for FastAPI.
    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        from dags.pages.app import app

        return [{"name": "Tandem", "app": app, "url_prefix": PREFIX}]

    @property
    def external_views(self) -> list[dict[str, Any]]:
        from airflow.api_fastapi.app import API_ROOT_PATH

        href = f"{API_ROOT_PATH.rstrip('/')}{PREFIX}/"
        return [{"name": "Tandem", "href": href, "destination": "nav", "url_route": "tandem", "nav_top_level": True}]
