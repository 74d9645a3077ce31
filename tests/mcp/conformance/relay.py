"""What the conformance suite starts as a client: it has `client.py` run in the test's process. `relay.py SOCKET URL`."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as test:
    test.connect(sys.argv[1])
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    test.sendall(json.dumps([sys.argv[2], os.environ["MCP_CONFORMANCE_SCENARIO"], given]).encode() + b"\n")
    failed, text = json.loads(test.makefile().read())
print(text)
sys.exit(failed)
