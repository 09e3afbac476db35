//! Two sessions with one key, and an attacker between them that changes, repeats, leaves out, adds and cuts
//! bytes as the script directs. A side receives the beginning of what the other one sent; a side that
//! reported a fault sends and receives nothing any more; and without the key no side gets in.

use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_oob::{Event, JobKey, OobError, Role, Session, Terms};

use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 200;
/// Longest message that a side takes.
const LONGEST: usize = 4096;

struct Side {
    session: Session,
    said: Vec<Vec<u8>>,
    /// How many messages of the other side were received.
    heard: usize,
    ready: bool,
    failed: bool,
    /// On its way to this side.
    stream: Vec<u8>,
}

impl Side {
    fn new(role: Role, key: Option<JobKey>, purpose: u16) -> Self {
        let terms = Terms {
            longest: LONGEST,
            ..Terms::new(key, purpose, role as u64)
        };
        Self {
            session: Session::new(role, &terms, Time::ZERO).expect("random numbers"),
            said: Vec::new(),
            heard: 0,
            ready: false,
            failed: false,
            stream: Vec::new(),
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let result = self.session.receive(bytes);
        if self.failed {
            assert!(result.is_ok(), "a fault is reported once: {result:?}");
            assert!(self.session.event().is_none(), "there is an event after a fault");
        }
        if result.is_err() {
            self.failed = true;
            assert!(!self.session.is_open());
            assert!(
                matches!(self.session.send(b"x"), Err(OobError::State(_))),
                "it sends something after a fault"
            );
        }
    }

    /// Checks its events against the messages that `other` has sent.
    fn listen(&mut self, said: &[Vec<u8>]) {
        while let Some(event) = self.session.event() {
            match event {
                Event::Ready(_) => assert!(!std::mem::replace(&mut self.ready, true), "ready twice"),
                Event::Message(message) => {
                    assert!(self.ready, "a message before the handshake is complete");
                    assert_eq!(
                        Some(&message),
                        said.get(self.heard),
                        "it was not sent, or not now"
                    );
                    self.heard += 1;
                }
                Event::Closed => assert!(self.ready && self.heard == said.len(), "closed too early"),
            }
        }
    }
}

fn attack(stream: &mut Vec<u8>, script: &mut Script<'_>) {
    let at = script.below(stream.len().clamp(1, 65_536));
    let length = script.below(64).min(stream.len().saturating_sub(at));
    match script.byte() % 6 {
        0 if at < stream.len() => stream[at] ^= script.byte().max(1),
        1 => _ = stream.drain(at..at + length),
        2 => {
            let again = stream[at.min(stream.len())..][..length].to_vec();
            stream.extend_from_slice(&again);
        }
        3 => stream.truncate(at),
        4 => {
            let new = script.take(length.max(1));
            let at = at.min(stream.len());
            stream.splice(at..at, new.iter().copied());
        }
        _ => {}
    }
}

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let settings = script.byte();
    let key = || Some(JobKey::from_bytes([1; 32]));
    // One in eight has another key, and one in eight another purpose.
    let theirs = if settings & 7 == 7 {
        Some(JobKey::from_bytes([2; 32]))
    } else {
        key()
    };
    let purpose = if settings & 7 == 6 { 8 } else { 7 };
    let fits = settings & 7 < 6;
    let mut sides = [
        Side::new(Role::Caller, key(), 7),
        Side::new(Role::Answerer, theirs, purpose),
    ];
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        let choice = script.byte();
        let i = usize::from(choice & 1);
        match choice >> 1 {
            0..48 => {
                let bytes = sides[i].session.take_outgoing();
                sides[1 - i].stream.extend_from_slice(&bytes);
                let most = if choice & 64 == 0 {
                    usize::MAX
                } else {
                    script.below(4096)
                };
                let side = &mut sides[1 - i];
                let rest = side.stream.split_off(most.min(side.stream.len()));
                let bytes = std::mem::replace(&mut side.stream, rest);
                side.receive(&bytes);
                let (one, other) = sides.split_at_mut(1);
                one[0].listen(&other[0].said);
                other[0].listen(&one[0].said);
            }
            48..72 => {
                let length = script.below(LONGEST + 200);
                let message = vec![choice; length];
                match sides[i].session.send(&message) {
                    Ok(()) => sides[i].said.push(message),
                    Err(OobError::TooLong { .. }) => assert!(length > LONGEST),
                    Err(OobError::State(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            72..112 => {
                let bytes = sides[i].session.take_outgoing();
                sides[1 - i].stream.extend_from_slice(&bytes);
                attack(&mut sides[1 - i].stream, &mut script);
            }
            112..116 => sides[i].session.close(),
            116..118 => {
                let late = Time::ZERO + Duration::from_secs(u64::from(script.byte()));
                sides[i].failed |= sides[i].session.tick(late).is_err();
            }
            _ => {
                let result = sides[i].session.end();
                assert!(
                    result.is_err() || sides[i].session.is_left(),
                    "an end that was never announced"
                );
                sides[i].failed |= result.is_err();
            }
        }
        assert!(
            fits || !sides.iter().any(|side| side.ready),
            "in without the key, or for something else"
        );
        assert!(sides.iter().all(|side| side.session.outgoing().len() < 4 << 20));
    }
}
