"""Takes what Alertmanager posts, and prints the alerts in it: of what, since when."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for it in body["alerts"]:
            name, instance = it["labels"]["alertname"], it["labels"].get("instance", "all")
            sys.stdout.write(f"arrived: {name} of {instance} is {it['status']} since {it['startsAt']}\n")
        self.send_response(200)
        self.end_headers()


HTTPServer(("0.0.0.0", 8000), Handler).serve_forever()  # noqa: S104 - in a container
