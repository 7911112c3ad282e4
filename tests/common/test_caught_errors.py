"""Every place that catches an error of the system by name, and the test of what it makes of it."""

from __future__ import annotations

import ast
import asyncio
import builtins
import errno
import functools
import gzip
import http.client
import importlib
import io
import os
import shutil
import socket
import ssl
import sys
import threading
import urllib.error
import zipfile
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from tests.doubles.authority import Authority
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.processes import ROOT
from undersong_common.errors import ConfigurationError, MachineFault, UndersongError

ROOMS = ("common", "protocol", "client", "server", "simulation")
# The modules that name errors of the system.
MODULES = (builtins, gzip, http.client, io, os, shutil, socket, ssl, urllib.error)
SYSTEM_ERRORS = {
    name
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, OSError)
} - {"Error", "error", "HTTPError"}  # which here are classes of sqlite3, csv, zlib, psycopg and httpx


def class_names(node):
    """Names of the exception classes in an ``except`` clause or in the arguments of ``suppress``."""
    if isinstance(node, ast.Tuple):
        return {name for element in node.elts for name in class_names(element)}
    return {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")}


def caught_classes(node):
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        return class_names(node.type)
    if isinstance(node, ast.Call) and "suppress" in class_names(node.func):
        return {name for argument in node.args for name in class_names(argument)}
    return set()


def catching_places(path):
    """By function, the first line of what each of its catching places does; 0 where it does nothing (``suppress``)."""
    places = {}

    def visit(node, function):
        for child in ast.iter_child_nodes(node):
            is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if caught_classes(child) & SYSTEM_ERRORS:
                line = child.body[0].lineno if isinstance(child, ast.ExceptHandler) else 0
                places.setdefault(".".join(function), []).append(line)
            visit(child, [*function, child.name] if is_named else function)

    text = path.read_text(encoding="utf-8")
    if any(name in text for name in SYSTEM_ERRORS):
        visit(ast.parse(text), [])
    return places


@functools.cache
def places_of_this_tree():
    files = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {
        f"{path.relative_to(ROOT).as_posix()} {function}": lines
        for path in files
        for function, lines in catching_places(path).items()
    }


def module(path):
    """The module of a file of this tree."""
    _, _, dotted = path.removesuffix(".py").partition("/")
    return importlib.import_module(dotted.replace("/", "."))


def refuses(act, *arguments, error=ConfigurationError):
    with pytest.raises(error):
        act(*arguments)


class Paths:
    """A folder in a file's place, a path that is missing, and one below a file."""

    def __init__(self, folder):
        self.folder = folder / "folder.json"
        self.folder.mkdir()
        self.gone = folder / "gone.json"
        self.file = folder / "file"
        self.file.write_bytes(b"a\n")
        self.below = self.file / "below"
        self.deeper = self.below / "deeper"


def denied(*_arguments, **_options):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a file")


def hide_states(m, paths, patched):
    assert m.file_state(paths.gone) == m.file_state(paths.below) == m.MISSING
    with monkey_of(patched) as closed:
        closed.setattr(m.os, "stat", denied)
        state = m.file_state(paths.file)
    assert state == m.HIDDEN


def keep_a_file(m, paths, _):
    m.create_private(paths.file)
    assert paths.file.read_bytes() == b"a\n"


def hold_a_lock(m, paths, _):
    assert not m.is_held(paths.gone)
    with m.holding(paths.file, RuntimeError()):
        assert m.is_held(paths.file)


def hold_steps_without_a_record(m, paths, patched):
    steps = m.HeldSteps(paths.below)
    assert steps.hold("a step", denied_error()).problem in [step.problem for step in steps.all()]
    steps.close()
    recorded = m.HeldSteps(paths.gone)
    with monkey_of(patched) as closed:
        closed.setattr(m.os, "pwrite", denied)
        recorded.hold("a step", denied_error())
    assert len(recorded.all()) == 1


def denied_error():
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a file")


def leave_a_chain_as_it_was(m, paths, patched):
    chain = m.HashChain(paths.gone, "a test")
    with chain.locked():
        chain.append(kind="first")
        before = paths.gone.read_bytes()
        with monkey_of(patched) as broken:
            broken.setattr(m.os, "write", lambda _file, line: len(line) - 1)
            refuses(lambda: chain.append(kind="second"), error=MachineFault)
    assert paths.gone.read_bytes() == before


@contextmanager
def monkey_of(patched):
    with patched.context() as context:
        yield context


def read_a_key(m, paths, _):
    refuses(m.secret, home_with(paths.gone), "store")
    (paths.folder / "store.key").mkdir()
    refuses(m.secret, home_with(paths.folder), "store")


def home_with(keys_folder):
    return SimpleNamespace(keys=keys_folder)


def name_no_certificate(m, paths, _):
    refuses(m.credential, home_with(paths.gone))
    refuses(m.pending_tls_key, home_with(paths.gone))


def salt_a_folder(m, paths, patched):
    assert m._salt(paths.below) == bytes(32)
    (paths.folder / "salt").write_bytes(b"s" * 32)
    with monkey_of(patched) as raced:
        raced.setattr(m.Path, "exists", lambda _path: False)  # another process makes it in this moment
        assert m._salt(paths.folder) == b"s" * 32


def read_a_run_folder(m, paths, _):
    assert not m.RunFolder(paths.gone).exists
    assert not m.RunFolder(paths.gone).is_put_away
    assert m.RunFolder(paths.gone)._read_file("plan.json") is None
    (paths.folder / "plan.json").mkdir()
    refuses(m.RunFolder(paths.folder)._read_file, "plan.json", error=UndersongError)
    m.RunFolder(paths.gone).tell("round", {})


def deny_a_run_folder(m, paths, patched):
    with monkey_of(patched) as closed:
        closed.setattr(m.os, "lstat", denied)
        is_there = m.RunFolder(paths.folder).exists
    assert is_there


def look_for_a_run(m, paths, patched):
    read_a_run_folder(m, paths, patched)
    deny_a_run_folder(m, paths, patched)


def find_no_resource(m, paths, _):
    assert not m.Listing._is_resource(object.__new__(m.Listing), paths.folder)


def take_a_port(m, _paths, _):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refuses(m.Listening("127.0.0.1", other.getsockname()[1]).open)


def announce_nothing(m, paths, _):
    m.announce(paths.gone, "a drill")  # nobody listens there


def write_where_possible(m, paths, _):
    assert m.replace_where_possible([paths.below, paths.gone], b"b") == [paths.gone]


def read_no_file(name):
    def act(m, paths, _):
        refuses(getattr(m, name), paths.gone, error=UndersongError)
        refuses(getattr(m, name), paths.folder, error=UndersongError)

    return act


def gives(expected, name, place, *arguments):
    """Calls a function of a path, and compares what it returns where the system refuses."""

    def act(m, paths, _):
        assert getattr(m, name)(getattr(paths, place), *arguments) == expected

    return act


def read_no_labels(m, paths, _):
    assert m._read_labels(paths.gone, "text", "label", 0, 0) == ()


def fail_to_summarise(m, paths, _):
    _, summary = m._summary(paths.gone)
    assert summary.status.state == m.UNREADABLE


def take_the_next_step_without_a_corpus(m, paths, patched):
    def missing(*_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    with monkey_of(patched) as lost:
        lost.setattr(m, "lacks_terms", missing)
        assert m._lacks_terms(paths.folder, "first") is False


def read_no_authority(m, paths, patched):
    refuses(m.Authority, paths.gone)

    def crowded(_path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkey_of(patched) as crowd:
        crowd.setattr(m.Path, "read_bytes", crowded)
        refuses(m.Authority, paths.folder, error=UndersongError)


def name_what_is_lacking(m, paths, _):
    assert isinstance(m._missing_resource(paths.gone), FileNotFoundError)


def open_no_database(name, *arguments):
    return lambda m, paths, _: refuses(getattr(m, name), paths.folder, *arguments, error=UndersongError)


def open_no_pages(m, paths, _):
    (paths.folder / m.PAGE_FILE).mkdir()
    refuses(m.PageStore, paths.folder, error=UndersongError)


# The process that computes vectors, and the child itself


def start_no_process(act):
    """``act`` on a daemon's computation whose child process cannot be started."""

    def run(m, _paths, patched):
        computing = m.ComputingProcess(None, monotonic=lambda: 100.0)
        computing._started_s = 1.0
        with monkey_of(patched) as without:
            without.setattr(m.subprocess, "Popen", denied)
            act(m, computing)
        assert computing.pid is None

    return run


def leave_a_request_unasked(_, computing):
    assert not computing._send_request(SimpleNamespace(blocks={}))


class Ended(BaseException):
    """In the place of the end of a process."""


def end_with_the_daemon(m, _paths, patched):
    ours, theirs = socket.socketpair()
    theirs.close()

    def end(code):
        raise Ended(code)

    with monkey_of(patched) as child:
        child.setattr(m, "_step_back", lambda: None)
        child.setattr(m.sys, "argv", ["", str(ours.detach())])
        child.setattr(m.os, "_exit", end)
        with pytest.raises(Ended) as ended:
            m.main()
    assert ended.value.args == (0,)


def step_back_where_no_score_is(m, _paths, patched):
    with monkey_of(patched) as child:
        child.setattr(m.signal, "signal", lambda *_: None)
        child.setattr(m.os, "nice", lambda _: 0)
        child.setattr(m.resource, "setrlimit", lambda *_: None)
        child.setattr(m.Path, "write_text", denied)
        m._step_back()


def keep_busy_at_any_priority(m, _paths, patched):
    class Waiting(threading.Event):
        def wait(self, timeout=None):
            raise Ended

    with monkey_of(patched) as closed:
        closed.setattr(m.os, "setpriority", denied)
        with pytest.raises(Ended):
            m._keep_busy(Waiting())


def embed_without_a_cache(m, paths, patched):
    home = SimpleNamespace(settings=SimpleNamespace(cache=str(paths.below)), path=paths.folder)
    embeddings = m.PartyEmbeddings(home, HashedEmbedder())
    rows = embeddings(["a text"])
    with monkey_of(patched) as broken:
        broken.setattr(embeddings._cached, "encode", denied)
        assert (embeddings(["a text"]) == rows).all()


# A party's folder, its store and its checkpoints


def pass_over_a_renamed_file(m, paths, _):
    home = object.__new__(m.PartyHome)
    home.path = paths.gone
    home._private_paths = list
    home.check_modes()


def checkpoints_at(m, *places):
    checkpoints = object.__new__(m.LedgerCheckpoints)
    checkpoints._paths, checkpoints._former_paths = places, ()
    checkpoints._last_head, checkpoints._home = "", SimpleNamespace(path="a folder")
    return checkpoints


def read_marks_that_can_be_seen(m, paths, patched):
    with monkey_of(patched) as closed:
        closed.setattr(m, "_marks", lambda path: denied() if path == paths.file else ["a mark"])
        assert checkpoints_at(m, paths.file, paths.folder)._marks() == ["a mark"]
        refuses(checkpoints_at(m, paths.file)._marks, error=PermissionError)


def keep_no_mark(m, paths, _):
    ledger = SimpleNamespace(head="a head", locked=nullcontext, statement=lambda: SimpleNamespace(head="a head"))
    checkpoints = checkpoints_at(m, paths.below / "one", paths.below / "two")
    checkpoints._mark = lambda _said: b""
    refuses(checkpoints.keep, ledger, error=MachineFault)
    assert checkpoints._last_head == ""


def open_no_compartment(m, paths, _):
    store = object.__new__(m.Store)
    store._scope, store._compartment_keys, store._key_folder, store._cipher = "", paths.gone, str(paths.gone), None
    assert store.compartment("a run") is None


def read_an_empty_chain(m, paths, _):
    chain = m.HashChain(paths.gone, "a test")
    chain.refresh()
    assert chain.head == m.HashChain(paths.gone, "a test").head


# The connection


def resolve_no_name(m, _paths, patched):
    with monkey_of(patched) as without:
        without.setattr(m.socket, "getaddrinfo", denied)
        findings = list(m._explain_silence(None, None, "coordinator.invalid:1", None))
    assert [finding.grade for finding in findings] == ["problem"]


def meet_no_coordinator(m, paths, patched):
    coordinator = SimpleNamespace(ca_certificate=Authority().pem, server_name="coordinator")
    ours, theirs = socket.socketpair()
    with ours, theirs, monkey_of(patched) as without:
        without.setattr(m.keys, "credential", lambda _home: None)
        refuses(m._raise_tls_fault, home_with(paths.gone), coordinator, "coordinator", ours, error=UndersongError)
        speaking = SimpleNamespace(settimeout=lambda _: None, recv=timed_out, version=lambda: "TLSv1.3")
        context = SimpleNamespace(
            load_verify_locations=lambda **_: None,
            set_alpn_protocols=lambda _: None,
            load_cert_chain=lambda _: None,
            wrap_socket=lambda *_, **_names: nullcontext(speaking),
        )
        without.setattr(m.ssl, "SSLContext", lambda _: context)
        refuses(m._raise_tls_fault, home_with(paths.gone), coordinator, "coordinator", ours, error=UndersongError)
        context.load_cert_chain = unverified
        refuses(m._raise_tls_fault, home_with(paths.gone), coordinator, "coordinator", ours, error=UndersongError)


def timed_out(*_arguments):
    raise TimeoutError


def unverified(*_arguments):
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed certificate"
    raise error


def trust_while_nothing_can_be_read(m, paths, patched):
    daemon = object.__new__(m.Daemon)
    daemon._home = SimpleNamespace(coordinator=paths.gone, policy=paths.gone, is_reachable=True)
    daemon._trust_seen = None
    with monkey_of(patched) as closed:
        closed.setattr(m.trust, "trusted", denied)
        assert daemon._is_trusted(SimpleNamespace(fingerprint=b""))


def abort_a_connection(m, _paths, _):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and nobody listens there
        aborted = []
        outer = object.__new__(m._Outer)
        outer._gate = SimpleNamespace(inner_host="127.0.0.1", inner_port=unused.getsockname()[1])
        outer.transport = SimpleNamespace(abort=lambda: aborted.append(True))
        surrounding_loop = asyncio._get_running_loop()  # a browser of another test leaves one in this thread
        asyncio._set_running_loop(None)
        try:
            asyncio.run(outer._open_inner(b""))
        finally:
            asyncio._set_running_loop(surrounding_loop)
    assert aborted


def ask_a_silent_coordinator(m, paths, patched):
    with socket.socket() as unused, monkey_of(patched) as served:
        unused.bind(("127.0.0.1", 0))
        home = SimpleNamespace(
            serving=SimpleNamespace(metrics_port=unused.getsockname()[1]),
            settings=SimpleNamespace(metrics="127.0.0.1:1"),
        )
        served.setattr(m, "CoordinatorHome", lambda _: home)
        refuses(m.health, paths.folder)


# Sources of records and public texts


def read_no_attachment(m, paths, _):
    refuses(m.Attachments._file, None, "a" * 300, [paths.folder], error=m.Unreadable)


def read_no_resource(m, paths, _):
    resources = object.__new__(m.Resources)
    resources._bundles, resources._line = {}, denied
    refuses(resources.read, SimpleNamespace(file=paths.gone, offset=0, part=-1, place="a file"))


def list_no_file(m, paths, _):
    listing = object.__new__(m.Listing)
    listing._system_of, listing._name = (lambda _: ""), str
    assert not listing._is_manifest(paths.folder)
    refuses(listing._list_file, paths.folder)


def read_no_parquet(m, paths, _):
    refuses(list, m._parquet_rows(paths.folder, (), None))


def read_no_package(m, _paths, patched):
    with monkey_of(patched) as changed:
        changed.setattr(m, "_top_package", lambda _: "undersong_common")
        changed.setattr(m, "_source_files", lambda folder: [folder / "gone.py"])
        refuses(m._read_files, SimpleNamespace(name="a plugin", package="a package"))


def read_no_evidence(m, paths, _):
    with zipfile.ZipFile(paths.gone, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("outbox.jsonl", bytes(1000))
    paths.gone.write_bytes(paths.gone.read_bytes().replace(b"BZh91AY", b"BZh91XX"))
    refuses(m._read_signed_files, None, paths.gone)


def offer_texts_beside_a_broken_task(m, paths, patched):
    broken_task = paths.folder / "broken" / "task.toml"
    broken_task.parent.mkdir()
    for place in (paths.folder / "public.csv", broken_task.with_name("records.csv")):
        place.write_text("text\nA text.\n")
    with monkey_of(patched) as task:
        task.setattr(m, "offered", lambda _: [broken_task])
        offered = m.public_files([paths.folder])
    assert [path.name for path in offered] == ["public.csv"]


# Folders that move, and processes that use them


def move_between_disks(m, paths, patched):
    (paths.folder / "store").write_bytes(b"s")
    move = SimpleNamespace(source=paths.folder, target=paths.gone, owner=None)

    def other_disk(*_names):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    with monkey_of(patched) as disks:
        disks.setattr(m, "make_folder", lambda folder, _owner: folder.mkdir(exist_ok=True))
        disks.setattr(m, "_copy_entry", lambda path, target: (target / path.name).write_bytes(path.read_bytes()))
        disks.setattr(m.os, "rename", denied)
        refuses(m._send_entries, move, error=PermissionError)
        disks.setattr(m.os, "rename", other_disk)
        m._send_entries(move)
    assert (paths.gone / "store").read_bytes() == b"s"


def ask_processes_that_end(m, paths, patched):
    assert m._open_files(paths.gone) == []
    with monkey_of(patched) as ended:
        ended.setattr(m.os, "readlink", denied)
        m.check_unused(paths.folder)


def back_up_without_files_that_are_gone_or_closed(m, paths, patched):
    run = paths.folder / "runs" / "first"
    run.mkdir(parents=True)
    (run / "gone").symlink_to(paths.gone)
    (run / "closed").symlink_to("closed")
    assert list(m._add_all(None, paths.folder, paths.gone)) == ["first"]


def make_no_workspace(m, paths, _):
    refuses(lambda: m.Workspace(paths.below, None, {}, fresh=False))


CHILD = "client/undersong_client/answering/computing_process.py"
COMPUTATION = "client/undersong_client/answering/computation.py"
# By place: what brings the error about there, and checks what is made of it.
ACTS = {
    "common/undersong_common/program/chain.py HashChain.append": leave_a_chain_as_it_was,
    "common/undersong_common/program/configuration.py read_toml": read_no_file("read_toml"),
    "common/undersong_common/program/drill.py announce": announce_nothing,
    "common/undersong_common/files.py file_state": hide_states,
    "common/undersong_common/files.py create_private": keep_a_file,
    "common/undersong_common/files.py replace_where_possible": write_where_possible,
    "common/undersong_common/files.py destroy_file": gives(False, "destroy_file", "gone"),
    "common/undersong_common/files.py is_held": hold_a_lock,
    "common/undersong_common/files.py _try_lock": hold_a_lock,
    "common/undersong_common/program/machine.py _has_inodes": gives(True, "_has_inodes", "deeper"),
    "common/undersong_common/program/machine.py _missing_resource": name_what_is_lacking,
    "common/undersong_common/program/machine.py HeldSteps.__init__": hold_steps_without_a_record,
    "common/undersong_common/program/machine.py HeldSteps._write_record": hold_steps_without_a_record,
    "common/undersong_common/program/machine.py held_steps": gives((), "held_steps", "gone"),
    "common/undersong_common/models/model_files.py _read_json": read_no_file("_read_json"),
    "common/undersong_common/pages/serving.py Listening.open": take_a_port,
    "common/undersong_common/pages/store.py PageStore.__init__": open_no_pages,
    "common/undersong_common/privacy/impact.py read_audit": read_no_file("read_audit"),
    "common/undersong_common/text/row_files.py read_bytes": read_no_file("read_bytes"),
    "common/undersong_common/program/services.py Machine.call": lambda m, *_: refuses(
        m.Machine().call, "no-such-program"
    ),
    "client/undersong_client/home.py read_json": read_no_file("read_json"),
    "client/undersong_client/home.py read_input": read_no_file("read_input"),
    "client/undersong_client/keys.py secret": read_a_key,
    "client/undersong_client/keys.py credential": name_no_certificate,
    "client/undersong_client/keys.py pending_tls_key": name_no_certificate,
    "client/undersong_client/page/application.py _tail": read_no_file("_tail"),
    "client/undersong_client/records/declared.py json_lines": lambda m, paths, _: refuses(
        list, m.json_lines(paths.folder)
    ),
    "client/undersong_client/records/row_filter.py RowFilter.__call__": lambda m, *_: refuses(
        list, m.RowFilter("/no/such/program")((), ())
    ),
    "client/undersong_client/operations/evidence.py _read_signed_files": read_no_evidence,
    "client/undersong_client/records/database.py _url": lambda m, paths, _: refuses(
        m._url, paths.file, str(paths.gone), error=UndersongError
    ),
    "client/undersong_client/records/fhir/attachments.py _file_content": lambda m, paths, _: refuses(
        m._file_content, paths.gone, error=m.Unreadable
    ),
    "client/undersong_client/records/fhir/resources.py Listing._is_resource": find_no_resource,
    "client/undersong_client/storage/checkpoints.py _salt": salt_a_folder,
    "client/undersong_client/storage/addition.py _writable": gives(False, "_writable", "below"),
    "client/undersong_client/storage/store.py PartyJournal.__init__": open_no_database("PartyJournal"),
    "server/undersong_server/authority.py Authority._read_file": read_no_authority,
    "server/undersong_server/methods/parts/keyphrases.py read_vocabulary": read_no_file("read_vocabulary"),
    "server/undersong_server/operations/permissions.py _is_offered": gives(False, "_is_offered", "folder"),
    "server/undersong_server/operations/beginning.py _lacks_terms": take_the_next_step_without_a_corpus,
    "server/undersong_server/operations/overview.py _summary": fail_to_summarise,
    "server/undersong_server/runs/file_labels.py _read_labels": gives(
        (), "_read_labels", "gone", "text", "label", 0, 0
    ),
    "server/undersong_server/runs/folder.py RunFolder.exists": look_for_a_run,
    "server/undersong_server/runs/folder.py RunFolder.is_put_away": read_a_run_folder,
    "server/undersong_server/runs/folder.py RunFolder._read_file": read_a_run_folder,
    "server/undersong_server/runs/folder.py RunFolder.tell": read_a_run_folder,
    "server/undersong_server/database/sqlite.py Sqlite.__init__": open_no_database("Sqlite", ""),
    "simulation/undersong/comparison/grid.py read_kept": gives(None, "read_kept", "gone", "", "", ""),
    "common/undersong_common/program/chain.py HashChain.refresh": read_an_empty_chain,
    "common/undersong_common/program/moving.py _send_entries": move_between_disks,
    "common/undersong_common/program/plugins.py _read_files": read_no_package,
    "common/undersong_common/text/row_files.py _parquet_rows": read_no_parquet,
    "common/undersong_common/program/services.py check_unused": ask_processes_that_end,
    "common/undersong_common/program/services.py _open_files": ask_processes_that_end,
    f"{COMPUTATION} PartyEmbeddings.__init__": embed_without_a_cache,
    f"{COMPUTATION} PartyEmbeddings.__call__": embed_without_a_cache,
    f"{CHILD} ComputingProcess.expect": start_no_process(lambda _, computing: computing.expect()),
    f"{CHILD} ComputingProcess.warm": start_no_process(lambda _, computing: computing.warm()),
    f"{CHILD} ComputingProcess.keep_running": start_no_process(lambda _, computing: computing.keep_running()),
    f"{CHILD} ComputingProcess._send_request": start_no_process(leave_a_request_unasked),
    f"{CHILD} main": end_with_the_daemon,
    f"{CHILD} _step_back": step_back_where_no_score_is,
    f"{CHILD} _keep_busy": keep_busy_at_any_priority,
    "client/undersong_client/home.py PartyHome.check_modes": pass_over_a_renamed_file,
    "client/undersong_client/link/checks.py _explain_silence": resolve_no_name,
    "client/undersong_client/link/checks.py _raise_tls_fault": meet_no_coordinator,
    "client/undersong_client/link/daemon.py Daemon._is_trusted": trust_while_nothing_can_be_read,
    "client/undersong_client/records/fhir/attachments.py Attachments._file": read_no_attachment,
    "client/undersong_client/records/fhir/resources.py Resources.read": read_no_resource,
    "client/undersong_client/records/fhir/resources.py Listing._is_manifest": list_no_file,
    "client/undersong_client/records/fhir/resources.py Listing._list_file": list_no_file,
    "client/undersong_client/storage/checkpoints.py LedgerCheckpoints._marks": read_marks_that_can_be_seen,
    "client/undersong_client/storage/checkpoints.py LedgerCheckpoints.keep": keep_no_mark,
    "client/undersong_client/storage/store.py Store.compartment": open_no_compartment,
    "server/undersong_server/coordinator/gate.py _Outer._open_inner": abort_a_connection,
    "server/undersong_server/generators/kinds/transformers.py TransformersSettings.context": (
        lambda m, paths, _: m.TransformersSettings.context(SimpleNamespace(path="a model"), paths.gone)
    ),
    "server/undersong_server/operations/coordinator.py health": ask_a_silent_coordinator,
    "server/undersong_server/operations/coordinator.py _add_all": back_up_without_files_that_are_gone_or_closed,
    "server/undersong_server/operations/permissions.py public_files": offer_texts_beside_a_broken_task,
    "simulation/undersong/run/workspace.py Workspace.__init__": make_no_workspace,
}

CHECKS = "tests/client/cli/test_cli.py::test_check_distinguishes_"
PROGRAM = "tests/common/program/"
NOT_TOLD = f"{PROGRAM}test_owner.py::test_account_is_not_proven_if_the_system_hides_its_processes"
ONE_FAULT = "tests/federation/faults/test_one_fault.py::test_"
# By place: the test elsewhere in which the error comes about there.
TESTED = {
    "common/undersong_common/program/notices.py deliver": f"{PROGRAM}test_notices.py::test_notice_command_gets",
    "common/undersong_common/program/machine.py rights_that_pass": (
        "tests/client/cli/test_other_account.py::test_daemon_exits_to_be_restarted_at_a_file_of_another_account"
    ),
    "common/undersong_common/program/machine.py named_faults": (
        f"{ONE_FAULT}run_waits_for_a_resource_that_a_hospital_lacks"
    ),
    "common/undersong_common/program/owner.py account_name": f"{PROGRAM}test_owner.py::test_account_without_a_name",
    "common/undersong_common/program/owner.py _ancestor_uids": NOT_TOLD,
    "common/undersong_common/program/owner.py _login_uid": NOT_TOLD,
    "common/undersong_common/program/owner.py _is_in_user_namespace": NOT_TOLD,
    "common/undersong_common/program/owner.py _is_time_shifted": NOT_TOLD,
    "common/undersong_common/program/owner.py _is_of_a_person": f"{PROGRAM}test_owner.py::test_only_an_account_with",
    "common/undersong_common/program/uptime.py instant": (
        f"{PROGRAM}test_uptime.py::test_elapsed_time_without_an_uptime_follows_the_clock"
    ),
    "common/undersong_common/files.py replace_file": (
        "tests/common/test_files.py::test_error_in_replacing_a_file_names_it_and_not_its_temporary_file"
    ),
    "common/undersong_common/program/owner.py _is_missing": (
        f"{PROGRAM}test_owner.py::test_unreadable_folder_counts_as_another_account_s"
    ),
    "server/undersong_server/methods/__init__.py hash_code": (
        "tests/server/methods/test_interface.py::test_code_hash_covers_a_method_defined_without_a_file"
    ),
    "common/undersong_common/program/owner.py _path_owner": (
        f"{PROGRAM}test_owner.py::test_own_or_missing_folder_passes_the_owner_check"
    ),
    "client/undersong_client/answering/journaled.py Answering._answer_once_possible": (
        "tests/federation/faults/test_real_disks.py::test_full_disk_of_a_hospital_holds_up_that_hospital"
    ),
    "client/undersong_client/answering/computing_process.py ComputingProcess.vector": (
        "tests/client/answering/test_computing_process.py::"
        "test_failed_computing_process_gives_zeros_on_time_and_is_replaced"
    ),
    "client/undersong_client/link/checks.py _dial_directly": f"{CHECKS}a_dead_proxy_from_a_dead_coordinator",
    "client/undersong_client/link/checks.py _dial_through_proxy": f"{CHECKS}a_dead_proxy_from_a_dead_coordinator",
    "client/undersong_client/records/snapshot.py _read_parts": (
        "tests/client/records/test_snapshot.py::test_damaged_sealed_copy_of_the_records_is_refused"
    ),
    "client/undersong_client/storage/public_blocks.py DiskBlocks.get": (
        "tests/client/storage/test_public_blocks.py::test_public_blocks_survive_a_restart"
    ),
    "server/undersong_server/cluster.py _check_reachable": (
        "tests/server/test_cluster.py::test_unreachable_cluster_address_is_refused_before_ray_starts"
    ),
    "server/undersong_server/coordinator/metrics.py MetricsServer.__init__": (
        "tests/server/coordinator/test_metrics.py::test_error_for_a_taken_metrics_port_names_the_port"
    ),
    "common/undersong_common/program/entry.py _run_command": (
        f"{PROGRAM}test_entry.py::test_exit_code_is_the_error_s_where_the_output_s_disk_is_full"
    ),
    "server/undersong_server/coordinator/run_driver.py RunDriver._evaluate": (
        "tests/server/coordinator/test_grpc_driver.py::test_fault_of_the_machine_does_not_count_as_failed_evaluation"
    ),
    "server/undersong_server/coordinator/run_driver.py RunDriver._run": (
        f"{ONE_FAULT}run_waits_for_a_resource_that_the_coordinator_lacks"
    ),
    "server/undersong_server/generators/kinds/openai/attempt.py EndpointConnection.pool": (
        "tests/server/operations/test_tasks_and_releases.py::test_a_plan_refuses_an_endpoint_without_its_key"
    ),
    "server/undersong_server/release/files.py write_files": (
        "tests/server/release/test_files.py::test_full_disk_leaves_the_published_files_unchanged"
    ),
}


@pytest.mark.slow
def test_every_place_in_the_code_that_catches_a_system_error_is_listed():
    listed = [*ACTS, *TESTED]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(places_of_this_tree())


@pytest.mark.parametrize("place", TESTED)
def test_each_listed_catching_place_names_an_existing_test(place):
    path, _, name = TESTED[place].partition("::")
    assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8")


@contextmanager
def lines_run(path):
    """Collects the numbers of the lines of a file that run in the block."""
    file, lines = str(path), set()

    def trace(frame, event, _argument):
        if frame.f_code.co_filename != file:
            return None
        lines.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


@pytest.mark.slow
@pytest.mark.parametrize("place", ACTS)
def test_each_catching_place_handles_its_system_error_as_listed(place, tmp_path, monkeypatch):
    path, _, _ = place.partition(" ")
    room = module(path)
    with lines_run(ROOT / path) as lines:
        ACTS[place](room, Paths(tmp_path), monkeypatch)
    catching = {line for line in places_of_this_tree()[place] if line}
    assert catching <= lines
