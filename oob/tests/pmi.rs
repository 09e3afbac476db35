//! The two PMI clients against a server of the tests' own: jobs of several ranks, and servers that misbehave.
//! Every error is one sentence, comes within the limit, and ends the session.
// A server of a test is made of threads and sockets.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod pmi_server;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use doorbell_oob::launch::wire::Wire;
use doorbell_oob::launch::{Dialect, LaunchError, Launcher, Place, Pmi1, Pmi2};
use pmi_server::{Speaks, script, serve};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
/// What is waited for when nothing is to come.
const SHORT: Duration = Duration::from_millis(100);

fn place(rank: usize, size: usize) -> Place {
    Place {
        rank: rank as u32,
        size: size as u32,
        local_rank: None,
        local_size: None,
        job: "j".to_owned(),
    }
}

fn open<D: Dialect>(socket: OwnedFd, rank: usize, size: usize) -> Result<Wire<D>, LaunchError> {
    Wire::over(socket, place(rank, size), LIMIT)
}

/// What a rank gives: long enough for many pieces, with every byte.
fn value(rank: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + rank) as u8).collect()
}

fn job<D: Dialect>(speaks: Speaks, size: usize, vallen: usize, length: usize) {
    let (sockets, servers) = serve(speaks, size, vallen);
    std::thread::scope(|scope| {
        for (rank, socket) in sockets.into_iter().enumerate() {
            scope.spawn(move || {
                let mut launcher = open::<D>(socket, rank, size).unwrap();
                assert_eq!(
                    (launcher.kind(), launcher.place().job.as_str()),
                    (D::KIND, "kvs_test")
                );
                launcher.put("hello", &value(rank, length), LIMIT).unwrap();
                if rank == 0 {
                    launcher.put("empty", b"", LIMIT).unwrap();
                }
                launcher.fence(LIMIT).unwrap();
                for other in 0..size {
                    let got = launcher.get(other as u32, "hello", LIMIT).unwrap();
                    assert_eq!(got, value(other, length));
                }
                assert_eq!(launcher.get(0, "empty", LIMIT).unwrap(), b"");
                let absent = launcher.get(1, "nothing", LIMIT).unwrap_err();
                assert_eq!((absent.code(), absent.exit().number()), ("launch.absent", 4));
                // That was an answer like another one: the launcher is still usable.
                launcher.fence(LIMIT).unwrap();
                launcher.finalize(LIMIT).unwrap();
                let after = launcher.fence(LIMIT).unwrap_err();
                assert_eq!(after.code(), "launch.state");
            });
        }
    });
    for server in servers {
        let seen = server.join().unwrap();
        assert!(seen.finalized && seen.aborted.is_none());
        assert!(seen.longest < 1200, "{}", seen.longest);
    }
}

#[test]
fn ranks_exchange_values_over_pmi_1() {
    job::<Pmi1>(Speaks::One, 4, 1024, 3000);
    // A launcher whose values are short: many pieces.
    job::<Pmi1>(Speaks::One, 2, 32, 700);
}

#[test]
fn ranks_exchange_values_over_pmi_2() {
    job::<Pmi2>(Speaks::Two, 4, 1024, 3000);
}

#[test]
fn an_abort_is_received_and_nothing_follows_it() {
    fn abort<D: Dialect>(speaks: Speaks, heard: &str) {
        let (mut sockets, mut servers) = serve(speaks, 1, 1024);
        let mut launcher = open::<D>(sockets.remove(0), 0, 1).unwrap();
        launcher.abort(7, "rank 0 aborts: no\u{7}\u{e9}", LIMIT).unwrap();
        assert_eq!(launcher.put("k", b"v", LIMIT).unwrap_err().code(), "launch.state");
        assert_eq!(launcher.finalize(LIMIT).unwrap_err().code(), "launch.state");
        drop(launcher);
        assert_eq!(servers.remove(0).join().unwrap().aborted.as_deref(), Some(heard));
    }
    abort::<Pmi1>(Speaks::One, "7");
    abort::<Pmi2>(Speaks::Two, "rank 0 aborts: no  ");
}

#[test]
fn an_end_without_finalize_is_seen_by_the_server() {
    let (mut sockets, mut servers) = serve(Speaks::One, 1, 1024);
    drop(open::<Pmi1>(sockets.remove(0), 0, 1).unwrap());
    let seen = servers.remove(0).join().unwrap();
    assert!(!seen.finalized && seen.aborted.is_none());
}

#[test]
fn the_other_version_is_refused_by_either_side() {
    let (mut sockets, servers) = serve(Speaks::One, 1, 1024);
    let error = open::<Pmi2>(sockets.remove(0), 0, 1).unwrap_err();
    assert_eq!(error.code(), "launch.refused", "{error}");
    servers
        .into_iter()
        .for_each(|server| drop(server.join().unwrap()));
}

#[test]
fn what_no_launcher_takes_is_not_sent() {
    let (mut sockets, servers) = serve(Speaks::One, 1, 1024);
    let mut launcher = open::<Pmi1>(sockets.remove(0), 0, 1).unwrap();
    for key in ["", "a b", "a=b", "a\nb", "\u{e4}"] {
        assert_eq!(
            launcher.put(key, b"v", LIMIT).unwrap_err().code(),
            "launch.value",
            "{key:?}"
        );
        assert_eq!(
            launcher.get(0, key, LIMIT).unwrap_err().code(),
            "launch.value",
            "{key:?}"
        );
    }
    let long = launcher.put(&"k".repeat(80), b"v", LIMIT).unwrap_err();
    assert!(long.to_string().contains("a key of"), "{long}");
    let much = launcher.put("k", &vec![0; (1 << 20) + 1], LIMIT).unwrap_err();
    assert!(much.to_string().contains("a value of 1048577 bytes"), "{much}");
    // None of this was sent to it.
    launcher.put("k", b"v", LIMIT).unwrap();
    launcher.fence(LIMIT).unwrap();
    assert_eq!(launcher.get(0, "k", LIMIT).unwrap(), b"v");
    // The server holds that each key is given once.
    let twice = launcher.put("k", b"w", LIMIT).unwrap_err();
    assert_eq!((twice.code(), twice.exit().number()), ("launch.refused", 4));
    drop(launcher);
    servers
        .into_iter()
        .for_each(|server| drop(server.join().unwrap()));
}

const OPENING_1: [&[u8]; 3] = [
    b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
    b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
    b"cmd=my_kvsname kvsname=k\n",
];
const OPENING_2: [&[u8]; 3] = [
    b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n",
    b"    41cmd=fullinit-response;rc=0;rank=0;size=2;",
    b"    36cmd=job-getid-response;rc=0;jobid=k;",
];

fn sentence(error: &LaunchError) -> String {
    let text = error.to_string();
    assert!(
        text.len() < 400 && text.chars().all(|c| !c.is_control()),
        "{text:?}"
    );
    text
}

/// Opens a launcher handle, requests a value, and receives `answer`; returns the error, after which the
/// handle is unusable.
fn fault<D: Dialect>(opening: [&[u8]; 3], answer: &[&[u8]], closes: bool, limit: Duration) -> LaunchError {
    let answers = [&opening[..], answer].concat();
    let (socket, server) = script(&answers, closes);
    let mut launcher = open::<D>(socket, 0, 2).unwrap();
    let begun = Instant::now();
    let error = launcher.get(1, "hello", limit).unwrap_err();
    assert!(begun.elapsed() < limit + Duration::from_secs(30));
    let after = launcher.fence(SHORT).unwrap_err();
    assert!(
        matches!(error, LaunchError::Damaged { .. }) || after.code() == "launch.state",
        "{after}"
    );
    drop(launcher);
    server.join().unwrap();
    error
}

#[test]
fn servers_that_misbehave_end_in_a_sentence() {
    let one = |answer: &[u8]| fault::<Pmi1>(OPENING_1, &[answer], false, LIMIT);
    let two = |answer: &[u8]| fault::<Pmi2>(OPENING_2, &[answer], false, LIMIT);
    let garbage: Vec<u8> = (0..20_000u32).map(|at| ((at * 131) >> 3) as u8 | 0x80).collect();
    for (error, code, word) in [
        (one(b"HTTP/1.1 400 Bad Request\n"), "launch.garbled", "not a word"),
        (one(&garbage), "launch.garbled", "it has more than"),
        (one(b"cmd=finalize_ack\n"), "launch.garbled", "instead of"),
        (two(b"999999cmd=kvs-get-response;"), "launch.garbled", "announces"),
        (two(&garbage), "launch.garbled", "not the length"),
        (
            two(b"     3cmd=kvs-get-response;rc=0;"),
            "launch.garbled",
            "further data follows",
        ),
        (
            one(b"cmd=get_result rc=0 value=ffffffff\n"),
            "launch.damaged",
            "exceeds the limit",
        ),
        (one(b"cmd=get_result rc=0 value=\n"), "launch.damaged", "empty"),
        (
            one(b"cmd=get_result rc=0 value=00000001abab\n"),
            "launch.damaged",
            "longer than its length",
        ),
        (
            two(b"    52cmd=kvs-get-response;rc=0;found=TRUE;value=nonsense;"),
            "launch.damaged",
            "not a number",
        ),
    ] {
        let text = sentence(&error);
        assert_eq!(error.code(), code, "{text}");
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_value_whose_rest_is_missing_is_absent() {
    let pieces: [&[u8]; 2] = [
        b"cmd=get_result rc=0 value=00000004ab\n",
        b"cmd=get_result rc=-1 msg=not_found\n",
    ];
    let (socket, server) = script(&[&OPENING_1[..], &pieces].concat(), false);
    let mut launcher = open::<Pmi1>(socket, 0, 2).unwrap();
    assert_eq!(
        launcher.get(1, "hello", LIMIT).unwrap_err().code(),
        "launch.absent"
    );
    drop(launcher);
    server.join().unwrap();
}

#[test]
fn a_server_that_closes_is_distinguished_from_one_that_is_silent() {
    let closed = fault::<Pmi1>(OPENING_1, &[], true, LIMIT);
    assert_eq!((closed.code(), closed.exit().number()), ("launch.closed", 4));
    assert!(sentence(&closed).contains("closed its descriptor"), "{closed}");
    let half = fault::<Pmi2>(OPENING_2, &[b"    46cmd=kvs-get"], true, LIMIT);
    assert_eq!(half.code(), "launch.closed");
    for silent in [
        fault::<Pmi1>(OPENING_1, &[], false, SHORT),
        fault::<Pmi1>(OPENING_1, &[b"cmd=get_res"], false, SHORT),
        fault::<Pmi2>(OPENING_2, &[b"    "], false, SHORT),
    ] {
        assert_eq!((silent.code(), silent.exit().number()), ("launch.late", 5));
        let text = sentence(&silent);
        assert!(text.contains("`get`") && text.contains("0.1 s"), "{text}");
    }
}

#[test]
fn a_beginning_that_fails_names_the_step() {
    for (answers, closes, limit, code, word) in [
        (&[][..], false, SHORT, "launch.late", "`init`"),
        (&[][..], true, LIMIT, "launch.closed", "`init`"),
        (&OPENING_1[..1], false, SHORT, "launch.late", "`get_maxes`"),
        (&OPENING_1[..2], true, LIMIT, "launch.closed", "`job name`"),
    ] {
        let (socket, server) = script(answers, closes);
        let error = Wire::<Pmi1>::over(socket, place(0, 2), limit).unwrap_err();
        let text = sentence(&error);
        assert_eq!(error.code(), code, "{text}");
        assert!(text.contains(word), "{text}");
        server.join().unwrap();
    }
}

#[test]
fn a_server_that_does_not_read_is_not_waited_for() {
    use std::io::Write;
    let (client, server) = UnixStream::pair().unwrap();
    // Full before the first word.
    let mut filler = client.try_clone().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.write(&[0; 4096]).is_ok() {}
    let late = Wire::<Pmi1>::over(client.into(), place(0, 2), SHORT).unwrap_err();
    assert_eq!(late.code(), "launch.late", "{late}");
    assert!(late.to_string().contains("`init`"), "{late}");
    drop((filler, server));
}

#[test]
fn a_descriptor_that_is_closed_before_the_first_word_is_reported() {
    let (client, server) = UnixStream::pair().unwrap();
    drop(server);
    let error = open::<Pmi2>(client.into(), 0, 1).unwrap_err();
    assert_eq!(error.code(), "launch.closed", "{error}");
}
