//! Members whose rails lead to other hosts, found by node and service, and by their names.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_testing::netns::Lab;
use libfabric_sys::*;

use crate::addresses::{client, meet_by_service, port, remove, server, take};
use crate::client::{Client, Found, Room, Wants, until};
use crate::pair::{Role, run_built, run_on};

/// Rails that lead to the other host, and stay within one.
const RAILS: [(&str, &str); 1] = [("FI_DOORBELL_RAILS", "shm,udp:v0")];

#[test]
fn a_service_is_a_port_of_its_host_also_of_a_member_with_rails_to_other_hosts() {
    let test = "hosts::a_service_is_a_port_of_its_host_also_of_a_member_with_rails_to_other_hosts";
    run_on(test, [0, 0], &RAILS, |mut role, library| {
        let port = port(&mut role);
        if role.is_first() {
            let mut here = Client::open(library, &server(FI_FORMAT_UNSPEC, port));
            role.exchange(&here.name());
            let (name, sender) = take(&here);
            assert_eq!(sender, FI_ADDR_NOTAVAIL);
            here.peer = here.insert(&name);
            here.send(b"by your name", None);
            assert_eq!(take(&here), (b"by mine".to_vec(), here.peer));
            role.meet(&here);
        } else {
            let theirs = role.exchange(&[0; 56]);
            let mut here = Client::open(library, &client(FI_FORMAT_UNSPEC, port));
            let port = here.destination();
            // The name that it gives has its doors and a token, and is of the same peer.
            assert!(theirs != port && theirs[6..24] != [0; 18] && port[6..24] == [0; 18]);
            here.peer = here.insert(&port);
            let by_name = here.insert(&theirs);
            here.send(&here.name(), None);
            let (text, sender) = take(&here);
            assert_eq!(text, b"by your name");
            assert!([here.peer, by_name].contains(&sender));
            here.peer = by_name;
            here.send(b"by mine", None);
            role.meet(&here);
        }
    });
}

#[test]
fn the_name_of_a_member_at_a_port_leads_to_it_from_another_host() {
    let test = "hosts::the_name_of_a_member_at_a_port_leads_to_it_from_another_host";
    run_on(test, [0, 1], &RAILS, |mut role, library| {
        // Programs that exchange names pass the same service on both sides.
        let port = port(&mut role);
        let here = Client::meet(&mut role, library, &server(FI_FORMAT_UNSPEC, port));
        if role.is_first() {
            here.send(b"over the link", None);
        } else {
            assert_eq!(take(&here), (b"over the link".to_vec(), here.peer));
        }
        role.meet(&here);
    });
}

/// The address of the first host of a pair, and what its second one wants that knows a port there.
const NODE: &CStr = c"10.77.0.1";

fn far_client(format: u32, port: u16) -> Wants {
    Wants {
        node: Some(NODE.to_owned()),
        ..client(format, port)
    }
}

/// Writes a key file, with these digits, where each process of a test writes one of its own.
fn key_file(folder: &Path, number: usize, digit: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let file = folder.join(number.to_string());
    std::fs::write(&file, format!("doorbell-key 1 {}\n", digit.repeat(64))).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

/// Runs a test between two hosts whose processes have keys of these digits. The provider reads its settings
/// at each call, so that a process may set its own.
fn with_keys(test: &str, digits: [&str; 2], part: impl FnOnce(Role, Library)) -> Option<[String; 2]> {
    with_keys_and(test, digits, &RAILS, &|_| (), part)
}

/// Does the same with these variables, between hosts that `build` has added something to.
fn with_keys_and(
    test: &str,
    digits: [&str; 2],
    variables: &[(&str, &str)],
    build: &dyn Fn(&Lab),
    part: impl FnOnce(Role, Library),
) -> Option<[String; 2]> {
    let more = [variables, &[("DOORBELL_BTL_GIVE_UP", "2 s")]].concat();
    run_built(test, [0, 1], &more, build, |role, library| {
        let folder = tempfile::tempdir().unwrap();
        let file = key_file(folder.path(), role.number, digits[role.number]);
        let file = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: texts; this process has one thread beside that of the test runner, which waits.
        let result = unsafe { libc::setenv(c"DOORBELL_KEY_FILE".as_ptr(), file.as_ptr(), 1) };
        assert_eq!(result, 0);
        part(role, library);
    })
}

#[test]
fn a_node_and_a_service_of_another_host_are_enough_with_a_key() {
    let test = "hosts::a_node_and_a_service_of_another_host_are_enough_with_a_key";
    with_keys(test, ["5", "5"], |mut role, library| {
        let port = port(&mut role) & !1;
        for format in [FI_FORMAT_UNSPEC, FI_SOCKADDR_IN] {
            meet_by_service(
                &mut role,
                library,
                [&server(format, port), &far_client(format, port)],
            );
        }
    });
}

#[test]
fn the_node_is_the_address_of_the_first_rail_that_is_named() {
    let test = "hosts::the_node_is_the_address_of_the_first_rail_that_is_named";
    let variables = [
        ("FI_DOORBELL_RAILS", "shm,udp:v1,udp:v0"),
        ("FI_LOG_LEVEL", "info"),
    ];
    let second_link = |lab: &Lab| {
        let other = lab.name(1);
        lab.ip(0, &format!("link add v1 type veth peer name v1 netns {other}"));
        for host in [0, 1] {
            lab.ip(host, &format!("address add 10.78.0.{}/24 dev v1", host + 1));
            lab.ip(host, "link set v1 up");
        }
        (0..2).for_each(|host| lab.wait_until_up(host, "v1"));
    };
    let printed = with_keys_and(test, ["5", "5"], &variables, &second_link, |mut role, library| {
        let port = port(&mut role) & !1;
        if role.is_first() {
            let here = Client::open(library, &server(FI_SOCKADDR_IN, port));
            assert_eq!(&here.name()[4..8], &[10, 78, 0, 1]);
            role.exchange(&[0]);
            assert_eq!(take(&here).0, b"by the first one");
            role.meet(&here);
        } else {
            role.exchange(&[0]);
            let wants = Wants {
                node: Some(c"10.78.0.1".to_owned()),
                ..client(FI_SOCKADDR_IN, port)
            };
            let mut here = Client::open(library, &wants);
            here.peer = here.insert(&here.destination());
            here.send(b"by the first one", None);
            role.meet(&here);
        }
    });
    if let Some([first, _]) = printed {
        assert!(first.contains("reach this one at 10.78.0.1:"), "{first}");
    }
}

#[test]
fn a_service_whose_ports_another_program_has_is_in_use() {
    let test = "hosts::a_service_whose_ports_another_program_has_is_in_use";
    let printed = with_keys(test, ["5", "5"], |mut role, library| {
        let port = port(&mut role) & !1;
        if !role.is_first() {
            return;
        }
        for taken in [port, port + 1] {
            let held = std::net::UdpSocket::bind(("10.77.0.1", taken)).unwrap();
            let sockets = Client::try_domain(library, &server(FI_SOCKADDR_IN, port));
            assert_eq!(sockets, Err(-FI_EADDRINUSE));
            // Programs that exchange names pass the same port on both sides.
            assert_eq!(
                Client::try_domain(library, &server(FI_FORMAT_UNSPEC, port)),
                Ok(())
            );
            drop(held);
            let sockets = Client::try_domain(library, &server(FI_SOCKADDR_IN, port));
            assert_eq!(sockets, Ok(()));
        }
        let last = Client::try_domain(library, &server(FI_SOCKADDR_IN, u16::MAX));
        assert_eq!(last, Err(-FI_EINVAL));
    });
    if let Some([first, _]) = printed {
        assert!(first.contains("name another service"), "{first}");
        assert!(first.contains("at most 65534"), "{first}");
        assert!(!first.contains("set another udp.port"), "{first}");
    }
}

#[test]
fn both_may_name_each_other_by_node_and_service_and_begin_at_once() {
    let test = "hosts::both_may_name_each_other_by_node_and_service_and_begin_at_once";
    with_keys(test, ["7", "7"], |mut role, library| {
        // The same port on both hosts.
        let port = port(&mut role) & !1;
        let mut here = Client::open(library, &server(FI_SOCKADDR_IN, port));
        let theirs = role.exchange(&here.name());
        assert_eq!(&theirs[4..8], &[10, 77, 0, 2 - role.number as u8]);
        here.peer = here.insert(&theirs);
        here.post(b"at once", None, 1);
        assert_eq!(take_beside(&here), (b"at once".to_vec(), here.peer));
        role.meet(&here);
    });
}

/// Receives a message while a send is under way.
fn take_beside(client: &Client) -> (Vec<u8>, fi_addr_t) {
    let mut room = Room::new(64);
    client.receive(&mut room, None, FI_ADDR_UNSPEC, 5);
    let mut taken = None;
    let mut is_sent = false;
    while taken.is_none() || !is_sent {
        match client.next() {
            Found::Entry(entry, sender) if entry.op_context.addr() == 5 => {
                taken = Some((room.bytes()[..entry.len].to_vec(), sender));
            }
            Found::Entry(..) => is_sent = true,
            Found::Failure(failure) => panic!("{failure:?}"),
        }
    }
    taken.unwrap()
}

/// The port and the number of the life of a server that another process of its test has started.
const LIFE: &str = "DOORBELL_TEST_LIFE";

/// Starts the server of a test at a port, and waits until it can be called.
fn begin_life(test: &str, folder: &Path, port: u16, life: u8) -> Child {
    let ready = folder.join(format!("ready-{life}"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(LIFE, format!("{port} {life} {}", ready.display()))
        .stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !ready.exists() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// Such a server: it answers messages until it is killed.
fn live(life: &str) {
    // It ends with the process that has started it, also where that one fails.
    // SAFETY: it takes any signal.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let parts: Vec<&str> = life.splitn(3, ' ').collect();
    let library = Library::open().unwrap();
    let mut here = Client::open(library, &server(FI_SOCKADDR_IN, parts[0].parse().unwrap()));
    std::fs::write(parts[2], "").unwrap();
    loop {
        here.peer = here.insert(&take(&here).0);
        here.send(parts[1].as_bytes(), None);
        remove(&here, here.peer);
    }
}

/// Inserts the server's address, and returns what it answers. A send that the end of its last life has met
/// fails, if the new one was slow to answer, and the next one does not.
fn ask(here: &mut Client) -> Vec<u8> {
    here.peer = here.insert(&here.destination());
    let name = here.name();
    for _ in 0..2 {
        here.post(&name, None, 3);
        match here.next() {
            Found::Entry(..) => break,
            Found::Failure(failure) => assert_eq!(failure.err, FI_EHOSTUNREACH),
        }
    }
    let answer = take(here).0;
    remove(here, here.peer);
    answer
}

#[test]
fn a_killed_server_that_comes_back_at_its_node_and_port_is_met_by_its_address() {
    let test = "hosts::a_killed_server_that_comes_back_at_its_node_and_port_is_met_by_its_address";
    if let Ok(life) = std::env::var(LIFE) {
        return live(&life);
    }
    const LIVES: u8 = 3;
    with_keys(test, ["5", "5"], |mut role, library| {
        let port = port(&mut role) & !1;
        let folder = tempfile::tempdir().unwrap();
        let wants = Wants {
            send_flags: FI_DELIVERY_COMPLETE,
            ..far_client(FI_SOCKADDR_IN, port)
        };
        let mut here = (!role.is_first()).then(|| Client::open(library, &wants));
        for life in 0..LIVES {
            let child = role
                .is_first()
                .then(|| begin_life(test, folder.path(), port, life));
            role.exchange(&[life]);
            if let Some(here) = &mut here {
                // It is called again while it lives, too, and is the same one.
                for _ in 0..2 {
                    assert_eq!(ask(here), life.to_string().into_bytes());
                }
            }
            role.exchange(&[life]);
            if let Some(mut child) = child {
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
    });
}

#[test]
fn a_member_of_this_host_by_its_door_is_the_one_at_its_port() {
    let test = "hosts::a_member_of_this_host_by_its_door_is_the_one_at_its_port";
    with_keys(test, ["5", "5"], |mut role, library| {
        let port = port(&mut role) & !3;
        // Processes of other hosts know the server so, and pass it on.
        if !role.is_first() {
            let here = Client::open(library, &far_client(FI_FORMAT_UNSPEC, port));
            role.exchange(&here.destination());
            return;
        }
        let mut server_of = Client::open(library, &server(FI_FORMAT_UNSPEC, port));
        let library = Library::open().unwrap();
        let mut other = Client::open(library, &server(FI_FORMAT_UNSPEC, port + 2));
        let by_door = role.exchange(&[0; 56]);
        assert_ne!(by_door, server_of.name());
        server_of.peer = server_of.insert(&other.name());
        let by_name = other.insert(&server_of.name());
        other.peer = other.insert(&by_door);
        let first = other.peer;
        // A client finds what it has inserted.
        let mut bytes = [0_u8; 56];
        let mut length = bytes.len();
        // SAFETY: the vector is open, and the memory has this length.
        let answer =
            unsafe { fi_av_lookup(other.vector.0, first, bytes.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!((answer, &bytes[..]), (0, &by_door[..]));
        for to in [first, by_name] {
            other.peer = to;
            let (text, sender) = pass(&other, &server_of);
            assert_eq!((text, sender), (b"from beside".to_vec(), server_of.peer));
            let (_, sender) = pass(&server_of, &other);
            assert!([first, by_name].contains(&sender));
        }
    });
}

/// Sends a message from one client of this process to another one, and returns it with its sender.
fn pass(from: &Client, to: &Client) -> (Vec<u8>, fi_addr_t) {
    let mut room = Room::new(64);
    to.receive(&mut room, None, FI_ADDR_UNSPEC, 5);
    let mut taken = None;
    let mut is_sent = false;
    from.retry(|| {
        to.advance();
        from.try_post(b"from beside", None, 4)
    });
    until("it does not arrive", || {
        if let Some(Found::Failure(failure)) = from.read().inspect(|_| is_sent = true) {
            panic!("{failure:?}");
        }
        if let Some(Found::Entry(entry, sender)) = to.read() {
            taken = Some((entry.len, sender));
        }
        (is_sent && taken.is_some()).then_some(())
    });
    let (length, sender) = taken.unwrap();
    (room.bytes()[..length].to_vec(), sender)
}

#[test]
fn a_process_with_another_key_gets_no_answer() {
    let test = "hosts::a_process_with_another_key_gets_no_answer";
    with_keys(test, ["5", "6"], |mut role, library| {
        let port = port(&mut role) & !1;
        if role.is_first() {
            let here = Client::open(library, &server(FI_SOCKADDR_IN, port));
            let mut room = Room::new(64);
            here.receive(&mut room, None, FI_ADDR_UNSPEC, 5);
            role.exchange(&[0]);
            role.meet(&here);
            assert!(here.read().is_none());
        } else {
            role.exchange(&[0]);
            let mut here = Client::open(library, &far_client(FI_SOCKADDR_IN, port));
            here.peer = here.insert(&here.destination());
            here.post(b"let me in", None, 3);
            let failure = here.next().failure();
            assert_eq!((failure.err, failure.op_context.addr()), (FI_EHOSTUNREACH, 3));
            let data = failure.err_data;
            // SAFETY: the queue is open.
            let text =
                unsafe { fi_cq_strerror(here.queue.0, failure.prov_errno, data, std::ptr::null_mut(), 0) };
            // SAFETY: a text.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            assert!(
                text.contains(&format!("peer doorbell://10.77.0.1:{port}/")),
                "{text}"
            );
            role.meet(&here);
        }
    });
}

#[test]
fn a_node_of_another_host_is_refused_without_a_key_and_the_refusal_names_the_setting() {
    let test = "hosts::a_node_of_another_host_is_refused_without_a_key_and_the_refusal_names_the_setting";
    let more = [RAILS[0], ("FI_LOG_LEVEL", "info")];
    let printed = run_on(test, [0, 1], &more, |role, library| {
        if !role.is_first() {
            // Sockets can be bound to addresses of other hosts then, too.
            let _ = std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1");
            let result = library.getinfo(library.level(), Some(NODE), Some(c"9228"), 0, None);
            assert_eq!(result.unwrap_err().number, FI_ENODATA);
        }
    });
    if let Some([_, printed]) = printed {
        assert!(printed.contains("FI_DOORBELL_KEY_FILE"), "{printed}");
    }
}

#[test]
fn a_key_file_that_cannot_be_read_offers_nothing_with_one_line() {
    let test = "hosts::a_key_file_that_cannot_be_read_offers_nothing_with_one_line";
    let more = [RAILS[0], ("DOORBELL_KEY_FILE", "/nonexistent/key")];
    let printed = run_on(test, [0, 1], &more, |_, library| {
        let result = library.getinfo(library.level(), None, None, 0, None);
        assert_eq!(result.unwrap_err().number, FI_ENODATA);
    });
    if let Some([_, printed]) = printed {
        assert_eq!(printed.matches("/nonexistent/key").count(), 1, "{printed}");
    }
}

#[test]
fn the_loopback_is_no_way_to_other_hosts_by_whatever_name() {
    let test = "hosts::the_loopback_is_no_way_to_other_hosts_by_whatever_name";
    let variables = [("FI_DOORBELL_RAILS", "shm,udp:127.0.0.1")];
    with_keys_and(test, ["5", "5"], &variables, &|_| (), |mut role, library| {
        let port = port(&mut role) & !1;
        if role.is_first() {
            // The service is a name on this host alone: its UDP port may be any program's.
            let _held = std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
            assert_eq!(Client::try_domain(library, &server(FI_SOCKADDR_IN, port)), Ok(()));
        }
    });
}
