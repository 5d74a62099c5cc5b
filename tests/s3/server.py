"""An S3-compatible server with one empty bucket, on a free port of this machine, which it prints.

moto checks a condition and writes in two steps, so requests are served one at a time: else it
would not keep to the conditions that the exam is about.
"""

import threading

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server(
    "127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False
)
address = f"http://127.0.0.1:{server.port}"

threading.Thread(target=server.serve_forever, daemon=True).start()
boto3.client(
    "s3",
    endpoint_url=address,
    region_name="us-east-1",
    aws_access_key_id="test",
    aws_secret_access_key="test",
).create_bucket(Bucket="topology")
print(address, flush=True)
threading.Event().wait()
