use proptest::prelude::*;

use super::*;
use crate::launch::{Answer, Pmi1, Request, Session};

const JOB: &str = "job-7";

/// Two hosts with two ranks each, in the places that their launcher assigned.
struct Hosts {
    servers: Vec<Server>,
    clients: Vec<Session<Pmi1>>,
    answers: Vec<Vec<Answer>>,
    fences: Vec<Vec<(u32, Vec<u8>)>>,
}

impl Hosts {
    fn new() -> Self {
        let blocks = [(0, 2, 2)];
        let servers = [[0, 1], [2, 3]].map(|ranks| Server::new(JOB, 4, ranks, &blocks));
        Self {
            servers: servers.into(),
            clients: (0..4).map(|rank| Session::new(rank, 4, "")).collect(),
            answers: vec![Vec::new(); 4],
            fences: vec![Vec::new(); 2],
        }
    }

    fn ask(&mut self, rank: usize, request: Request) {
        let bytes = self.clients[rank].request(request).unwrap();
        // As a socket may split them.
        for piece in bytes.chunks(7) {
            self.servers[rank / 2].received(rank as u32, piece);
        }
        self.settle();
    }

    fn settle(&mut self) {
        for (host, server) in self.servers.iter_mut().enumerate() {
            while let Some(output) = server.take() {
                match output {
                    Output::Send(rank, bytes) => {
                        let answer = self.clients[rank as usize].take(&bytes).unwrap();
                        self.answers[rank as usize].extend(answer);
                    }
                    Output::Fence(number, words) => self.fences[host].push((number, words)),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn open(&mut self) {
        for rank in 0..4 {
            while let Some(step) = self.clients[rank].next_of_opening() {
                self.ask(rank, step.clone());
            }
        }
        self.answers.iter_mut().for_each(Vec::clear);
    }

    /// All hosts have come to the same barrier.
    fn meet(&mut self) {
        let words: Vec<_> = self
            .fences
            .iter_mut()
            .map(|fences| fences.pop().unwrap())
            .collect();
        let number = words[0].0;
        assert!(words.iter().all(|(other, _)| *other == number));
        for server in &mut self.servers {
            server
                .fenced(number, words.iter().map(|(_, words)| &words[..]))
                .unwrap();
        }
        self.settle();
    }
}

fn put(key: &str, value: &str) -> Request {
    Request::Put {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn get(key: &str) -> Request {
    Request::Get { key: key.to_owned() }
}

/// What a server sends to one rank that sends `lines`.
fn said(lines: &str) -> Vec<Output> {
    let mut server = Server::new(JOB, 4, [0, 1], &[(0, 2, 2)]);
    server.received(0, lines.as_bytes());
    std::iter::from_fn(|| server.take()).collect()
}

/// The same as text, where all of it is answers.
fn lines(asked: &str) -> String {
    let line = |output| match output {
        Output::Send(0, bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{other:?}"),
    };
    said(asked).into_iter().map(line).collect()
}

#[test]
fn values_are_visible_to_all_after_the_barrier() {
    let mut hosts = Hosts::new();
    hosts.open();
    assert_eq!(hosts.clients[3].terms().job, JOB);
    for round in 0..3 {
        for rank in 0..4 {
            hosts.ask(
                rank,
                put(&format!("key-{round}-{rank}"), &format!("value={rank}")),
            );
        }
        for rank in 0..4 {
            assert!(hosts.fences.iter().any(Vec::is_empty), "all are not there yet");
            hosts.ask(rank, Request::Fence);
        }
        assert!(
            hosts.answers.iter().all(|answers| answers == &[Answer::Done]),
            "the puts"
        );
        hosts.meet();
        for rank in 0..4 {
            for other in 0..4 {
                hosts.ask(rank, get(&format!("key-{round}-{other}")));
            }
            hosts.ask(rank, get("nobody's"));
            let answers: Vec<Answer> = hosts.answers[rank].drain(..).collect();
            let values = (0..4).map(|other| Answer::Value(format!("value={other}")));
            let expected = [Answer::Done, Answer::Done].into_iter().chain(values);
            assert_eq!(answers, expected.chain([Answer::Absent]).collect::<Vec<_>>());
        }
    }
    for rank in 0..4 {
        assert!(!hosts.servers[rank / 2].took_leave(rank as u32));
        hosts.ask(rank, Request::Finalize);
        assert!(hosts.servers[rank / 2].left(rank as u32));
        assert!(hosts.servers[rank / 2].took_leave(rank as u32));
    }
}

impl Hosts {
    /// A rank's next program begins.
    fn begin(&mut self, rank: usize) {
        self.clients[rank] = Session::new(rank as u32, 4, "");
        while let Some(step) = self.clients[rank].next_of_opening() {
            self.ask(rank, step.clone());
        }
        self.answers[rank].clear();
    }

    fn value(&mut self, rank: usize, key: &str) -> Option<Answer> {
        self.answers[rank].clear();
        self.ask(rank, get(key));
        self.answers[rank].pop()
    }
}

/// Ranks that are scripts: the same keys again, of another program.
#[test]
fn programs_that_follow_each_other_have_values_and_barriers_of_their_own() {
    let mut hosts = Hosts::new();
    for life in 0..3 {
        for rank in 0..4 {
            hosts.begin(rank);
            let name = ["job-7", "job-7.2", "job-7.3"][life];
            assert_eq!(hosts.clients[rank].terms().job, name);
            let mapping = Answer::Value("(vector,(0,2,2))".to_owned());
            assert_eq!(hosts.value(rank, "PMI_process_mapping"), Some(mapping));
            assert_eq!(
                hosts.value(rank, "key-3"),
                Some(Answer::Absent),
                "of the one before"
            );
            hosts.ask(rank, put(&format!("key-{rank}"), &format!("{life}")));
            assert!(hosts.fences.iter().any(Vec::is_empty));
            hosts.ask(rank, Request::Fence);
        }
        hosts.meet();
        let value = Some(Answer::Value(life.to_string()));
        for rank in 0..4 {
            assert_eq!(hosts.value(rank, "key-0"), value);
            assert_eq!(hosts.value(rank, "key-3"), value);
        }
        for rank in 0..4 {
            assert!(!hosts.servers[rank / 2].took_leave(rank as u32));
            hosts.ask(rank, Request::Finalize);
            assert!(hosts.servers[rank / 2].took_leave(rank as u32));
        }
    }
    assert!((0..4).all(|rank| hosts.servers[rank / 2].left(rank as u32)));
}

/// Some are at a barrier of their first program while others are at one of their second.
#[test]
fn a_barrier_of_an_earlier_program_comes_first_and_the_later_one_waits_for_all() {
    let mut hosts = Hosts::new();
    (0..4).for_each(|rank| hosts.begin(rank));
    // Those of the first host take part in no barrier of the first program.
    for rank in 0..2 {
        hosts.ask(rank, Request::Finalize);
        hosts.begin(rank);
        hosts.ask(rank, put(&format!("key-{rank}"), "second"));
        hosts.answers[rank].clear();
        assert!(hosts.fences[0].is_empty(), "the other one is still to come");
        hosts.ask(rank, Request::Fence);
    }
    for rank in 2..4 {
        hosts.ask(rank, put(&format!("key-{rank}"), "first"));
        hosts.ask(rank, Request::Fence);
    }
    hosts.meet();
    assert_eq!(hosts.value(3, "key-2"), Some(Answer::Value("first".to_owned())));
    assert_eq!(hosts.value(3, "key-0"), Some(Answer::Absent));
    assert!(hosts.answers[0].is_empty(), "it is still at its barrier");
    assert_eq!(hosts.fences[0].len(), 1, "which is entered again");
    for rank in 2..4 {
        hosts.ask(rank, Request::Finalize);
        hosts.begin(rank);
        hosts.ask(rank, Request::Fence);
    }
    hosts.meet();
    for rank in 0..4 {
        assert_eq!(
            hosts.value(rank, "key-1"),
            Some(Answer::Value("second".to_owned()))
        );
        assert_eq!(hosts.value(rank, "key-2"), Some(Answer::Absent));
    }
    // One that ends after its first program is not waited for.
    hosts.ask(0, Request::Finalize);
    hosts.ask(1, Request::Finalize);
    hosts.begin(0);
    hosts.ask(0, Request::Fence);
    assert!(hosts.fences[0].is_empty());
    assert!(hosts.servers[0].left(1));
    hosts.settle();
    assert_eq!(hosts.fences[0].len(), 1);
}

#[test]
fn the_lines_are_those_of_mpich() {
    let opening = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_appnum\ncmd=get_my_kvsname\n\
                   cmd=get_universe_size\ncmd=get kvsname=job-7 key=PMI_process_mapping\ncmd=get kvsname=job-7 key=no\n\
                   cmd=put kvsname=job-7 key=k value=v\ncmd=put kvsname=job-7 key=k value=w\n\
                   cmd=put kvsname=else key=l value=w\ncmd=finalize\n";
    assert_eq!(
        lines(opening),
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
         cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=801\n\
         cmd=appnum appnum=0\n\
         cmd=my_kvsname kvsname=job-7\n\
         cmd=universe_size size=4\n\
         cmd=get_result rc=0 msg=success value=(vector,(0,2,2))\n\
         cmd=get_result rc=-1 msg=key_not_found value=unknown\n\
         cmd=put_result rc=0 msg=success\n\
         cmd=put_result rc=-1 msg=duplicate_key\n\
         cmd=put_result rc=-1 msg=no_such_kvsname\n\
         cmd=finalize_ack\n"
    );
}

#[test]
fn a_spawn_request_is_read_as_our_client_sends_it() {
    let program = Program {
        name: "/bin/a b".to_owned(),
        args: vec!["x y=z".to_owned(), String::new(), "endcm".to_owned()],
        ranks: 3,
        values: vec![
            ("k".to_owned(), "v".to_owned()),
            ("db-token".to_owned(), "t7".to_owned()),
        ],
        infos: vec![("host".to_owned(), "node2".to_owned())],
    };
    let mut hosts = Hosts::new();
    hosts.open();
    let bytes = hosts.clients[0]
        .request(Request::Spawn(Box::new(program.clone())))
        .unwrap();
    assert_eq!(
        String::from_utf8(bytes.clone()).unwrap(),
        "mcmd=spawn\nnprocs=3\nexecname=/bin/a b\ntotspawns=1\nspawnssofar=1\narg1=x y=z\narg2=\narg3=endcm\n\
         argcnt=3\npreput_num=2\npreput_key_0=k\npreput_val_0=v\npreput_key_1=db-token\npreput_val_1=t7\n\
         info_num=1\ninfo_key_0=host\ninfo_val_0=node2\nendcmd\n"
    );
    let server = &mut hosts.servers[0];
    for piece in bytes.chunks(5) {
        server.received(0, piece);
    }
    assert_eq!(server.take(), Some(Output::Spawn(0, Box::new(program.clone()))));
    assert_eq!(token_of(&program), Some("t7"));
    // Its next request is not read before it has its answer.
    server.received(0, b"cmd=get_appnum\n");
    assert_eq!(server.take(), None);
    server.spawned(0, Ok(()));
    assert_eq!(
        server.take(),
        Some(Output::Send(0, b"cmd=spawn_result rc=0\n".to_vec()))
    );
    assert_eq!(
        server.take(),
        Some(Output::Send(0, b"cmd=appnum appnum=0\n".to_vec()))
    );
    // An answer that no rank waits for is ignored.
    server.spawned(0, Ok(()));
    server.spawned(9, Err("no such rank"));
    assert_eq!(server.take(), None);
}

#[test]
fn what_has_become_of_an_order_can_be_looked_up() {
    let mut server = Server::new(JOB, 1, [0], &[(0, 1, 1)]);
    let mut client: Session<Pmi1> = Session::new(0, 1, "");
    let mut ask = |server: &mut Server, request: Request| {
        let bytes = client.request(request).unwrap();
        server.received(0, &bytes);
        let mut outputs = Vec::new();
        while let Some(output) = server.take() {
            match output {
                Output::Send(0, bytes) => return (client.take(&bytes).unwrap(), outputs),
                Output::Spawn(0, _) => server.spawned(0, Err("no room for 3")),
                other => outputs.push(other),
            }
        }
        panic!("no answer");
    };
    for step in <Pmi1 as crate::launch::Dialect>::OPENING {
        ask(&mut server, step.clone());
    }
    let program = Program {
        name: "a".to_owned(),
        ranks: 1,
        ..Program::default()
    };
    let (answer, _) = ask(&mut server, Request::Spawn(Box::new(program)));
    assert_eq!(answer, Some(Answer::Unspawned("no_room_for_3".to_owned())));
    let fate = || get("db-spawn-t7-0-0");
    assert_eq!(ask(&mut server, fate()).0, Some(Answer::Absent));
    server.failed("no token", "whatever");
    server.failed("t7", &format!("rank 3 ended {}", "ä".repeat(1000)));
    match ask(&mut server, fate()).0 {
        Some(Answer::Value(text)) => assert!(text.len() <= LONGEST_VALUE && text.ends_with("c3a4"), "{text}"),
        other => panic!("{other:?}"),
    }
    let (answer, outputs) = ask(&mut server, put("db-abandon-t7", "1"));
    assert_eq!(
        (answer, outputs),
        (Some(Answer::Done), vec![Output::Abandon("t7".to_owned())])
    );
    assert!(!server.took_leave(0) && !server.took_leave(9));
    server.preput(&[("k".to_owned(), "v".to_owned())]).unwrap();
    assert_eq!(ask(&mut server, get("k")).0, Some(Answer::Value("v".to_owned())));
    let refused = server
        .preput(&[("k".to_owned(), "two words".to_owned())])
        .unwrap_err();
    assert!(refused.contains("`k`"), "{refused}");
}

#[test]
fn orders_that_make_no_sense_end_the_conversation() {
    let order = |lines: &str| {
        let asked = format!("cmd=init pmi_version=1 pmi_subversion=1\nmcmd=spawn\n{lines}endcmd\n");
        match said(&asked).pop() {
            Some(Output::Wrong(0, why)) => why,
            other => panic!("{lines}: {other:?}"),
        }
    };
    let good = "nprocs=1\nexecname=a\ntotspawns=1\n";
    for (lines, why) in [
        ("", "lacks `totspawns`"),
        ("totspawns=1\n", "lacks `nprocs`"),
        ("totspawns=1\nnprocs=1\n", "lacks `execname`"),
        (
            "totspawns=99999999999999\n",
            "`totspawns` of its `spawn` is `99999999999999`",
        ),
        ("totspawns=0\n", "`totspawns` of its"),
        ("nprocs=-1\ntotspawns=1\n", "`nprocs` of its"),
        (&format!("{good}argcnt=2\narg1=x\n"), "lacks `arg2`"),
        (&format!("{good}argcnt=1025\n"), "`argcnt` of its"),
        (
            &format!("{good}preput_num=1\npreput_key_0=k\n"),
            "lacks `preput_val_0`",
        ),
        (&format!("{good}info_num=4000000000\n"), "`info_num` of its"),
        (&format!("{good}nprocs=1\n"), "`nprocs` occurs twice"),
        (&format!("{good}mcmd=spawn\nmcmd=spawn\n"), "`mcmd` occurs twice"),
        ("=3\n", "`=3` in its `spawn` is not a word"),
        ("nprocs\n", "`nprocs` in its `spawn` is not a word"),
    ] {
        let told = order(lines);
        assert!(told.contains(why), "{lines}: {told}");
    }
    let mut server = Server::new(JOB, 1, [0], &[(0, 1, 1)]);
    server.received(0, b"cmd=init pmi_version=1 pmi_subversion=1\nmcmd=spawn\n");
    let _ = server.take();
    let endless = (0..1000).any(|at| {
        server.received(0, format!("arg{at}={}\n", "x".repeat(1000)).as_bytes());
        matches!(server.take(), Some(Output::Wrong(0, why)) if why.contains("more than"))
    });
    assert!(endless, "an order without an end is kept");
}

#[test]
fn what_is_not_offered_is_refused_so_that_clients_go_on() {
    let asked = "cmd=init pmi_version=1 pmi_subversion=1\n\
                 mcmd=spawn\nnprocs=1\nexecname=./a\ntotspawns=2\nspawnssofar=1\nendcmd\n\
                 mcmd=spawn\nnprocs=99999999\nexecname=./a\ntotspawns=1\nendcmd\ncmd=lookup_name service=s\n";
    let answers = lines(asked);
    let refused: Vec<&str> = answers.lines().skip(1).collect();
    assert_eq!(
        refused,
        [
            "cmd=spawn_result rc=-1 msg=one_program_only",
            "cmd=spawn_result rc=-1 msg=from_1_to_65536_processes",
            "cmd=lookup_result rc=-1 msg=not_supported"
        ]
    );
    assert_eq!(
        lines("cmd=init pmi_version=2 pmi_subversion=0\n"),
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n"
    );
}

#[test]
fn what_is_no_pmi_ends_the_conversation_with_the_reason() {
    let opened = "cmd=init pmi_version=1 pmi_subversion=1\n";
    for (wrong, why) in [
        ("hello\n".to_owned(), "is not a word"),
        ("cmd=put kvsname=job-7\n".to_owned(), "before `init`"),
        (format!("{opened}cmd=put kvsname=job-7\n"), "lacks `key`"),
        (format!("{opened}cmd=dance\n"), "not a request of PMI-1"),
        (format!("{opened}{opened}"), "ended without `finalize`"),
        (
            format!("{opened}cmd=finalize\ncmd=barrier_in\n"),
            "after `finalize`",
        ),
        (format!("{opened}\u{7}\n"), "printable"),
        ("x".repeat(5000), "more than 4096 bytes"),
        (
            format!("{opened}cmd=barrier_in\n{}", "cmd=get_maxes\n".repeat(5000)),
            "without waiting for answers",
        ),
    ] {
        let last = said(&wrong).pop();
        assert!(
            matches!(&last, Some(Output::Wrong(0, reason)) if reason.contains(why)),
            "{last:?} for {why}"
        );
    }
}

#[test]
fn an_abort_carries_its_status_and_reason_at_any_time() {
    let abort = |text: &str| said(text).pop();
    let told = |code, text: &str| {
        Some(Output::Abort {
            rank: 0,
            code,
            text: text.to_owned(),
        })
    };
    assert_eq!(abort("cmd=abort exitcode=3\n"), told(3, ""));
    assert_eq!(
        abort("cmd=init pmi_version=1 pmi_subversion=1\ncmd=abort exitcode=0\n"),
        told(1, "")
    );
    assert_eq!(abort("cmd=abort exitcode=-1 message=gone\n"), told(255, "gone"));
    assert_eq!(abort("cmd=abort\n"), told(1, ""));
}

#[test]
fn a_barrier_waits_for_ranks_that_live_and_not_for_those_that_finalized() {
    let mut server = Server::new(JOB, 3, [0, 1, 2], &[(0, 1, 3)]);
    for rank in 0..3 {
        server.received(rank, b"cmd=init pmi_version=1 pmi_subversion=1\n");
    }
    server.received(0, b"cmd=barrier_in\n");
    server.received(1, b"cmd=finalize\n");
    let outputs: Vec<Output> = std::iter::from_fn(|| server.take()).collect();
    assert!(!outputs.iter().any(|output| matches!(output, Output::Fence(..))));
    // It dies: the barrier does not end for it.
    assert!(!server.left(2));
    assert_eq!(server.take(), None);
    assert!(server.fenced(0, []).is_err(), "not all are there");

    let mut server = Server::new(JOB, 2, [0, 1], &[(0, 1, 2)]);
    server.received(
        0,
        b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\ncmd=get_maxes\n",
    );
    // No client of PMI at all.
    assert!(server.left(1));
    let outputs: Vec<Output> = std::iter::from_fn(|| server.take()).collect();
    assert_eq!(outputs.last(), Some(&Output::Fence(0, vec![0; 4])));
    assert!(server.fenced(1, []).is_err(), "another barrier");
    server.fenced(0, []).unwrap();
    // A request sent after the barrier is answered after it.
    let outputs: Vec<Output> = std::iter::from_fn(|| server.take()).collect();
    assert!(
        matches!(&outputs[..], [Output::Send(0, out), Output::Send(0, maxes)]
        if out.starts_with(b"cmd=barrier_out") && maxes.starts_with(b"cmd=maxes"))
    );
}

#[test]
fn values_of_other_hosts_are_looked_at() {
    let server = || {
        let mut server = Server::new(JOB, 2, [0], &[(0, 2, 1)]);
        server.received(
            0,
            b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=put kvsname=job-7 key=a value=b\ncmd=barrier_in\n",
        );
        server
    };
    for wrong in [
        &b"\x01"[..],
        b"\x01\x01\x00a",
        b"\x01\x01\x00a\xff",
        b"\x00\x01\x00b",
        b"\x01\x01\x00ac",
    ] {
        let of_first = [&[0; 4], wrong].concat();
        assert!(server().fenced(0, [&of_first[..]]).is_err(), "{wrong:?}");
        assert!(server().fenced(0, [&[0, 0, 0][..]]).is_err(), "of no life");
    }
    // Our own words come back with the others'.
    assert_eq!(
        server().fenced(
            0,
            [&b"\0\0\0\0\x01\x01\x00ab"[..], b"", b"\0\0\0\0\x01\x01\x00cd"]
        ),
        Ok(())
    );
}

#[test]
fn the_store_is_bounded() {
    let mut store = Store::default();
    let value = "v".repeat(LONGEST_VALUE);
    let refused = (0..).find_map(|number| store.put(&format!("key-{number:016}"), &value).err());
    assert_eq!(refused, Some(Refused::Full));
    assert_eq!(store.put(&"k".repeat(LONGEST_KEY + 1), "v"), Err(Refused::Key));
    assert_eq!(
        store.put("k", &"v".repeat(LONGEST_VALUE + 1)),
        Err(Refused::Value)
    );
    assert_eq!(store.put("k=", "v"), Err(Refused::Key));
    assert_eq!(store.put("k", "two words"), Err(Refused::Value));
}

/// A script that runs programs for ever beside a rank that stays in its first one.
#[test]
fn a_rank_that_runs_ahead_keeps_few_stores_and_is_refused_at_last() {
    const INIT: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";
    const FINALIZE: &[u8] = b"cmd=finalize\n";
    let mut server = Server::new(JOB, 2, [0, 1], &[(0, 1, 2)]);
    let said = |server: &mut Server, rank: u32, line: &[u8]| {
        server.received(rank, line);
        let all: Vec<Output> = std::iter::from_fn(|| server.take()).collect();
        match &all[..] {
            [Output::Send(to, bytes)] if *to == rank => String::from_utf8(bytes.clone()).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    said(&mut server, 1, INIT);
    for life in 0..=AHEAD {
        assert!(said(&mut server, 0, INIT).contains("rc=0"), "{life}");
        said(&mut server, 0, FINALIZE);
    }
    assert_eq!(server.stores.len(), 1, "nothing was put");
    for _ in 0..3 {
        let refused = said(&mut server, 0, INIT);
        assert!(refused.contains("rc=-1 msg=too_many_programs"), "{refused}");
    }
    // Once the other one has gone on, there is room again.
    said(&mut server, 1, FINALIZE);
    said(&mut server, 1, INIT);
    assert!(said(&mut server, 0, INIT).contains("rc=0"));
    let key = format!("cmd=put kvsname={JOB}.{} key=a value=1\n", AHEAD + 2);
    assert!(said(&mut server, 0, key.as_bytes()).contains("rc=0"));
    assert_eq!(server.stores.len(), 1, "no rank of the first life is left");
    said(&mut server, 0, FINALIZE);
    assert!(server.left(0) && server.took_leave(0));
}

proptest! {
    #[test]
    fn no_bytes_bring_it_down(pieces: Vec<Vec<u8>>) {
        let mut server = Server::new(JOB, 2, [0, 1], &[(0, 1, 2)]);
        for piece in pieces {
            server.received(0, &piece);
            while server.take().is_some() {}
        }
    }

    #[test]
    fn no_questions_in_any_order_bring_it_down(asked in proptest::collection::vec((0u32..3, 0usize..15), 0..60)) {
        const QUESTIONS: [&str; 15] = [
            "nprocs=1", "execname=a\ntotspawns=1", "cmd=put kvsname=job-7 key=db-abandon-t value=1",
            "cmd=init pmi_version=1 pmi_subversion=1", "cmd=get_maxes", "cmd=get_my_kvsname", "cmd=barrier_in",
            "cmd=put kvsname=job-7 key=a value=1", "cmd=put kvsname=job-7 key=b value=2", "cmd=get kvsname=job-7 key=a",
            "cmd=finalize", "mcmd=spawn", "endcmd", "cmd=abort exitcode=2", "cmd=publish_name service=a port=b",
        ];
        let mut server = Server::new(JOB, 2, [0, 1], &[(0, 1, 2)]);
        let (mut fence, mut wrong) = (None, [false; 3]);
        for (rank, question) in asked {
            server.received(rank, QUESTIONS[question].as_bytes());
            server.received(rank, b"\n");
            while let Some(output) = server.take() {
                match output {
                    Output::Fence(number, words) => fence = Some((number, words)),
                    Output::Wrong(rank, _) => {
                        prop_assert!(!wrong[rank as usize], "told once");
                        wrong[rank as usize] = true;
                    }
                    Output::Send(rank, bytes) => {
                        prop_assert!(!wrong[rank as usize] && rank < 2);
                        prop_assert!(bytes.ends_with(b"\n") && bytes.len() < 1024);
                    }
                    Output::Abort { code, .. } => prop_assert_eq!(code, 2),
                    Output::Spawn(rank, _) => server.spawned(rank, Ok(())),
                    Output::Abandon(token) => prop_assert_eq!(token, "t"),
                }
            }
            if let Some((number, words)) = fence.take() {
                prop_assert_eq!(server.fenced(number, [&words[..]]), Ok(()));
            }
        }
    }
}
