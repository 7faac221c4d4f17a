"""`fedaccord deploy`: what it writes, what it refuses, and what --check says of a folder that is not right."""

from __future__ import annotations

import datetime
import json
import shutil
import ssl
import stat
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from command_line import blobs, command, write
from fedaccord.deployment.certificates import make_authority, make_certificate, make_node_key
from fedaccord.deployment.checking import check_folder
from fedaccord.deployment.known import read_known
from fedaccord.engines.flower.site_folder import SiteFolder
from fedaccord.errors import ConfigError
from people import write_people

SMALL = """
[data]
dataset = "digits"
samples = 120
partition = { kind = "iid", sites = 2 }
names = ["north", "the south"]

[data.views]
north = { known = ["1", "3", "5"] }

[model]
hidden = [4]

[method]
rounds = 1
steps = 1
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy")
    done = command("deploy", write(folder, SMALL), "d", "--address", "fed.example.org:9443", cwd=folder)
    assert done.code == 0, done.err
    return folder / "d"


@pytest.fixture
def deployed(written, tmp_path):
    return shutil.copytree(written, tmp_path / "d")


class TestFolders:
    def test_a_name_that_is_no_folders_gets_a_number(self, written):
        assert sorted(path.name for path in (written / "sites").iterdir()) == ["north", "site-0001"]
        assert SiteFolder.open(written / "sites/site-0001").site == "the south"

    def test_secrets_can_be_read_by_their_owner_only(self, written):
        secrets = [*written.rglob("*.key")]
        assert len(secrets) == 5  # authority, gate, SuperLink, two nodes
        assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}

    def test_nobody_else_on_a_machine_comes_near_samples_or_keys(self, written):
        for place in ("server", "authority", "sites/north", "sites/site-0001"):
            assert stat.S_IMODE((written / place).stat().st_mode) == 0o700

    def test_a_site_has_no_other_sites_key_and_the_server_none_at_all(self, written):
        keys = {site: (written / f"sites/{site}/node.key").read_text() for site in ("north", "site-0001")}
        assert len(set(keys.values())) == 2
        held = {path: path.read_bytes() for path in (written / "server").rglob("*") if path.is_file()}
        assert not [path for path, content in held.items() if b"OPENSSH PRIVATE KEY" in content]

    def test_a_sites_folder_names_only_its_own_labels(self, written):
        folder = SiteFolder.open(written / "sites/north")
        named = [name for name in folder.spec["labels"] if not name.startswith("(label ")]
        assert named == ["1", "3", "5"]
        assert len(folder.spec["labels"]) == 10
        assert list(folder.spec["views"]) == ["north"]

    def test_a_sites_folder_tells_nothing_of_what_is_the_servers_alone(self, tmp_path):
        """Who trains, whom the server trusts, how often it meets which label: a site's part works without."""
        method = (
            '[method]\nname = "private-labels"\nrounds = 1\nsteps = 1\nmomentum = 0.25\n'
            f'sites = ["north", "the south"]\nhostile = 0.123\ntuning = "balance"\nfrequencies = {[0.0625] * 10}\n'
        )
        text = SMALL.partition("[method]")[0] + method
        done = command("deploy", write(tmp_path, text), "d", cwd=tmp_path)
        assert done.code == 0, done.err
        part, whole = (tmp_path / "d" / place for place in ("sites/north", "server"))
        for held in ((part / "site.toml").read_text(), (part / "site.json").read_text()):
            assert [word for word in ("the south", "0.123", "0.0625") if word in held] == []
            assert "0.25" in held
        assert "the south" in (whole / "config.toml").read_text()
        assert SiteFolder.open(part).build_host().recipe.settings.momentum == 0.25

    @pytest.mark.parametrize("kind", ["inversion", "probe"])
    def test_a_site_is_told_that_the_server_reconstructs_its_rows_and_nothing_else_of_a_defence(self, tmp_path, kind):
        write_people(tmp_path, rows=400)
        more = "reconstruct = true, dummies = 37" if kind == "inversion" else "probes = 37"
        text = (
            'name = "d"\n[data]\ndataset = "people.npz"\npartition = { kind = "iid", sites = 4 }\n'
            'view = { kind = "candidates", generate = "uniform", q = 0.3 }\n'
            'sensitive = { column = "region", q = 0.1 }\n'
            '[fairness]\ngroup = "north"\nlabel = "high"\n[model]\nhidden = [4]\n'
            f'[method]\nname = "fed-clpl"\nrounds = 1\ndefence = {{ kind = "{kind}", {more} }}\n'
        )
        done = command("deploy", write(tmp_path, text), "d", cwd=tmp_path)
        assert done.code == 0, done.err
        own = (tmp_path / "d/sites/site-0/site.toml").read_text()
        assert ('kind = "inversion", reconstruct = true }' in own) == (kind == "inversion")
        assert "37" not in own
        assert "north" not in own
        assert ("defence" in own) == (kind == "inversion")

    def test_the_server_has_no_sample(self, written):
        known = read_known(written / "server")
        assert {name: site.train.x.numel() for name, site in known.sites.items()} == {"north": 0, "the south": 0}
        assert sum(len(site.train) + len(site.test) for site in known.sites.values()) > 60
        assert known.test is None  # in a study it would be the pool of the sites' own
        assert not list((written / "server").rglob("*.npy"))

    def test_a_host_is_built_from_the_folder_alone(self, written):
        host = SiteFolder.open(written / "sites/north").build_host()
        site = host.sites["north"]
        assert set(site.train.target.tolist()) <= {1, 3, 5}
        assert site.train.x.data_ptr() % 64 == 0

    def test_the_certificate_is_for_the_address_and_signed_by_the_authority(self, written):
        certificate = x509.load_pem_x509_certificate((written / "server/tls/server.crt").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["fed.example.org"]
        authority = x509.load_pem_x509_certificate((written / "sites/north/tls/ca.crt").read_bytes())
        certificate.verify_directly_issued_by(authority)

    def test_no_path_of_this_machine_is_in_a_text(self, written):
        for path in written.rglob("*"):
            if path.is_file() and path.suffix in (".sh", ".md", ".service", ".json", ".toml", ".py"):
                assert str(written.parent) not in path.read_text(encoding="utf-8"), path

    def test_the_readme_and_the_units_name_files_that_are_there(self, written):
        text = (written / "README.md").read_text()
        assert "`fed.example.org:9443`" in text
        assert "@" not in text.replace("@example", "")
        for name in ("sites/north", "sites/site-0001", "server", "authority"):
            assert f"`{name}/`" in text
            assert (written / name).is_dir()
        unit = (written / "sites/north/fedaccord-node.service").read_text()
        assert "Restart=always" in unit
        assert "fedaccord/north/start.sh" in unit
        assert (written / "sites/north/start.sh").stat().st_mode & 0o100


class TestRefusals:
    def test_a_method_that_moves_data(self, tmp_path):
        done = command("deploy", write(tmp_path, SMALL), "d", "--set", "method.name=pooled", cwd=tmp_path)
        assert done.code == 2
        assert "'pooled' moves all samples to one place, so it cannot be deployed" in done.err

    def test_a_folder_that_is_not_empty(self, tmp_path):
        done = command("deploy", write(tmp_path, SMALL), ".", cwd=tmp_path)
        assert done.code == 2
        assert "is not empty" in done.err

    @pytest.mark.parametrize("address", ["here", "here:0", "a b:1", "here:70000", ":9443"])
    def test_an_address_that_is_none(self, tmp_path, address):
        done = command("deploy", write(tmp_path, SMALL), "d", "--address", address, cwd=tmp_path)
        assert done.code == 2
        assert "--address must be a host name or an IPv4 address and a port" in done.err

    def test_half_a_certificate(self, tmp_path):
        done = command("deploy", write(tmp_path, SMALL), "d", "--ca", "ca.crt", cwd=tmp_path)
        assert "--ca, --certificate and --key belong together" in done.err

    def test_a_certificate_of_ones_own_is_used(self, tmp_path):
        mine = make_authority("mine")
        certificate, key = make_certificate(mine, ["fed.example.org"])
        for name, content in (("ca.crt", mine.pem()), ("s.crt", certificate), ("s.key", key)):
            (tmp_path / name).write_bytes(content)
        done = command(
            "deploy",
            write(tmp_path, SMALL),
            "d",
            "--ca",
            "ca.crt",
            "--certificate",
            "s.crt",
            "--key",
            "s.key",
            cwd=tmp_path,
        )
        assert done.code == 0
        assert (tmp_path / "d/server/tls/server.crt").read_bytes() == certificate
        assert (tmp_path / "d/sites/north/tls/ca.crt").read_bytes() == mine.pem()
        assert (tmp_path / "d/server/tls/link-ca.crt").read_bytes() != mine.pem()

    def test_two_folders_to_check(self, tmp_path):
        assert "--check takes one folder" in command("deploy", "--check", "a", "b", cwd=tmp_path).err

    def test_a_folder_that_deploy_did_not_write(self, tmp_path):
        done = command("deploy", "--check", tmp_path, cwd=tmp_path)
        assert done.code == 2
        assert "has neither site.json nor known.json" in done.err


class TestOwnFiles:
    NAMES = ["ant", "bee", "cow"]

    def test_sites_with_files_and_a_model_of_ones_own(self, tmp_path):
        text = ""
        for seed, (name, known) in enumerate({"a": ["ant", "bee"], "b": ["bee", "cow"]}.items()):
            x, y = blobs(40, seed=seed)
            keep = np.isin(y, [self.NAMES.index(label) for label in known])
            np.savez(tmp_path / f"{name}.npz", x=x[keep], y=y[keep], label_names=np.array(self.NAMES))
            text += f'[[sites]]\nname = "{name}"\ndata = "{name}.npz"\nview = {{ known = {json.dumps(known)} }}\n'
        (tmp_path / "mine.py").write_text(
            "from torch import nn\nfrom fedaccord.models.network import Network\n"
            "def tiny(input_shape, classes):\n    return Network(nn.Flatten(), nn.Linear(4, classes))\n"
        )
        text += '[model]\nname = "mine:tiny"\n[method]\nrounds = 1\n'
        config = write(tmp_path, text)
        done = command("deploy", config, "d", cwd=tmp_path)
        assert done.code == 2
        assert "allow it with --trust mine" in done.err
        done = command("deploy", config, "d", "--trust", "mine", cwd=tmp_path)
        assert done.code == 0, done.err
        assert (tmp_path / "d/sites/a/code/mine.py").is_file()
        assert 'trust=\\"mine\\"' in (tmp_path / "d/server/run.sh").read_text()
        own = (tmp_path / "d/sites/a/site.toml").read_text()
        assert 'name = "a"' in own
        assert "cow" not in own
        assert "cow" not in (tmp_path / "d/sites/a/site.json").read_text()
        with pytest.raises(ConfigError, match=r"^site 'a' has not agreed to run code of 'mine', which"):
            SiteFolder.open(tmp_path / "d/sites/a").build_host()
        (tmp_path / "d/sites/a/site.toml").write_text(own.replace("# trust = ", "trust = "))
        assert len(SiteFolder.open(tmp_path / "d/sites/a").build_host().sites["a"].train) > 10


class TestCheck:
    """Each defect is told in a sentence; the server is a stand-in, since only what answers matters."""

    @pytest.fixture
    def answering(self, deployed):
        """Serve the two addresses that the check asks for, with the deployment's certificate for localhost."""
        authority = deployed / "authority"
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        from fedaccord.deployment.certificates import Authority

        signer = Authority(
            load_pem_private_key((authority / "ca.key").read_bytes(), None),
            x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes()),
        )
        certificate, key = make_certificate(signer, ["localhost"])
        (deployed / "s.crt").write_bytes(certificate + key)
        statuses = {"/health": 200, "/v1/control/list-runs": 403}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(statuses[self.path])
                self.end_headers()

            do_POST = do_GET

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(deployed / "s.crt")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        for place in (deployed / "server", *(deployed / "sites").iterdir()):
            link = json.loads((place / "link.json").read_text())
            address = f"localhost:{server.server_address[1]}"
            (place / "link.json").write_text(json.dumps(link | {"address": address}))
        yield statuses
        server.shutdown()
        server.server_close()

    @pytest.mark.usefixtures("answering")
    def test_nothing_is_wrong(self, deployed):
        assert check_folder(deployed) == []

    def test_an_open_control_address(self, deployed, answering):
        answering["/v1/control/list-runs"] = 200
        (problem,) = check_folder(deployed / "sites/north")
        assert "lets anyone start runs" in problem

    def test_a_superlink_that_is_down_behind_its_gate(self, deployed, answering):
        answering["/health"] = 502
        (problem,) = check_folder(deployed / "sites/north")
        assert problem.endswith("answers, but its SuperLink does not")

    @pytest.mark.usefixtures("answering")
    def test_a_certificate_of_another_authority(self, deployed):
        (deployed / "sites/north/tls/ca.crt").write_bytes(make_authority("other").pem())
        (problem,) = check_folder(deployed / "sites/north")
        assert "is not trusted" in problem

    @pytest.mark.usefixtures("answering")
    def test_a_key_that_is_another(self, deployed):
        (deployed / "sites/north/node.pub").write_bytes(make_node_key()[1])
        assert check_folder(deployed / "sites/north") == ["node.key and node.pub do not belong together"]

    @pytest.mark.usefixtures("answering")
    def test_another_version(self, deployed):
        told = json.loads((deployed / "sites/north/site.json").read_text())
        (deployed / "sites/north/site.json").write_text(json.dumps(told | {"fedaccord": "0.0.9"}))
        (problem,) = check_folder(deployed / "sites/north")
        assert problem.startswith("the folder was written by fedaccord 0.0.9, but ")

    @pytest.mark.usefixtures("answering")
    def test_data_that_are_missing(self, deployed):
        (deployed / "sites/north/data/0000.npy").unlink()
        (problem,) = check_folder(deployed / "sites/north")
        assert problem.startswith("the site's data cannot be used: ")

    @pytest.mark.usefixtures("answering")
    def test_a_public_key_that_the_server_lacks(self, deployed):
        (deployed / "server/keys/north.pub").unlink()
        assert check_folder(deployed / "server") == ["the public key of site 'north', keys/north.pub, is missing"]

    @pytest.mark.usefixtures("answering")
    def test_a_site_with_a_key_of_its_own_making(self, deployed):
        private, public = make_node_key()
        (deployed / "sites/north/node.key").write_bytes(private)
        (deployed / "sites/north/node.pub").write_bytes(public)
        (problem,) = check_folder(deployed)
        assert problem == "sites/north: node.pub differs from the key registered at server/keys/north.pub"

    @pytest.mark.usefixtures("answering")
    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("server/link.json", '{"address": "localhost:1"}', "link.json cannot be read"),
            ("sites/north/link.json", '{"address": "localhost"}', "link.json cannot be read, so the address"),
            ("server/keys/north.pub", "hello", "keys/north.pub, is not a key in OpenSSH format"),
            (
                "server/tls/server.key",
                "hello",
                "server.crt and server.key are not a certificate and a key in PEM format",
            ),
            ("sites/north/node.key", "hello", "node.key or node.pub is not a key in OpenSSH format"),
            ("sites/north/data/0000.npy", "hello", "it is not an .npy file of numbers"),
        ],
    )
    def test_a_damaged_file(self, deployed, file, content, said):
        (deployed / file).write_text(content)
        problems = check_folder(deployed / "/".join(file.split("/")[: 2 if file.startswith("sites") else 1]))
        assert said in problems[0]

    @pytest.mark.usefixtures("answering")
    def test_code_that_breaks_down(self, deployed):
        told = json.loads((deployed / "sites/north/site.json").read_text())
        (deployed / "sites/north/site.json").write_text(json.dumps(told | {"spec": {}}))
        assert check_folder(deployed / "sites/north") == ["the site's host cannot be built: KeyError: 'labels'"]

    @pytest.mark.usefixtures("answering")
    def test_a_servers_key_that_others_can_read(self, deployed):
        (deployed / "server/tls/server.key").chmod(0o644)
        (deployed / "sites/notes.txt").write_text("what is no folder is no site's")
        assert check_folder(deployed) == [
            "server: other users of this machine can read server.key: chmod 600 server.key"
        ]

    @pytest.mark.usefixtures("answering")
    @pytest.mark.parametrize("place", ["server", "sites/north"])
    def test_a_folder_that_lost_its_mode_on_the_way(self, deployed, place):
        (deployed / place).chmod(0o755)
        (problem,) = check_folder(deployed / place)
        assert problem == f"other users of this machine can access the folder: chmod 700 '{deployed / place}'"

    @pytest.mark.usefixtures("answering")
    def test_a_key_that_is_locked_with_a_password(self, deployed):
        key = ec.generate_private_key(ec.SECP384R1())
        locked = BestAvailableEncryption(b"a word")
        (deployed / "server/tls/server.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        assert check_folder(deployed / "server") == [
            "server.crt and server.key are not a certificate and a key in PEM format without a password"
        ]

    def test_flower_is_not_installed(self, deployed, monkeypatch):
        from fedaccord.deployment import checking

        def version(name):
            raise checking.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(checking.metadata, "version", version)
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
        assert check_folder(deployed / "sites/north") == [
            f'{name} is not installed: pip install "fedaccord[flower]"' for name in ("flwr", "cryptography")
        ]

    def test_nobody_at_the_address(self, deployed):
        link = {"address": "localhost:1", "port": 9445}
        (deployed / "sites/north/link.json").write_text(json.dumps(link))
        (problem,) = check_folder(deployed / "sites/north")
        assert "the server at localhost:1 cannot be reached" in problem

    @pytest.mark.usefixtures("answering")
    def test_a_certificate_that_runs_out(self, deployed, monkeypatch):
        from fedaccord.deployment import checking

        monkeypatch.setattr(checking, "_SOON", datetime.timedelta(days=3000))
        ours, inner = check_folder(deployed / "server")
        assert ours.startswith("the certificate of localhost expires on ")
        assert inner.startswith("the certificate of the SuperLink, tls/link.crt, expires on ")
