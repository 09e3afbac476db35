use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;

use super::*;

/// The hellos of a meeting.
fn meet(root: &Root, own: RankInfo, limit: Duration) -> Result<Vec<RankInfo>, Error> {
    super::meet(root, own, limit).map(|meeting| meeting.ranks)
}

fn hello(rank: u32, size: u32) -> RankInfo {
    with_window(rank, size, "4 MiB")
}

fn with_window(rank: u32, size: u32, window: &str) -> RankInfo {
    let agreed = [(
        "pml.unexpected (DOORBELL_UNEXPECTED)".to_owned(),
        window.to_owned(),
    )];
    RankInfo::of_this_process(rank, size, agreed.into(), Vec::new()).unwrap()
}

fn in_folder() -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::Path(folder.path().join("root"));
    (folder, root)
}

fn unique(name: &str) -> Root {
    Root::parse(&format!("@doorbell-test-{name}-{}", std::process::id())).unwrap()
}

const SOON: Duration = Duration::from_millis(300);
const AMPLE: Duration = Duration::from_secs(20);

fn meet_all(root: &Root, size: u32) -> Vec<Result<Vec<RankInfo>, Error>> {
    thread::scope(|s| {
        let ranks: Vec<_> = (0..size)
            .rev()
            .map(|rank| s.spawn(move || meet(root, hello(rank, size), AMPLE)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn everybody_gets_the_same_table_and_the_file_goes_away() {
    let (_folder, by_path) = in_folder();
    for root in [unique("all"), by_path] {
        let tables: Vec<_> = meet_all(&root, 9).into_iter().map(Result::unwrap).collect();
        assert!(tables.iter().all(|table| table == &tables[0] && table.len() == 9));
        assert!(root.path().is_none_or(|path| !path.exists()));
    }
}

#[test]
fn missing_ranks_are_named_on_both_sides() {
    let root = unique("missing");
    let (zero, one) = thread::scope(|s| {
        let zero = s.spawn(|| meet(&root, hello(0, 4), SOON));
        let one = s.spawn(|| meet(&root, hello(1, 4), AMPLE));
        (
            zero.join().unwrap().unwrap_err(),
            one.join().unwrap().unwrap_err(),
        )
    });
    assert!(
        matches!(&zero, Error::MissingRanks { missing, .. } if missing == &[2, 3]),
        "{zero}"
    );
    assert_eq!(one.to_string(), zero.to_string());
    assert_eq!((one.exit_code(), zero.exit_code()), (5, 5));
}

#[test]
fn without_rank_zero_the_others_say_so() {
    let error = meet(&unique("nobody"), hello(1, 2), SOON).unwrap_err();
    assert!(
        matches!(&error, Error::NoRoot { .. }) && error.to_string().contains("was it started"),
        "{error}"
    );
}

/// Runs rank 0, rank 1, and one that contradicts them, which come in this order. All must end long before the
/// limit.
fn disagree(name: &str, zero: RankInfo, one: RankInfo, odd: RankInfo) -> Vec<Error> {
    let root = &unique(name);
    let started = Instant::now();
    let errors = thread::scope(|s| {
        let ranks = [zero, one, odd].map(|own| {
            let rank = s.spawn(move || meet(root, own, AMPLE));
            thread::sleep(Duration::from_millis(100));
            rank
        });
        ranks.map(|rank| rank.join().unwrap().unwrap_err())
    });
    assert!(started.elapsed() < AMPLE / 4, "{:?}", started.elapsed());
    errors.into()
}

#[test]
fn ranks_that_do_not_fit_together_all_end_at_once_with_the_same_sentence() {
    let other_version = RankInfo {
        version: "9.9.9".to_owned(),
        ..hello(2, 4)
    };
    let silent = RankInfo {
        agreed: BTreeMap::new(),
        ..hello(2, 4)
    };
    for (name, odd, wanted) in [
        (
            "twice",
            hello(1, 4),
            "two processes claim to be rank 1 (DOORBELL_RANK): pids",
        ),
        (
            "size",
            hello(2, 5),
            "DOORBELL_SIZE is 5 at rank 2 and 4 at rank 0",
        ),
        (
            "version",
            other_version,
            "rank 2 runs doorbell 9.9.9, rank 0 runs",
        ),
        (
            "window",
            with_window(2, 4, "8 MiB"),
            "pml.unexpected (DOORBELL_UNEXPECTED) is 8 MiB at rank 2 and 4 MiB at rank 0",
        ),
        ("silent", silent, "is unknown at rank 2 and 4 MiB at rank 0"),
    ] {
        let errors = disagree(name, hello(0, 4), hello(1, 4), odd);
        let sentence = errors[0].to_string();
        assert!(sentence.contains(wanted), "{sentence}");
        for error in &errors {
            assert_eq!(error.to_string(), sentence);
            assert_eq!((error.code(), error.exit_code()), ("job.disagreement", 2));
        }
    }
}

#[test]
fn who_comes_after_the_meeting_was_called_off_is_told_too() {
    let root = &unique("late");
    let started = Instant::now();
    let errors = thread::scope(|s| {
        let zero = s.spawn(|| meet(root, hello(0, 3), AMPLE));
        let odd = s.spawn(|| meet(root, hello(1, 2), AMPLE));
        let odd = odd.join().unwrap().unwrap_err();
        let late = meet(root, hello(2, 3), AMPLE).unwrap_err();
        [zero.join().unwrap().unwrap_err(), odd, late]
    });
    assert!(started.elapsed() < AMPLE / 4, "{:?}", started.elapsed());
    assert!(
        errors
            .iter()
            .all(|error| error.to_string() == errors[0].to_string()),
        "{errors:?}"
    );
}

#[test]
fn strangers_who_say_nothing_or_nonsense_do_not_stop_the_job() {
    let (_folder, root) = in_folder();
    let path = root.path().unwrap().to_owned();
    thread::scope(|s| {
        let zero = s.spawn(|| meet(&root, hello(0, 2), AMPLE));
        let reach = || loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        };
        let silent: Vec<_> = (0..20).map(|_| reach()).collect();
        let mut rude = reach();
        rude.write_all(&[0xff; 64]).unwrap();
        let mut other_version = reach();
        other_version
            .write_all(b"doorbell\x09\x00\x01\x00\x02\x00\x00\x00{}")
            .unwrap();
        let mut answer = Vec::new();
        // Closing with bytes unread resets the connection, but only after the answer was read.
        let _ = other_version.read_to_end(&mut answer);
        assert!(
            String::from_utf8_lossy(&answer).contains("version 9"),
            "{answer:?}"
        );
        let mut endless = reach();
        endless
            .write_all(b"doorbell\x02\x00\x01\x00\xff\xff\xff\x7f")
            .unwrap();
        let mut nonsense = reach();
        nonsense
            .write_all(b"doorbell\x02\x00\x01\x00\x02\x00\x00\x00[]")
            .unwrap();
        assert_eq!(meet(&root, hello(1, 2), AMPLE).unwrap().len(), 2);
        assert_eq!(zero.join().unwrap().unwrap().len(), 2);
        drop(silent);
    });
}

#[test]
fn a_rank_that_left_may_come_again() {
    let (_folder, root) = in_folder();
    let path = root.path().unwrap().to_owned();
    thread::scope(|s| {
        let zero = s.spawn(|| meet(&root, hello(0, 3), AMPLE));
        let body = serde_json::to_vec(&hello(1, 3)).unwrap();
        let mut early = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        };
        early
            .write_all(&wire::frame(wire::Kind::Hello, &body).unwrap())
            .unwrap();
        thread::sleep(Duration::from_millis(50));
        drop(early);
        thread::sleep(Duration::from_millis(50));
        let one = s.spawn(|| meet(&root, hello(1, 3), AMPLE));
        let two = s.spawn(|| meet(&root, hello(2, 3), AMPLE));
        for rank in [zero, one, two] {
            assert_eq!(rank.join().unwrap().unwrap().len(), 3);
        }
    });
}

#[test]
fn a_socket_file_that_a_dead_job_left_is_replaced_but_nothing_else() {
    let (_folder, root) = in_folder();
    drop(UnixListener::bind(root.path().unwrap()).unwrap());
    assert!(root.path().unwrap().exists());
    assert!(meet_all(&root, 2).iter().all(Result::is_ok));
    std::fs::write(root.path().unwrap(), "precious").unwrap();
    let error = meet(&root, hello(0, 2), SOON).unwrap_err();
    assert_eq!(error.code(), "system");
    assert_eq!(std::fs::read_to_string(root.path().unwrap()).unwrap(), "precious");
}

const FOREIGN: &str = "DOORBELL_TEST_FOREIGN_ROOT";

/// Serves an address, in a process of another user that the test below starts; does nothing otherwise.
#[test]
fn foreign_root() {
    let Ok(name) = std::env::var(FOREIGN) else { return };
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    println!("\nserving");
    let (mut guest, _) = listener.accept().unwrap();
    // The rank closes without sending anything: the server reads the end.
    let mut received = Vec::new();
    let _ = guest.read_to_end(&mut received);
    assert!(received.is_empty(), "{} bytes", received.len());
}

#[test]
fn a_meeting_that_another_user_serves_is_left_at_once() {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    if !rustix::process::geteuid().is_root() {
        let name = "doorbell-job::meet::tests::a_meeting_that_another_user_serves_is_left_at_once";
        return doorbell_testing::skipped(name, "only root can start a process of another user");
    }
    let name = format!("doorbell-test-foreign-{}", std::process::id());
    // The test program may be in a folder that another user cannot read.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let program = folder.path().join("foreign");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut other = Command::new(&program)
        .args([
            "--exact",
            "meet::tests::foreign_root",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FOREIGN, &name)
        .current_dir("/")
        .uid(65_534)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "serving"));
    let started = Instant::now();
    let error = meet(&Root::Abstract(name), hello(1, 2), AMPLE).unwrap_err();
    assert!(started.elapsed() < AMPLE / 4);
    assert!(
        error
            .to_string()
            .contains("another user serves the meeting at @doorbell"),
        "{error}"
    );
    assert_eq!(error.exit_code(), 2);
    assert!(other.wait().unwrap().success());
}

#[test]
fn bad_roots_are_errors() {
    for bad in ["", "@", &"x".repeat(200), &format!("@{}", "x".repeat(200))] {
        assert!(Root::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_ranks_of_one_job_share_a_key_and_those_of_another_do_not() {
    let key = || {
        let root = unique("key");
        thread::scope(|s| {
            let others = [1, 2].map(|rank| {
                s.spawn({
                    let root = &root;
                    move || super::meet(root, hello(rank, 3), AMPLE)
                })
            });
            let zero = super::meet(&root, hello(0, 3), AMPLE).unwrap().key;
            for other in others {
                assert_eq!(other.join().unwrap().unwrap().key, zero);
            }
            zero
        })
    };
    let (one, other) = (key(), key());
    assert!(one != other && one.bytes() != &[0; 32]);
    assert_eq!(format!("{one:?}"), "Key(…)");
}

/// The launcher reports ranks that have ended; an invalid line is ignored.
#[test]
fn a_rank_that_has_ended_is_not_waited_for() {
    for (rank, ended) in [(0, 1), (1, 0)] {
        let root = unique(&format!("ended-{rank}"));
        let Root::Abstract(name) = &root else {
            panic!("{root}")
        };
        let reports = format!("{name}{}", ended::SUFFIX);
        let launcher = UnixListener::bind_addr(&SocketAddr::from_abstract_name(reports).unwrap()).unwrap();
        let error = thread::scope(|s| {
            let meeting = s.spawn(|| meet(&root, hello(rank, 2), AMPLE));
            let (mut reader, _) = launcher.accept().unwrap();
            reader
                .write_all(format!("7\nnonsense\n-1\n99999999999\n{ended}\n").as_bytes())
                .unwrap();
            meeting.join().unwrap().unwrap_err()
        });
        assert!(
            matches!(&error, Error::EndedEarly { rank } if *rank == ended),
            "{error}"
        );
        assert_eq!((error.code(), error.exit_code()), ("job.ended-early", 4));
    }
}
