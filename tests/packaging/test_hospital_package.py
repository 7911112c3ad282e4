"""A hospital without a registry: the offline bundle in an empty environment, the Debian package in a copy of a machine.

The wheels are packed from this environment, so that nothing is fetched.
"""

import os
import shutil
import subprocess
import sys
import tarfile

import pytest

from tests.doubles.party_home import write_notes
from tests.doubles.processes import OPERATOR, ROOT
from tests.packaging.test_systemd import Machine, add_account, check_services, join, run_checkout
from tools import packages, wheels
from undersong_common.program.services import UNITS
from undersong_common.version import SOFTWARE, VERSION

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),  # seconds: 8 000 files are packed, unpacked and compiled
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bundle and package are for Python 3.11"),
]

MOST_KIB = 480_000_000 // 1024
OF_PYTHON = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # what an empty environment holds already

STEPS = """\
set -e
exec 2>&1
places="/opt /etc /usr/bin /usr/lib/systemd /usr/lib/sysusers.d /usr/share/doc /var/lib/undersong-party"
as() { setpriv --reuid undersong-party --regid undersong-party --clear-groups \\
    env HOME=/nowhere XDG_STATE_HOME=/var/lib/undersong-party/state \\
    UNDERSONG_PARTY_HOME=/var/lib/undersong-party/home undersong-party "$@"; }
find $places 2>/dev/null | sort > /before
dpkg -i /one.deb
as --version
as init alpha
install -o undersong-party -m 0600 /notes.jsonl /var/lib/undersong-party/notes.jsonl
as data add /var/lib/undersong-party/notes.jsonl --label-field label --user-field patient
as budget set --epsilon 8 --delta 1e-4
systemd-analyze verify --man=no /usr/lib/systemd/system/undersong-party.service && echo "unit: fine"
stat -c "data: %U %a" /var/lib/undersong-party
find /var/lib/undersong-party -type f | sort | xargs sha256sum > /data
dpkg -i /two.deb
echo "version: $(dpkg-query -W -f '${Version}' undersong-party)"
sha256sum --quiet -c /data && echo "data: the same"
as ledger --verify
find /opt/undersong -newer /two.deb -type f | sed 's/^/written: /'
dpkg --purge undersong-party
sha256sum --quiet -c /data && echo "data: kept"
find $places 2>/dev/null | sort > /after
comm -13 /before /after | sed 's/^/left: /'
"""


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory):
    """Every wheel of a hospital's install, with the party's own."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    if missing := wheels.installed_closure(packages.EXTRAS, folder / "wheels"):
        pytest.skip(f"not installed here: {', '.join(missing)}")
    shutil.move(
        wheels.build(wheels.copy_for(ROOT / "docker" / "party.Dockerfile", folder / "src"), folder), folder / "wheels"
    )
    return folder / "wheels"


@pytest.fixture(scope="module")
def package(wheelhouse, tmp_path_factory):
    return packages.debian_package(wheelhouse, tmp_path_factory.mktemp("package"))


def ended(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_bundle_installs_into_an_empty_environment_unless_a_wheel_changed(wheelhouse, tmp_path):
    with tarfile.open(packages.bundle(wheelhouse, tmp_path)) as packed:
        packed.extractall(tmp_path, filter="data")
    (bundle,) = (path for path in tmp_path.iterdir() if path.is_dir())
    python = tmp_path / "empty" / "bin" / "python"
    assert ended(sys.executable, "-m", "venv", tmp_path / "empty")[0] == 0
    install = [python, "-m", "pip", "install", "--quiet", *packages.OFFLINE, "--find-links", bundle / "wheels"]
    install += ["-r", bundle / "requirements.txt"]
    changed = next((bundle / "wheels").glob("undersong-*.whl"))
    whole = changed.read_bytes()
    changed.write_bytes(whole + b"\0")
    code, said = ended(*install)
    assert (code, "HASHES" in said.upper()) == (1, True), said
    changed.write_bytes(whole)
    code, said = ended(*install)
    assert code == 0, said
    assert ended(tmp_path / "empty" / "bin" / "undersong-party", "--version") == (0, f"{SOFTWARE}\n")
    embeds = "from undersong_common.models.embedding import Embedder; print(Embedder.load().encode(['a text']).shape)"
    assert ended(python, "-P", "-c", embeds) == (0, "(1, 384)\n")
    site = tmp_path / "empty" / "lib" / "python3.11" / "site-packages"
    assert not {"huggingface_hub", "hf_xet", "torch"} & {path.name for path in site.iterdir()}
    of_python = [path for path in site.iterdir() if path.name.startswith(OF_PYTHON)]
    assert 200_000 < packages.installed_kib(site) - sum(map(packages.installed_kib, of_python)) <= MOST_KIB


def test_debian_package_installs_upgrades_and_leaves_only_data(package, tmp_path):
    if os.geteuid() or None in map(shutil.which, ("dpkg-deb", "unshare", "setpriv")):
        pytest.skip("needs root, dpkg-deb, unshare and setpriv")
    if ended("dpkg-query", "-W", "python3.11", "systemd")[0]:
        pytest.skip("this machine has no Debian package of Python 3.11 and systemd")
    over = f"""set -e
mount -t tmpfs none {tmp_path}/disk
mkdir {tmp_path}/disk/upper {tmp_path}/disk/work {tmp_path}/disk/root
mount -t overlay none -o lowerdir=/,upperdir={tmp_path}/disk/upper,workdir={tmp_path}/disk/work {tmp_path}/disk/root
"""
    (tmp_path / "disk").mkdir()
    if ended("unshare", "--mount", "sh", "-c", over)[0]:
        pytest.skip("no overlay can be mounted here")
    unpacked = tmp_path / "unpacked"
    assert ended("dpkg-deb", "-R", package, unpacked)[0] == 0
    installed_kib = int(ended("dpkg-deb", "--field", package, "Installed-Size")[1])
    assert 200_000 < installed_kib <= MOST_KIB
    for server in ("undersong_server", "undersong", "torch"):
        assert not (unpacked / "opt/undersong/lib/python3.11/site-packages" / server).exists()
    control = unpacked / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"Version: {VERSION}", f"Version: {VERSION}+next"))
    two = tmp_path / "two.deb"
    assert ended("dpkg-deb", "--root-owner-group", "-Znone", "--build", unpacked, two)[0] == 0
    shutil.rmtree(unpacked)
    (tmp_path / "steps.sh").write_text(STEPS)
    notes = write_notes(tmp_path / "notes.jsonl")
    inside = f"""{over}
cd {tmp_path}/disk/root
cp {package} one.deb; cp {two} two.deb; cp {notes} notes.jsonl; cp {tmp_path}/steps.sh steps.sh
mount -t proc none proc
mount --bind /dev dev
mkdir -p {tmp_path}/disk/run && mount --bind {tmp_path}/disk/run run
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . sh /steps.sh
"""
    code, said = ended("unshare", "--mount", "--pid", "--fork", "sh", "-c", inside)
    lines = said.splitlines()
    assert code == 0, said
    assert SOFTWARE in lines
    assert {"unit: fine", "data: undersong-party 700", "data: the same", "data: kept"} <= set(lines), said
    assert f"version: {VERSION}+next" in lines
    assert not [line for line in lines if line.startswith("written: ")], said
    left = [line.removeprefix("left: ") for line in lines if line.startswith("left: ")]
    assert left
    accounts = {"/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/.pwd.lock"}
    assert {path for path in left if not path.startswith("/var/lib/undersong-party")} <= accounts, left


@pytest.fixture
def machine():
    machine = Machine()
    yield machine
    machine.close()


def test_debian_package_alone_leads_to_daemon_and_page_under_systemd(machine, package):
    use_package(machine, package)


def use_package(machine, package):
    """docs/service.md, "Install from a package": apt, data, grant, ``service install``, ``service remove``, purge."""
    machine.copy(package, f"/opt/{package.name}")
    machine(f"cd /opt && DEBIAN_FRONTEND=noninteractive apt-get install --yes ./{package.name}")
    run_checkout(machine, "undersong", OPERATOR)
    add_account(machine, "undersong")
    machine(f"cp {UNITS}/undersong-co* /etc/systemd/system/ && systemctl daemon-reload")
    join(machine)
    machine("undersong-party service install")
    check_services(machine)
    assert "undersong-party" in machine("ls /etc/systemd/system/multi-user.target.wants")
    machine("undersong-party service remove")
    assert not machine("pgrep -u undersong-party", check=False)
    assert not machine("ls /etc/systemd/system/multi-user.target.wants | grep undersong-p", check=False)
    machine("apt-get purge --yes undersong-party")
    places = "/opt /etc /usr/bin /usr/lib/systemd /usr/lib/sysusers.d /usr/share/doc"
    assert machine(f"find {places} -name 'undersong-p*' -not -path '/opt/{package.name}'") == ""
