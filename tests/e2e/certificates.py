"""Certificates for tests, made by the openssl program: an authority, and what it issues."""
import shutil
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def openssl(*args) -> bytes:
    done = subprocess.run(["openssl", *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@dataclass
class Pair:
    """A certificate and its private key, as files."""
    certificate: Path
    key: Path

    def copy_to(self, folder: Path, name: str) -> "Pair":
        """Copies that a test may replace: each appears at once."""
        copies = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        for source, target in ((self.certificate, copies.certificate), (self.key, copies.key)):
            shutil.copy(source, folder / "next")
            (folder / "next").rename(target)
        return copies

    def serve_flags(self) -> tuple:
        return ("--ssl-certfile", self.certificate, "--ssl-keyfile", self.key)


class Authority:
    """An authority with a folder of its own. Its certificate is `certificate`."""

    def __init__(self, name: str = "ca"):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.name = name
        self.certificate, self.key = self.folder / "ca.pem", self.folder / "ca.key"
        openssl("req", "-x509", *self.new_key(self.key), "-out", self.certificate, "-days", 2,
                "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    @staticmethod
    def new_key(path: Path) -> tuple:
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)

    def issue(self, name: str, days: int = 2) -> Pair:
        """A certificate for localhost. Below 0 days it has expired."""
        made = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request, names = self.folder / f"{name}.csr", self.folder / "names"
        names.write_text(NAMES)
        openssl("req", "-new", *self.new_key(made.key), "-subj", f"/CN={name}", "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                "-days", days, "-extfile", names, "-out", made.certificate)
        return made

    def context(self, client: Pair | None = None) -> ssl.SSLContext:
        """The TLS context of a client that trusts only this authority."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.set_alpn_protocols(["http/1.1"])
        if client:
            context.load_cert_chain(client.certificate, client.key)
        return context
