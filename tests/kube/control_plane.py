"""A real etcd, kube-apiserver and kube-scheduler on free local ports, without nodes or root."""

import json
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from attrs import define, field
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kube.binaries import minor

TOKEN = "control-plane-admin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(snapshot: Any, *, seconds: float = 60.0) -> Any:
    """Return what `snapshot` finds once it finds something; fail after so many seconds.

    What takes long to look at is looked at less often: it takes its time from what is waited for.
    """
    deadline = time.monotonic() + seconds
    while (began := time.monotonic()) < deadline:
        value = snapshot()
        if value:
            return value
        time.sleep(min(max(0.1, time.monotonic() - began), 0.5))
    raise AssertionError(f"not within {seconds} s: {snapshot}")


@define
class Authority:
    """A certificate authority of one test, writing what it signs into a folder."""

    folder: Path
    name: str = "test-ca"
    key: ec.EllipticCurvePrivateKey = field(factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __attrs_post_init__(self) -> None:
        self._write("ca", self._sign(self.name, self.key, authority=True), self.key)

    @property
    def path(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, name: str, *, lasts: timedelta = timedelta(days=1)) -> tuple[Path, Path]:
        """Return the paths of a certificate for 127.0.0.1 and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write(name, self._sign(name, key, lasts=lasts), key)

    def _sign(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        authority: bool = False,
        lasts: timedelta = timedelta(days=1),
    ) -> x509.Certificate:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + lasts)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
                ),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )

    def _write(
        self, name: str, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> tuple[Path, Path]:
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths


@define
class ControlPlane:
    """Where a running control plane is."""

    folder: Path
    port: int
    binaries: Path
    running: list[subprocess.Popen[bytes]] = field(factory=list)
    _started: dict[str, tuple[Any, tuple[str, ...], Mapping[str, str] | None]] = field(factory=dict)

    @property
    def minor(self) -> int:
        """Which Kubernetes 1.N this is."""
        return minor(self.binaries)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "") -> Any:
        """Return what the API answers, HTTP errors raised as `urllib` does."""
        return json.loads(self._ask(method, path, body, kind))

    def healthy(self) -> bool:
        """Whether the API server says that all of it runs: others end soon where it does not."""
        try:
            return self._ask("GET", "/healthz", None, "") == b"ok"
        except OSError:
            return False

    def _ask(self, method: str, path: str, body: Any, kind: str) -> bytes:
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {TOKEN}",
                "Content-Type": kind or "application/json",
            },
        )
        tls = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, context=tls, timeout=10) as answer:
                data: bytes = answer.read()
                return data
        except urllib.error.HTTPError as error:
            error.msg = error.read().decode()  # the API says what is wrong
            raise

    def start(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> Any:
        """Start a process of this control plane; its output goes to `<name>.log`."""
        with (self.folder / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                argv, stdout=out, stderr=out, env={**os.environ, **(env or {})}
            )
        self.running.append(process)
        self._started[name] = (process, argv, env)
        return process

    def kill_and_restart(self, name: str) -> None:
        """Kill a process as `kill -9` does, and start it again."""
        process, argv, env = self._started[name]
        process.kill()
        process.wait()
        self.start(name, *argv, env=env)

    def stop(self, name: str) -> None:
        """Kill a process, and forget what it said."""
        process, _, _ = self._started.pop(name)
        process.kill()
        process.wait()
        self.running.remove(process)
        (self.folder / f"{name}.log").unlink()

    def processor_seconds(self) -> dict[str, float]:
        """Return the processor seconds that each process has used so far."""
        used = {}
        for name, (process, _, _) in self._started.items():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return used

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def add_node(self, name: str, annotations: Mapping[str, str], **resources: str) -> None:
        """Make a Node that looks ready to schedulers."""
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "250", **resources}
        metadata = {"name": name, "annotations": dict(annotations)}
        self.call("POST", "/api/v1/nodes", {"metadata": metadata})
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        merge = "application/merge-patch+json"
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind=merge)
        self.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, kind=merge)

    def add_pod(self, name: str, limits: Mapping[str, str], **rest: Any) -> Any:
        """Make a pod of one container, for the scheduler with our extender."""
        spec = {
            "schedulerName": "hetero-scheduler",
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
            **rest.get("spec", {}),
        }
        metadata = {"name": name, **rest.get("metadata", {})}
        return self.call(
            "POST", "/api/v1/namespaces/default/pods", {"metadata": metadata, "spec": spec}
        )

    def pod(self, name: str) -> Any:
        return self.call("GET", f"/api/v1/namespaces/default/pods/{name}")

    def pods(self) -> list[Any]:
        items: list[Any] = self.call("GET", "/api/v1/namespaces/default/pods")["items"]
        return items

    def events(self, name: str) -> list[str]:
        query = f"?fieldSelector=involvedObject.name={name}"
        items = self.call("GET", f"/api/v1/namespaces/default/events{query}")["items"]
        return [item["message"] for item in items]


@contextmanager
def control_plane(
    folder: Path, *, binaries: Path, more: tuple[str, ...] = ()
) -> Iterator[ControlPlane]:
    """Run etcd and kube-apiserver, maybe with more arguments."""
    made = ControlPlane(folder=folder, port=free_port(), binaries=binaries)
    client, peer = free_port(), free_port()
    etcd, settings = binaries / "etcd", folder / "etcd.json"
    settings.write_text(
        json.dumps(
            {
                "name": "default",
                "data-dir": str(folder / "etcd"),
                "unsafe-no-fsync": True,
                "listen-client-urls": f"http://127.0.0.1:{client}",
                "advertise-client-urls": f"http://127.0.0.1:{client}",
                "listen-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-cluster": f"default=http://127.0.0.1:{peer}",
            }
        )
    )
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    made.kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [
                    {
                        "name": "test",
                        "cluster": {
                            "server": f"https://127.0.0.1:{made.port}",
                            "insecure-skip-tls-verify": True,
                        },
                    }
                ],
                "users": [{"name": "admin", "user": {"token": TOKEN}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            }
        )
    )
    try:
        made.start("etcd", str(etcd if etcd.exists() else "etcd"), f"--config-file={settings}")
        made.start(
            "apiserver", str(binaries / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{client}", "--advertise-address=127.0.0.1",
            "--bind-address=127.0.0.1", f"--secure-port={made.port}",
            *(["--insecure-port=0"] if made.minor < 24 else []),
            f"--cert-dir={folder / 'apiserver'}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.96.0.0/24", "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc", *more,
        )  # fmt: skip

        def answers() -> bool:
            try:
                made.call("GET", "/api/v1/namespaces/default")
            except OSError:
                return False
            return True

        wait_for(answers)
        yield made
    finally:
        for process in reversed(made.running):  # nothing of it is to be kept
            process.kill()
            process.wait()
