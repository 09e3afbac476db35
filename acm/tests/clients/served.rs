//! The server: every question of our own client, over both kinds of socket; files that come and go; clients
//! that are refused.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use doorbell_acm::address::Address;
use doorbell_acm::client::{Client, ClientError, Service};
use doorbell_acm::path::Path;
use doorbell_acm::query::CounterScope;
use doorbell_acm::serve::{Count, Reply, ServeError, Server, Settings, inherited};
use doorbell_acm::status::Status;

use crate::common::{LONG, Running, at_once, counters, endpoints, name, path_to, settings, v4, with_tcp};

fn all_questions(client: &mut Client) {
    let route = client.resolve(Some(v4(1)), v4(7), false).unwrap();
    assert_eq!((route.path, route.source), (path_to(7), None));
    let route = client.resolve(None, name("node8"), false).unwrap();
    assert_eq!((route.path, route.source), (path_to(8), Some(name("node1"))));
    let v6 = Address::V6("fd00::9".parse().unwrap());
    let route = client.resolve(None, v6, true).unwrap();
    assert_eq!(route.path, path_to(9));
    let by_gid = Path {
        dgid: "fe80::5".parse().unwrap(),
        ..Path::default()
    };
    assert_eq!(client.path(&by_gid, false).unwrap(), path_to(5));
    assert_eq!(client.path(&by_gid, true).unwrap(), path_to(5));
    assert_eq!(client.counters(CounterScope::Service).unwrap(), counters(0));
    assert_eq!(client.counters(CounterScope::Index(3)).unwrap(), counters(3));
    assert_eq!(client.counters(CounterScope::Owner(v4(1))).unwrap(), counters(1));
    let told = client.endpoints().unwrap();
    assert_eq!(told.len(), endpoints().len());
    for (report, endpoint) in told.iter().zip(endpoints()) {
        let texts: Vec<String> = endpoint.addresses.iter().map(Address::to_string).collect();
        assert_eq!((report.guid, report.port), (endpoint.guid, endpoint.port));
        assert_eq!(report.addresses, texts);
        assert_eq!(report.provider, "doorbell");
    }
    assert_eq!(
        [1, 2, 1].to_vec(),
        told.iter().map(|report| report.index).collect::<Vec<_>>()
    );
}

#[test]
fn every_question_is_answered_over_unix_and_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&with_tcp(folder.path()), at_once);
    for service in [
        running.unix(),
        running.tcp(),
        Service::of_librdmacm(&running.places),
    ] {
        all_questions(&mut Client::connect(&service, LONG).unwrap());
    }
}

#[test]
fn every_status_is_one_sentence_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&settings(folder.path()), at_once);
    let mut client = running.client();
    for status in Status::ALL {
        let asked = client.resolve(Some(v4(1)), v4(200 + status.code()), false);
        let error = asked.unwrap_err();
        assert_eq!(error.status(), Some(status));
        let text = error.to_string();
        assert!(
            text.contains(&status.to_string()) && text.contains("; "),
            "{text}"
        );
        assert!(!text.contains('\n'));
    }
    let statuses = [
        client.resolve(None, v4(250), true).unwrap_err().status(),
        client.resolve(Some(v4(99)), v4(7), false).unwrap_err().status(),
        client.counters(CounterScope::Index(4)).unwrap_err().status(),
        client.counters(CounterScope::Owner(v4(99))).unwrap_err().status(),
        client.endpoint(1, 3).unwrap_err().status(),
        client.endpoint(3, 1).unwrap_err().status(),
        client.endpoint(1, 0).unwrap_err().status(),
        client.path(&Path::default(), false).unwrap_err().status(),
    ];
    let expected = [
        Status::NoData,
        Status::SourceAddress,
        Status::SourceAddress,
        Status::SourceAddress,
        Status::Invalid,
        Status::Invalid,
        Status::Invalid,
        Status::DestinationAddress,
    ];
    assert_eq!(statuses, expected.map(Some));
    assert_eq!(client.endpoint(2, 1).unwrap().index, 1, "behind the gap");
    assert_eq!(
        running.served.of(Count::Refused),
        1,
        "the path that leads nowhere"
    );
}

#[test]
fn a_question_that_is_let_go_is_answered_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&settings(folder.path()), |_, reply: Reply| drop(reply));
    let error = running.client().resolve(None, v4(7), false).unwrap_err();
    assert_eq!(error.status(), Some(Status::NotConnected));
    assert_eq!(running.served.of(Count::Unanswered), 1);
}

#[test]
fn the_files_come_and_go_with_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&with_tcp(folder.path()), at_once);
    let places = running.places.clone();
    assert_eq!(
        fs::metadata(&places.socket).unwrap().permissions().mode() & 0o777,
        0o666
    );
    assert_eq!(fs::read_link(&places.socket_alias).unwrap(), places.socket);
    assert_eq!(fs::read_link(&places.port_alias).unwrap(), places.port);
    let port = fs::read_to_string(&places.port).unwrap();
    assert_eq!(port.trim().parse().ok(), running.port);
    drop(running);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn without_librdmacm_there_are_no_links_and_the_mode_is_a_setting() {
    let folder = tempfile::tempdir().unwrap();
    let own = Settings {
        librdmacm: false,
        mode: 0o600,
        ..with_tcp(folder.path())
    };
    let running = Running::start(&own, at_once);
    assert_eq!(
        fs::metadata(&running.places.socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(running.places.port.exists());
    assert!(fs::symlink_metadata(&running.places.socket_alias).is_err());
    assert!(fs::symlink_metadata(&running.places.port_alias).is_err());
}

#[test]
fn a_dead_service_is_replaced_and_a_live_one_never() {
    let folder = tempfile::tempdir().unwrap();
    let own = settings(folder.path());
    drop(UnixListener::bind(&own.places.socket).unwrap());
    fs::write(&own.places.port, "1\n").unwrap();
    symlink(&own.places.port, &own.places.port_alias).unwrap();
    let running = Running::start(&own, at_once);
    assert!(running.client().counters(CounterScope::Service).is_ok());
    assert!(!own.places.port.exists(), "no process listens there");
    assert!(fs::symlink_metadata(&own.places.port_alias).is_err());
    let error = Server::open(&own, Vec::new()).unwrap_err();
    assert!(matches!(error, ServeError::InUse { .. }), "{error}");
    assert!(running.client().counters(CounterScope::Service).is_ok());
}

#[test]
fn a_link_to_another_service_that_lives_is_not_replaced() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = Running::start(&settings(one.path()), at_once);
    let own = settings(other.path());
    symlink(&running.places.socket, &own.places.socket_alias).unwrap();
    let error = Server::open(&own, Vec::new()).unwrap_err();
    assert!(matches!(error, ServeError::InUse { .. }), "{error}");
    assert_eq!(
        fs::read_link(&own.places.socket_alias).unwrap(),
        running.places.socket
    );
    drop(running);
    let running = Running::start(&own, at_once);
    assert_eq!(
        fs::read_link(&own.places.socket_alias).unwrap(),
        running.places.socket
    );
}

#[test]
fn what_is_no_socket_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let own = settings(folder.path());
    fs::write(&own.places.socket, "mine").unwrap();
    let error = Server::open(&own, Vec::new()).unwrap_err();
    assert!(matches!(error, ServeError::InTheWay { .. }), "{error}");
    assert_eq!(fs::read_to_string(&own.places.socket).unwrap(), "mine");
    fs::remove_file(&own.places.socket).unwrap();
    fs::write(&own.places.socket_alias, "mine").unwrap();
    assert!(Server::open(&own, Vec::new()).is_err());
    assert!(!own.places.socket.exists(), "what was made by then is removed");
    assert_eq!(fs::read_to_string(&own.places.socket_alias).unwrap(), "mine");
}

#[test]
fn a_file_that_now_belongs_to_another_service_stays() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&settings(folder.path()), at_once);
    let socket = running.places.socket.clone();
    fs::rename(&socket, folder.path().join("old")).unwrap();
    let other = UnixListener::bind(&socket).unwrap();
    let known = fs::symlink_metadata(&socket).unwrap().ino();
    drop(running);
    assert_eq!(fs::symlink_metadata(&socket).unwrap().ino(), known);
    drop(other);
}

#[test]
fn sockets_that_are_handed_over_are_used_and_others_refused() {
    let folder = tempfile::tempdir().unwrap();
    let own = settings(folder.path());
    let unix = UnixListener::bind(&own.places.socket).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let server = Server::open(&own, vec![unix.into(), tcp.into()]).unwrap();
    let running = Running::run(server, own.places.clone(), at_once);
    assert_eq!(running.port, Some(port));
    all_questions(&mut running.client());
    all_questions(&mut Client::connect(&running.tcp(), LONG).unwrap());
    drop(running);
    assert!(
        own.places.socket.exists(),
        "it belongs to the process that handed it over"
    );
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = Server::open(&own, vec![one.into()]).unwrap_err();
    assert!(matches!(error, ServeError::Given { at: 0 }), "{error}");
}

#[test]
fn a_client_names_the_missing_service() {
    let folder = tempfile::tempdir().unwrap();
    let unserved = Service::Unix(folder.path().join("nobody"));
    let error = Client::connect(&unserved, LONG).unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let host = "127.0.0.1".to_owned();
    let error = Client::connect(&Service::Tcp { host, port }, LONG).unwrap_err();
    assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
}

#[test]
fn a_service_that_is_started_with_its_socket_serves_through_it() {
    const NAME: &str = "served::a_service_that_is_started_with_its_socket_serves_through_it";
    if std::env::var("LISTEN_FDS").is_ok() {
        return activated();
    }
    let folder = tempfile::tempdir().unwrap();
    let own = settings(folder.path());
    let socket = UnixListener::bind(&own.places.socket).unwrap();
    // As systemd does: the socket is descriptor 3, and LISTEN_PID names the process.
    let script = r#"exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@""#;
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME])
        .env("ACM_TEST_FOLDER", folder.path())
        .stdin(OwnedFd::from(socket))
        .stdout(Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    all_questions(&mut Client::connect(&Service::Unix(own.places.socket.clone()), LONG).unwrap());
    assert!(
        !own.places.socket_alias.exists(),
        "a matter of who opened the socket"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The service of that test: it serves until it is killed, or until it must be too late.
fn activated() {
    let variable = |name| std::env::var(name).ok();
    let pid = variable("LISTEN_PID");
    assert_eq!(
        inherited(Some("1"), Some("1")).unwrap().len(),
        0,
        "for another process"
    );
    assert!(inherited(Some("many"), pid.as_deref()).is_err());
    let given = inherited(variable("LISTEN_FDS").as_deref(), pid.as_deref()).unwrap();
    assert_eq!(given.len(), 1);
    let own = settings(variable("ACM_TEST_FOLDER").unwrap().as_ref());
    let server = Server::open(&own, given).unwrap();
    let _running = Running::run(server, own.places, at_once);
    std::thread::sleep(LONG);
}
