"""Airflow plugins: pages in the navigation, *Tandem* and, where the board of the service has an address, both service
levels. The API server serves them."""

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

        from batch_job.launch import operating

        root = f"{API_ROOT_PATH.rstrip('/')}{PREFIX}/"
        pages = [("Tandem", root, "tandem")]
        if operating.link(operating.BOARD_URL):
            pages.append(("Service levels", f"{root}board", "tandem-board"))
        return [
            {"name": name, "href": href, "destination": "nav", "url_route": route, "nav_top_level": True}
            for name, href, route in pages
        ]
