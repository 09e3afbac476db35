//! Two old ranks and some new ones meet in one process: rank 0's side in one thread, each new one in its own.

use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_oob::launch::{Kind, LaunchError, Launcher, Place};
use doorbell_oob::{Connection, JobKey, Terms};

use super::spawn_child::{Invitation, Invited, parse_word, send, terms};
use super::spawn_parent::Host;
use super::tcp::{Word, within_network};
use super::{Key, Meeting, RankInfo, host_id};
use crate::error::Error;

const AMPLE: Duration = Duration::from_secs(60);
const OLD: u32 = 2;

/// A launcher that delivers an invitation.
#[derive(Debug)]
struct Herald(Place, Vec<u8>);

impl Herald {
    fn of(invitation: &Invitation, at: u32) -> Self {
        let place = Place {
            rank: at,
            size: invitation.ranks,
            local_rank: None,
            local_size: None,
            job: String::new(),
        };
        Self(place, invitation.write().unwrap())
    }
}

impl Launcher for Herald {
    fn kind(&self) -> Kind {
        Kind::Pmi1
    }

    fn place(&self) -> &Place {
        &self.0
    }

    fn put(&mut self, _: &str, _: &[u8], _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }

    fn fence(&mut self, _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }

    fn get(&mut self, rank: u32, key: &str, _: Duration) -> Result<Vec<u8>, LaunchError> {
        Err(LaunchError::Absent {
            kind: Kind::Pmi1,
            rank,
            key: key.to_owned(),
        })
    }

    fn invitation(&mut self, _: Duration) -> Result<Option<Vec<u8>>, LaunchError> {
        Ok(Some(self.1.clone()))
    }

    fn abort(&mut self, _: u8, _: &str, _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }

    fn finalize(&mut self, _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }
}

fn hello(rank: u32, size: u32) -> RankInfo {
    let mut hello = RankInfo::of_this_process(rank, size, Default::default(), Vec::new()).unwrap();
    hello.host = within_network(host_id());
    hello
}

fn open(ranks: u32, limit: Duration) -> Host {
    let until = (Instant::now() + limit, limit);
    Host::open(&hello(0, OLD + ranks), OLD, false, until).unwrap()
}

/// Runs a new rank; returns its result.
fn join(invitation: &Invitation, at: u32, fails: Option<Error>) -> Result<Meeting, Error> {
    let invited = Invited::through(&mut Herald::of(invitation, at), AMPLE)?.unwrap();
    assert_eq!((invited.rank(), invited.before()), (OLD + at, OLD));
    let prepared = match fails {
        Some(error) => Err(error),
        None => Ok(((), hello(invited.rank(), invited.size()))),
    };
    let ((), meeting, seat) = invited.meet(prepared)?;
    seat.start().map(|()| meeting)
}

/// Runs all of rank 0's part.
fn receive(mut host: Host, ranks: u32) -> Result<Meeting, Error> {
    let size = OLD + ranks;
    let met = (|| {
        let new = host.gather(&hello(0, size), &mut || Ok(()))?;
        let ranks = (0..OLD).map(|rank| hello(rank, size)).chain(new).collect();
        let key = Key::of_seed(7);
        let meeting = Meeting { key, ranks };
        host.seat(&meeting)?;
        host.ready(&mut || Ok(()))?;
        Ok(meeting)
    })();
    match &met {
        Ok(_) => host.start(),
        Err(error) => host.refuse(Error::exit(error), &error.to_string()),
    }
    met
}

/// Makes the hello of a new rank.
fn word_of(rank: u32, size: u32) -> Word {
    Word::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        key: None,
        hello: Box::new(hello(rank, size)),
    }
}

/// Connects with the key, for a client that sends arbitrary messages.
fn connected(invitation: &Invitation) -> Connection {
    let terms = terms(&invitation.key, OLD + invitation.ranks).unwrap();
    Connection::connect(&invitation.addresses[0].into(), &terms, AMPLE).unwrap()
}

#[test]
fn new_ranks_and_rank_0_come_to_the_same_table_whoever_else_calls() {
    let host = open(3, AMPLE);
    let invitation = host.invitation();
    let met: Vec<Meeting> = thread::scope(|s| {
        // One client has another key, and one sends nothing.
        let stranger = Terms::new(Some(JobKey::from_bytes([9; 32])), 2, 1);
        let address = invitation.addresses[0];
        s.spawn(move || Connection::connect(&address.into(), &stranger, AMPLE).unwrap_err());
        let silent = std::net::TcpStream::connect(address).unwrap();
        let zero = s.spawn(|| receive(host, 3));
        let new = (0..3).map(|at| {
            s.spawn({
                let one = &invitation;
                move || join(one, at, None)
            })
        });
        let new: Vec<_> = new.collect();
        let all = std::iter::once(zero).chain(new);
        let all = all.map(|one| one.join().unwrap().unwrap()).collect();
        drop(silent);
        all
    });
    assert!(met.iter().all(|one| *one == met[0] && one.ranks.len() == 5));
}

#[test]
fn one_that_cannot_take_part_is_the_end_for_all() {
    let host = open(2, AMPLE);
    let invitation = host.invitation();
    thread::scope(|s| {
        let zero = s.spawn(|| receive(host, 2));
        // It has joined, and waits for the other one.
        let mut good = connected(&invitation);
        send(&mut good, &word_of(2, 4), AMPLE).unwrap();
        let bad = Error::NoRail {
            peer: 0,
            reasons: "nothing\u{7} here".to_owned(),
        };
        let bad = join(&invitation, 1, Some(bad)).unwrap_err();
        assert_eq!(bad.code(), "rail.none");
        let Word::Refusal { reason: good, .. } = parse_word(&good.receive(AMPLE).unwrap()).unwrap() else {
            panic!("no refusal");
        };
        let zero = zero.join().unwrap().unwrap_err();
        assert_eq!(zero.exit(), Exit::Rail);
        for text in [good, zero.to_string()] {
            assert!(
                text.contains("a new rank cannot take part: no rail reaches rank 0: nothing"),
                "{text}"
            );
        }
    });
}

#[test]
fn hostile_words_are_the_end_of_the_meeting_and_said_to_all() {
    let keyed = Word::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        key: Some(Key::of_seed(1)),
        hello: Box::new(hello(2, 3)),
    };
    let table = Word::Table(Box::new(Meeting {
        key: Key::of_seed(1),
        ranks: Vec::new(),
    }));
    let other = br#"{"hello": {"version": "99.0\u001b", "key": null, "hello": {}}}"#.to_vec();
    let of = |word: &Word| serde_json::to_vec(word).unwrap();
    for (text, wanted) in [
        (b"\xff\x00".to_vec(), "does not parse"),
        (Vec::new(), "does not parse"),
        (b"{\"hello\": 3}".to_vec(), "does not parse"),
        (other, "are of doorbell 99.0  and"),
        (of(&word_of(1, 3)), "claims to be rank 1, which is taken already"),
        (of(&word_of(3, 3)), "rank 3 is not in a job of 3"),
        (of(&word_of(2, 9)), "DOORBELL_SIZE is 9 at rank 2"),
        (of(&keyed), "out of turn"),
        (of(&table), "out of turn"),
        (of(&Word::Ready), "out of turn"),
    ] {
        let host = open(1, AMPLE);
        let invitation = host.invitation();
        thread::scope(|s| {
            let zero = s.spawn(|| receive(host, 1));
            let mut line = connected(&invitation);
            line.send(&text, AMPLE).unwrap();
            let zero = zero.join().unwrap().unwrap_err().to_string();
            assert!(zero.contains(wanted), "{wanted}: {zero}");
            match parse_word(&line.receive(AMPLE).unwrap()).unwrap() {
                Word::Refusal { reason, .. } => assert_eq!(reason, zero),
                _ => panic!("no refusal"),
            }
        });
    }
}

#[test]
fn two_that_say_they_are_the_same_rank_are_none() {
    let host = open(2, AMPLE);
    let invitation = host.invitation();
    thread::scope(|s| {
        let zero = s.spawn(|| receive(host, 2));
        let mut lines = [connected(&invitation), connected(&invitation)];
        for line in &mut lines {
            send(line, &word_of(3, 4), AMPLE).unwrap();
        }
        let zero = zero.join().unwrap().unwrap_err().to_string();
        assert!(zero.contains("rank 3, which is taken already"), "{zero}");
    });
}

#[test]
fn one_that_goes_or_does_not_come_is_named_and_the_launchers_word_comes_first() {
    let limit = Duration::from_millis(200);
    let error = receive(open(2, limit), 2).unwrap_err();
    assert_eq!(error.exit(), Exit::TimedOut);
    assert!(
        error
            .to_string()
            .contains("ranks 2 and 3 did not come within 0.2 s"),
        "{error}"
    );
    for known in [false, true] {
        let mut host = open(1, AMPLE);
        let invitation = host.invitation();
        let one = thread::spawn(move || drop(connected(&invitation)));
        let error = host.gather(&hello(0, 3), &mut || match known && one.is_finished() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        });
        one.join().unwrap();
        match (known, error.unwrap_err()) {
            (true, Error::Cancelled) => {}
            (false, error) => assert!(
                error.to_string().contains("ended before all had joined"),
                "{error}"
            ),
            (true, error) => panic!("{error}"),
        }
    }
}

#[test]
fn who_comes_too_late_is_told_at_once() {
    let host = open(1, AMPLE);
    let invitation = host.invitation();
    drop(host);
    let started = Instant::now();
    let error = join(&invitation, 0, None).unwrap_err().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
    assert!(started.elapsed() < AMPLE / 2);
    let error = Invited::through(&mut Herald::of(&invitation, 1), AMPLE)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("1 ranks are invited, and this is number 1 of them"),
        "{error}"
    );
}

#[test]
fn a_table_that_is_none_is_refused_by_the_new_rank() {
    let host = open(1, AMPLE);
    let invitation = host.invitation();
    thread::scope(|s| {
        let new = s.spawn(|| join(&invitation, 0, None));
        let mut host = host;
        host.gather(&hello(0, 3), &mut || Ok(())).unwrap();
        let ranks = (0..2).map(|rank| hello(rank, 3)).collect();
        let key = Key::of_seed(7);
        host.seat(&Meeting { key, ranks }).unwrap();
        let error = host.ready(&mut || Ok(())).unwrap_err().to_string();
        assert!(
            error.contains("rank 2 cannot take part") && error.contains("every rank in its place"),
            "{error}"
        );
        assert!(new.join().unwrap().is_err());
    });
}
