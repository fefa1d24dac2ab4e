"""Fetching by URI: real files and links, and a real HTTPS server with a certificate of its own."""

import asyncio
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from app.fetching import fetch as fetching
from app.fetching import hosts as fetching_hosts
from app.fetching import https as fetching_https
from app.fetching.fetch import (
    FetchError,
    FetchPolicy,
    UriNotAllowed,
    UriUnreachable,
    local_path,
    open_uri,
)

CONTENT = bytes(range(256)) * 1000
NAME = "files.test"  # in the certificate; resolved by the fixture `names`
NOTHING = FetchPolicy(data_roots=(), allowed_hosts=())


def fetch(uri: str, policy: FetchPolicy) -> tuple[int | None, str, bytes]:
    async def run() -> tuple[int | None, str, bytes]:
        async with open_uri(uri, policy) as fetched:
            content = b"".join([chunk async for chunk in fetched.chunks])
            return fetched.size, fetched.filename, content

    return asyncio.run(run())


def refusal(uri: str, policy: FetchPolicy) -> FetchError:
    with pytest.raises(FetchError) as caught:
        fetch(uri, policy)
    assert caught.value.hint
    return caught.value


# Local files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "file.bin").write_bytes(CONTENT)
    (root / "naïve #1.bin").write_bytes(b"named")
    (root / "empty.bin").touch()
    (tmp_path / "secret.bin").write_bytes(b"secret")
    (tmp_path / "root-too").mkdir()
    (tmp_path / "root-too" / "secret.bin").write_bytes(b"secret")
    return root


@pytest.fixture
def local(root: Path) -> FetchPolicy:
    return FetchPolicy(data_roots=(root,), allowed_hosts=())


def test_a_file_below_a_root(root: Path, local: FetchPolicy) -> None:
    assert fetch(f"file://{root}/file.bin", local) == (len(CONTENT), "file.bin", CONTENT)


@pytest.mark.parametrize(
    ("path", "filename", "content"),
    [
        ("/na%C3%AFve%20%231.bin", "naïve #1.bin", b"named"),
        ("/%66ile.bin", "file.bin", CONTENT),
        ("/folder/../file.bin", "file.bin", CONTENT),
        ("//file.bin", "file.bin", CONTENT),
        ("/empty.bin", "empty.bin", b""),
    ],
)
def test_ways_to_write_a_path(
    root: Path, local: FetchPolicy, path: str, filename: str, content: bytes
) -> None:
    assert fetch(f"file://{root}{path}", local) == (len(content), filename, content)


def test_other_ways_to_write_the_scheme(root: Path, local: FetchPolicy) -> None:
    for prefix in ("file://localhost", "FILE://", "file:"):
        assert fetch(f"{prefix}{root}/file.bin", local)[2] == CONTENT


@pytest.mark.parametrize("size", [1, 1000, len(CONTENT), len(CONTENT) + 1])
def test_chunks_of_any_size(
    root: Path, local: FetchPolicy, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "CHUNK_BYTES", size)
    content = CONTENT if size > 1 else CONTENT[:50]
    (root / "file.bin").write_bytes(content)

    assert fetch(f"file://{root}/file.bin", local)[2] == content


OUTSIDE = {
    "beside the root": "{parent}/secret.bin",
    "the same beginning": "{root}-too/secret.bin",
    "dots": "{root}/../secret.bin",
    "dots that go round": "{root}/folder/../../secret.bin",
    "encoded dots": "{root}/%2e%2e/secret.bin",
    "encoded slashes": "{root}/..%2fsecret.bin",
    "link to a file": "{root}/link.bin",
    "link to a folder": "{root}/up/secret.bin",
    "link in a circle": "{root}/circle",
    "the system's": "/etc/passwd",
    "nothing there": "{parent}/missing.bin",
    "the parent": "{parent}",
}


@pytest.mark.parametrize("path", OUTSIDE.values(), ids=OUTSIDE)
def test_what_lies_outside_of_the_roots(root: Path, local: FetchPolicy, path: str) -> None:
    (root / "link.bin").symlink_to(root.parent / "secret.bin")
    (root / "up").symlink_to("..")
    (root / "circle").symlink_to("circle")

    error = refusal("file://" + path.format(root=root, parent=root.parent), local)

    assert isinstance(error, UriNotAllowed)
    assert error.code == "uri_not_allowed"
    assert error.message.endswith(" is not below a data root of this server")  # not which those are
    assert "GRASP_DATA_ROOTS" in str(error)


def test_what_exists_outside_is_not_told(root: Path, local: FetchPolicy) -> None:
    there, missing = f"file://{root.parent}/secret.bin", f"file://{root.parent}/nothing.bin"

    assert str(refusal(there, local)).replace(there, missing) == str(refusal(missing, local))


def test_links_that_stay_below_a_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.bin").write_bytes(b"other")
    (tmp_path / "alias").symlink_to(root)
    (root / "inside.bin").symlink_to("file.bin")
    (root / "across.bin").symlink_to(tmp_path / "other" / "file.bin")
    policy = FetchPolicy(data_roots=(tmp_path / "alias", tmp_path / "other"), allowed_hosts=())

    assert fetch(f"file://{tmp_path}/alias/inside.bin", policy)[2] == CONTENT
    assert fetch(f"file://{root}/across.bin", policy)[2] == b"other"
    assert local_path(f"file://{root}/across.bin", policy) == tmp_path / "other" / "file.bin"


@pytest.mark.parametrize(
    "uri",
    [
        "file://elsewhere{root}/file.bin",
        "file://127.0.0.1{root}/file.bin",
        "file://[::1{root}/file.bin",
        "file://{root}/file.bin%00.png",
        "file://{root}/file.bin\0",
        "file://{root}/file\n.bin",
        " file://{root}/file.bin",
        "file://{root}/file.bin?x",
        "file://{root}/file.bin#x",
        "file://{root}/%ff.bin",
        "file:file.bin",
        "file:",
        "file://",
    ],
)
def test_uris_that_name_no_file(root: Path, local: FetchPolicy, uri: str) -> None:
    assert refusal(uri.format(root=root), local).code == "uri_not_allowed"


def test_without_roots_the_setting_is_named(root: Path) -> None:
    error = refusal(f"file://{root}/file.bin", NOTHING)

    assert error.code == "uri_not_allowed"
    assert "set GRASP_DATA_ROOTS" in str(error)


@pytest.mark.parametrize("name", ["missing.bin", "file.bin/below", "x" * 300])
def test_a_missing_file_below_a_root(root: Path, local: FetchPolicy, name: str) -> None:
    error = refusal(f"file://{root}/{name}", local)

    assert isinstance(error, UriUnreachable)
    assert error.code == "uri_unreachable"


def test_a_folder_has_a_path_and_no_bytes(root: Path, local: FetchPolicy) -> None:
    uri = f"file://{root}/folder"

    assert local_path(uri, local) == root / "folder"
    assert local_path(f"file://{root}", local) == root
    assert "is not a file" in refusal(uri, local).message


def test_a_pipe_is_refused_at_once(root: Path, local: FetchPolicy) -> None:
    os.mkfifo(root / "pipe")

    assert refusal(f"file://{root}/pipe", local).code == "uri_unreachable"
    with pytest.raises(UriUnreachable, match="no file or folder"):  # a target would wait for ever
        local_path(f"file://{root}/pipe", local)


def test_a_link_put_in_place_after_the_check_is_not_followed(
    root: Path, local: FetchPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(uri: str, policy: FetchPolicy) -> Path:
        path = local_path(uri, policy)
        path.unlink()
        path.symlink_to(root.parent / "secret.bin")
        return path

    monkeypatch.setattr(fetching, "local_path", late)

    assert refusal(f"file://{root}/file.bin", local).code == "uri_unreachable"


def test_a_folder_changed_for_a_link_after_the_check_is_not_followed(
    root: Path, local: FetchPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "inner" / "deep").mkdir(parents=True)
    (root / "inner" / "deep" / "secret.bin").write_bytes(b"public")
    elsewhere = root.parent / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "secret.bin").write_bytes(b"secret")
    uri = f"file://{root}/inner/deep/secret.bin"
    assert fetch(uri, local)[2] == b"public"

    def late(uri: str, policy: FetchPolicy) -> Path:
        path = local_path(uri, policy)
        (root / "inner").rename(root / "before")
        (root / "inner").symlink_to(elsewhere)
        return path

    monkeypatch.setattr(fetching, "local_path", late)

    assert refusal(uri, local).code == "uri_unreachable"


def test_a_folder_on_the_way_need_not_be_readable(root: Path, local: FetchPolicy) -> None:
    (root / "shut").mkdir()
    (root / "shut" / "file.bin").write_bytes(CONTENT)
    (root / "shut").chmod(0o100)

    assert fetch(f"file://{root}/shut/file.bin", local)[2] == CONTENT


def test_the_address_is_told_as_it_was_checked(root: Path, local: FetchPolicy) -> None:
    (root / "link").symlink_to(root / "naïve #1.bin")

    async def address(uri: str) -> str:
        async with open_uri(uri, local) as fetched:
            return fetched.uri

    for uri in (f"file:{root}/link", f"FILE://{root}/folder/../naïve%20%231.bin"):
        assert asyncio.run(address(uri)) == (root / "naïve #1.bin").as_uri()


def test_the_file_is_closed_whatever_happens(root: Path, local: FetchPolicy) -> None:
    async def stop_early() -> None:
        async with open_uri(f"file://{root}/file.bin", local) as fetched:
            await anext(fetched.chunks)
            raise KeyError

    def opened() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = opened()
    with suppress(KeyError):
        asyncio.run(stop_early())
    fetch(f"file://{root}/file.bin", local)
    refusal(f"file://{root}/folder", local)

    assert opened() == before


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://files.test/file.bin", "'http' is not a known scheme"),
        ("ftp://files.test/file.bin", "'ftp' is not a known scheme"),
        ("data:,hello", "'data' is not a known scheme"),
        ("/etc/passwd", "is not a known scheme"),
        ("", "is not a known scheme"),
    ],
)
def test_other_schemes(uri: str, message: str) -> None:
    error = refusal(uri, FetchPolicy(data_roots=(Path("/"),), allowed_hosts=(NAME,)))

    assert error.code == "uri_not_allowed"
    assert message in error.message


# https://


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """For NAME and 127.0.0.1, signed by itself; and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    file, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    command += ["-addext", f"subjectAltName=DNS:{NAME},IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", file], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    return file, key


@dataclass
class Seen:
    """One request, as the server saw it."""

    path: str
    headers: dict[str, str]


@dataclass
class Site:
    """A running server."""

    port: int
    content: bytes
    requests: list[Seen] = field(default_factory=list)
    server_names: list[str | None] = field(default_factory=list)


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            site.requests.append(Seen(self.path, {k.lower(): v for k, v in self.headers.items()}))
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            action = getattr(self, "on_" + url.path.split("/")[1], self.on_file)
            action(**query)

        def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in ({"Content_Length": str(len(content))} | headers).items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Connection", "close")
            self.close_connection = True
            self.end_headers()
            with suppress(OSError):  # the client may have what it wants
                self.wfile.write(content)

        def on_file(self, **_: str) -> None:
            self.answer(200, site.content)

        def on_to(self, url: str, status: str = "302") -> None:
            self.answer(int(status), Location=url, Set_Cookie="id=1; Path=/")

        def on_hops(self, left: str) -> None:
            to = f"/hops?left={int(left) - 1}" if int(left) else "/file.bin"
            self.answer(307, Location=to)

        def on_status(self, code: str, **_: str) -> None:
            self.answer(int(code), b"no")

        def on_gzip(self) -> None:
            self.answer(200, b"zip", Content_Encoding="gzip")

        def on_cut(self) -> None:
            self.answer(200, site.content, Content_Length=str(len(site.content) + 1))

        def on_unsized(self) -> None:
            size = b"%x\r\n" % len(site.content)
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(size + site.content + b"\r\n0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def serving(
    certificate: tuple[Path, Path],
    content: bytes,
    host: str = "127.0.0.1",
    port: int = 0,
    make_handler: Callable[[Site], type[BaseHTTPRequestHandler]] = handler,
) -> Iterator[Site]:
    site = Site(port, content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.sni_callback = lambda _, name, __: site.server_names.append(name)
    with ThreadingHTTPServer((host, port), make_handler(site)) as server:
        server.daemon_threads = False  # wait for them at the end
        site.port = server.server_port
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def site(certificate: tuple[Path, Path]) -> Iterator[Site]:
    with serving(certificate, CONTENT) as site:
        yield site


@pytest.fixture
def policy(site: Site, certificate: tuple[Path, Path]) -> FetchPolicy:
    """NAME at the server's port; its address is this machine's, so it is listed too."""
    context = ssl.create_default_context(cafile=certificate[0])
    hosts = (f"{NAME}:{site.port}", "127.0.0.1")
    return FetchPolicy(data_roots=(), allowed_hosts=hosts, timeout=10, ssl_context=context)


Answers = dict[str, list[list[str]]]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What the DNS says: for each name its answers in turn, the last one for ever."""
    answers: Answers = {NAME: [["127.0.0.1"]]}
    real: Callable[..., Any] = socket.getaddrinfo

    def getaddrinfo(host: str | bytes, port: int, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        with suppress(ValueError):
            ip_address(name)
            return real(host, port, *args, **kwargs)
        if name not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        given = answers[name].pop(0) if len(answers[name]) > 1 else answers[name][0]
        return [found for address in given for found in real(address, port, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


def url(site: Site, path: str = "/file.bin") -> str:
    return f"https://{NAME}:{site.port}{path}"


def test_a_file_of_a_listed_host(site: Site, policy: FetchPolicy) -> None:
    size, filename, content = fetch(url(site, "/folder/na%C3%AFve.bin?key=1#part"), policy)

    assert (size, filename, content) == (len(CONTENT), "naïve.bin", CONTENT)
    (request,) = site.requests
    assert request.path == "/folder/na%C3%AFve.bin?key=1"
    assert request.headers["host"] == f"{NAME}:{site.port}"
    assert request.headers["accept-encoding"] == "identity"
    assert not request.headers.keys() & {"authorization", "cookie", "referer"}
    assert site.server_names == [NAME]


def test_the_size_is_unknown_if_the_server_does_not_tell(site: Site, policy: FetchPolicy) -> None:
    assert fetch(url(site, "/unsized"), policy) == (None, "unsized", CONTENT)


def test_the_host_stands_in_for_a_missing_filename(site: Site, policy: FetchPolicy) -> None:
    assert fetch(url(site, "/"), policy)[1] == NAME


def test_an_address_that_is_listed_literally(site: Site, policy: FetchPolicy) -> None:
    listed = replace(policy, allowed_hosts=(f"127.0.0.1:{site.port}",))

    assert fetch(f"https://127.0.0.1:{site.port}/f", listed)[2] == CONTENT


@pytest.mark.parametrize(
    "uri",
    [
        "https://other.test:{port}/file.bin",
        "https://files.test/file.bin",  # another port
        "https://files.test:1{port}/file.bin",
        "https://files.test:0/file.bin",
        "https://sub.files.test:{port}/file.bin",
        "https://files.test.:{port}/file.bin",
        "https://127.0.0.1:{port}/file.bin",
        "https://[::1]:{port}/file.bin",
        "https://2130706433:{port}/file.bin",
        "https://other.test\\@files.test:{port}/file.bin",
        "https://other.test#@files.test:{port}/file.bin",
        "https://files.test:{port}@other.test/file.bin",
        "https://user:secret@files.test:{port}/file.bin",
        "https://user@files.test:{port}/file.bin",
        "https:///file.bin",
        "https:file.bin",
        "https://files.test:port/",
        "https://files.test:{port}/\n",
        "https://xn--/file.bin",  # begins like punycode, and is none
    ],
)
def test_hosts_that_are_not_listed(site: Site, policy: FetchPolicy, uri: str) -> None:
    error = refusal(uri.format(port=site.port), policy)

    assert error.code == "uri_not_allowed"
    assert "secret" not in str(error)
    assert site.requests == []


@pytest.mark.parametrize(
    ("entry", "uri", "allowed"),
    [
        ("files.test", "https://files.test/x", True),
        ("files.test", "https://FILES.test:443/x", True),
        ("Files.Test:443", "https://files.test/x", True),
        ("files.test", "https://files.test:8443/x", False),
        ("files.test", "https://files.test:0/x", False),
        ("*.test", "https://files.test/x", False),
        (".test", "https://files.test/x", False),
        ("", "https:///x", False),
        ("10.0.0.1", "https://10.0.0.1/x", True),
        ("fd00::1", "https://[fd00::1]/x", True),
        ("[fd00::1]:8443", "https://[fd00:0::1]:8443/x", False),  # exactly, as a text
        ("[fd00::1]:8443", "https://[fd00::1]:8443/x", True),
        ("bücher.test", "https://xn--bcher-kva.test/x", True),
        ("not a host:port", "https://files.test/x", False),
    ],
)
def test_how_hosts_are_listed(
    entry: str, uri: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped where the request would be made."""

    async def resolved(host: str, port: int, timeout: float) -> None:
        raise LookupError

    monkeypatch.setattr(fetching_hosts, "_resolved", resolved)
    policy = FetchPolicy(data_roots=(), allowed_hosts=(entry,))

    with pytest.raises(LookupError if allowed else UriNotAllowed):
        fetch(uri, policy)


FORBIDDEN = {
    "loopback": "127.0.0.1",
    "loopback elsewhere": "127.8.9.10",
    "loopback 6": "::1",
    "mapped loopback": "::ffff:127.0.0.1",
    "6to4 loopback": "2002:7f00:1::",
    "metadata service": "169.254.169.254",
    "mapped metadata service": "::ffff:169.254.169.254",
    "link-local 6": "fe80::1",
    "unspecified": "0.0.0.0",
    "unspecified 6": "::",
    "multicast": "224.0.0.1",
    "multicast 6": "ff02::1",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "NAT64 loopback": "64:ff9b::7f00:1",
}


def test_hosts_that_are_allowed_are_not_told() -> None:
    error = refusal("https://elsewhere.test/x", FetchPolicy(data_roots=(), allowed_hosts=(NAME,)))

    assert error.code == "uri_not_allowed"
    assert "GRASP_ALLOWED_HOSTS" in str(error)
    assert NAME not in str(error)


@pytest.mark.parametrize("address", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("among", [[], ["192.0.2.1"]])
def test_addresses_that_are_refused(names: Answers, address: str, among: list[str]) -> None:
    names[NAME] = [[*among, address]]

    error = refusal(f"https://{NAME}/x", FetchPolicy(data_roots=(), allowed_hosts=(NAME,)))

    assert error.code == "uri_not_allowed"
    assert NAME in error.message
    assert "GRASP_ALLOWED_HOSTS" in str(error)


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.1.1", "172.16.0.1", "fd00::1", "8.8.8.8"])
def test_private_and_public_addresses_are_fine(
    names: Answers, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def first_answer(client: object, url: object, addresses: list[object]) -> None:
        tried.extend(map(str, addresses))
        raise LookupError

    monkeypatch.setattr(fetching_https, "_first_answer", first_answer)
    names[NAME] = [[address]]

    with pytest.raises(LookupError):
        fetch(f"https://{NAME}/x", FetchPolicy(data_roots=(), allowed_hosts=(NAME,)))
    assert tried == [address]


@pytest.fixture
def evil(site: Site, certificate: tuple[Path, Path]) -> Iterator[Site]:
    """At the same port of another address of this machine, even with the right certificate."""
    try:
        with serving(certificate, b"evil", "127.0.0.2", site.port) as evil:
            yield evil
    except OSError:
        pytest.skip("needs a second loopback address")


def test_a_second_answer_of_the_dns_changes_nothing(
    site: Site, evil: Site, policy: FetchPolicy, names: Answers
) -> None:
    names[NAME] = [["127.0.0.1"], ["127.0.0.2"]]

    assert fetch(url(site), policy)[2] == CONTENT
    assert evil.requests == []
    assert names[NAME] == [["127.0.0.2"]]  # asked once: one answer was taken
    assert refusal(url(site), policy).code == "uri_not_allowed"
    assert evil.requests == []


def test_after_a_redirect_the_dns_is_asked_and_checked_again(
    site: Site, evil: Site, policy: FetchPolicy, names: Answers
) -> None:
    names[NAME] = [["127.0.0.1"], ["127.0.0.2"]]

    assert refusal(url(site, "/to?url=/file.bin"), policy).code == "uri_not_allowed"
    assert len(site.requests) == 1
    assert evil.requests == []


def test_the_next_address_is_tried_if_the_first_does_not_answer(
    site: Site, policy: FetchPolicy, names: Answers
) -> None:
    names[NAME] = [["127.0.0.3", "127.0.0.1"]]
    listed = replace(policy, allowed_hosts=(*policy.allowed_hosts, "127.0.0.3"))

    assert fetch(url(site), listed)[2] == CONTENT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("to", ["/other/name.bin", "../name.bin", "{site}/other.bin"])
def test_a_redirect_within_the_listed_hosts(
    site: Site, policy: FetchPolicy, status: int, to: str
) -> None:
    path = f"/to/first.bin?status={status}&url={to.format(site=url(site, ''))}"

    _, filename, content = fetch(url(site, path), policy)

    assert (filename, content) == ("first.bin", CONTENT)
    assert len(site.requests) == 2
    assert "cookie" not in site.requests[1].headers


@pytest.mark.parametrize(
    "to",
    [
        "https://other.test/x",
        "//other.test/x",
        "http://files.test:{port}/x",
        "https://127.0.0.1:{port}/x",
        "https://user:secret@files.test:{port}/x",
        "file:///etc/passwd",
        "s3://bucket/key",
        "https://[broken/",
    ],
)
def test_a_redirect_to_a_forbidden_place(site: Site, policy: FetchPolicy, to: str) -> None:
    everywhere = replace(policy, data_roots=(Path("/"),))

    error = refusal(url(site, f"/to?url={to.format(port=site.port)}"), everywhere)

    assert error.code == "uri_not_allowed"
    assert len(site.requests) == 1


def test_redirects_have_an_end(site: Site, policy: FetchPolicy) -> None:
    assert fetch(url(site, "/hops?left=4"), policy)[2] == CONTENT
    assert len(site.requests) == 6
    site.requests.clear()

    error = refusal(url(site, "/hops?left=5"), policy)

    assert error.code == "uri_unreachable"
    assert "more than 5 times" in error.message
    assert len(site.requests) == 6


@pytest.mark.parametrize("code", [204, 206, 304, 401, 404, 500])
def test_any_status_but_200_is_an_error(site: Site, policy: FetchPolicy, code: int) -> None:
    error = refusal(url(site, f"/status?code={code}&token=hidden"), policy)

    assert error.code == "uri_unreachable"
    assert str(code) in error.message
    assert "hidden" not in str(error)


def test_compressed_bytes_are_refused(site: Site, policy: FetchPolicy) -> None:
    assert refusal(url(site, "/gzip"), policy).code == "uri_unreachable"


def test_an_answer_that_is_cut_off(site: Site, policy: FetchPolicy) -> None:
    error = refusal(url(site, "/cut"), policy)

    assert isinstance(error, UriUnreachable)
    assert "cannot be fetched" in error.message


def test_the_certificate_must_be_of_the_name(
    site: Site, policy: FetchPolicy, names: Answers
) -> None:
    names["other.test"] = [["127.0.0.1"]]
    listed = replace(policy, allowed_hosts=(f"other.test:{site.port}", "127.0.0.1"))

    error = refusal(f"https://other.test:{site.port}/x", listed)

    assert error.code == "uri_unreachable"
    assert "certificate" in error.message.lower()
    assert site.requests == []


def test_the_certificate_must_be_trusted(site: Site, policy: FetchPolicy) -> None:
    error = refusal(url(site), replace(policy, ssl_context=None))

    assert error.code == "uri_unreachable"
    assert "certificate" in error.message.lower()
    assert site.requests == []


def test_proxies_of_the_environment_are_not_used(
    site: Site, policy: FetchPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert fetch(url(site), policy)[2] == CONTENT


def test_nobody_listens(policy: FetchPolicy) -> None:
    with closing_port() as port:
        listed = replace(policy, allowed_hosts=(f"{NAME}:{port}", "127.0.0.1"))

        assert refusal(f"https://{NAME}:{port}/x", listed).code == "uri_unreachable"


@contextmanager
def closing_port() -> Iterator[int]:
    """A port that is taken, but where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("host", ["missing.test", "x" * 70 + ".test"])
def test_a_name_without_address(policy: FetchPolicy, host: str) -> None:
    listed = replace(policy, allowed_hosts=(host,))

    assert refusal(f"https://{host}/x", listed).code == "uri_unreachable"


def test_a_server_that_never_answers(policy: FetchPolicy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        hosts = (f"{NAME}:{port}", "127.0.0.1")
        impatient = replace(policy, allowed_hosts=hosts, timeout=0.2)

        assert refusal(f"https://{NAME}:{port}/x", impatient).code == "uri_unreachable"


def test_bytes_can_be_left_unread(site: Site, policy: FetchPolicy) -> None:
    async def only_the_first() -> bytes:
        async with open_uri(url(site), policy) as fetched:
            return await anext(fetched.chunks)

    assert CONTENT.startswith(asyncio.run(only_the_first()))
