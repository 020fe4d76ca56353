"""litserve_server.py FOLDER PORT: LitServe with a worker for each core, one text a call, over HTTP."""

import sys
from pathlib import Path

import litserve
from scorer import Scorer

WORKERS = 2


class Api(litserve.LitAPI):
    def setup(self, device):
        self._scorer = Scorer(Path(sys.argv[1]))

    def decode_request(self, request):
        return request["text"]

    def predict(self, text):
        return self._scorer.score([text])[0]

    def encode_response(self, found):
        return {"labels": [{"name": name, "score": score} for name, score in found]}


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=WORKERS)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, num_api_servers=1)
