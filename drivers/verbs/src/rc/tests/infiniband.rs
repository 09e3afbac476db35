//! Paths over InfiniBand: what the resolver gave, what the subnet's administration answers, and what is
//! assumed. The administration is made up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use doorbell_fabric::message::{Body, Message};
use doorbell_sim::conformance::Pair;
use zerocopy::FromZeros;

use super::{connect, device_of, pair_of, rail_over, small};
use crate::paths::Administration;
use crate::rc::rail::RcRail;
use crate::subnet::{Answer, PathRecord, Refusal, Reply, Request, SubnetError};
use crate::sys::{model, numbers};

/// An administration that answers each request after some looks; `None` does not answer. A path leads to
/// the LID `to`, where it names none.
#[derive(Clone, Default)]
struct MadeUp(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    answer: Option<Answer>,
    looks: usize,
    to: u16,
    requests: Vec<PathRecord>,
    waiting: VecDeque<(usize, Reply)>,
}

impl MadeUp {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(answer: Option<Answer>, looks: usize) -> Self {
        let made = Self::default();
        (made.inner().answer, made.inner().looks) = (answer, looks);
        made
    }

    fn requests(&self) -> usize {
        self.inner().requests.len()
    }
}

impl Administration for MadeUp {
    fn ask(&mut self, transaction: u32, request: &Request) -> Result<(), SubnetError> {
        let mut inner = self.inner();
        let Request::Path(record, _) = request else {
            panic!("a path")
        };
        inner.requests.push(*record);
        if let Some(mut answer) = inner.answer {
            if let Answer::Path(record) = &mut answer
                && record.dlid.get() == 0
            {
                record.dlid = inner.to.into();
            }
            let (looks, answer) = (inner.looks, Some(answer));
            inner.waiting.push_back((looks, Reply { transaction, answer }));
        }
        Ok(())
    }

    fn next_reply(&mut self) -> Result<Option<Reply>, SubnetError> {
        let mut inner = self.inner();
        inner
            .waiting
            .iter_mut()
            .for_each(|(looks, _)| *looks = looks.saturating_sub(1));
        let is_due = inner.waiting.front().is_some_and(|(looks, _)| *looks == 0);
        Ok(inner.waiting.pop_front_if(|_| is_due).map(|(_, reply)| reply))
    }
}

/// The LID of the port at an address of the model, which no other has.
fn lid_at([.., high, low]: [u8; 4]) -> u16 {
    0x100 + u16::from_be_bytes([high, low])
}

fn lid_of(rail: &RcRail) -> u16 {
    lid_at(model::addresses(&device_of(rail))[0])
}

/// A rail over a port of InfiniBand.
fn rail() -> (RcRail, doorbell_fabric::message::Incarnation) {
    rail_over(crate::ports::fake::everything(), small(), |spec| {
        spec.lid = lid_at(spec.addresses[0]);
    })
}

/// A path: service level 5, 10 Gb/s, an MTU of 256 bytes where the ports have 1024.
fn record() -> PathRecord {
    let mut record = PathRecord::new_zeroed();
    record.pkey = 0xffff.into();
    record.qos_and_sl = 0x0fb5.into();
    (record.mtu, record.rate) = (0x81, 0x83);
    record
}

/// Two rails over ports of InfiniBand, whose paths from `a` come from an administration.
fn pair(administration: Option<MadeUp>) -> Pair<RcRail> {
    let (mut a, b) = (rail(), rail());
    if let Some(administration) = administration {
        administration.inner().to = lid_of(&b.0);
        a.0.connector.set_administration(Box::new(administration));
    }
    pair_of(a, b).connect()
}

/// A message from `a` to `b`.
fn works(pair: &mut Pair<RcRail>) {
    let (seen, to_b) = (pair.at_b.messages.len(), pair.to_b);
    pair.a.send(to_b, b"hello", Body::Bytes(&[7; 3000])).unwrap();
    pair.until("it is shown", |pair| pair.at_b.messages.len() > seen);
}

/// Service level, rate and MTU of what leads to `b`: an MTU of 0 is that of a handle.
fn in_use(pair: &mut Pair<RcRail>) -> Vec<(u8, u8, i32)> {
    let to = lid_of(pair.b());
    let all = model::paths_in_use(&device_of(&pair.a));
    // What is not connected leads nowhere.
    let all = all.into_iter().filter(|path| path.0 != 0);
    all.map(|(lid, level, rate, mtu)| {
        assert_eq!(lid, to);
        (level, rate, mtu)
    })
    .collect()
}

#[test]
fn the_administrations_path_is_used_as_given_and_nothing_waits_for_it() {
    let administration = MadeUp::answers(Some(Answer::Path(record())), 200);
    let mut pair = pair(Some(administration.clone()));
    let to_b = pair.to_b;
    pair.a.send(to_b, b"hello", Body::Empty).unwrap();
    (0..100).for_each(|_| pair.turn());
    // Nothing leaves before.
    assert_eq!((administration.requests(), in_use(&mut pair)), (1, vec![]));
    assert_eq!(pair.a.path(to_b), None);
    pair.until("it is shown", |pair| pair.at_b.messages.len() == 1);
    works(&mut pair);
    assert_eq!(in_use(&mut pair), [(5, 3, 0), (5, 3, 1)]);
    let described = pair.a.path(to_b).unwrap();
    assert!(
        described.contains("service level 5, MTU 256") && described.contains("the subnet's administration"),
        "{described}"
    );
    assert_eq!(
        pair.a.findings(to_b),
        None,
        "nothing is assumed, and no size was tried in vain"
    );
    let request = administration.inner().requests[0];
    assert_eq!((request.pkey.get(), request.reversible_and_count), (0xffff, 0x81));
    assert_ne!((request.sgid, request.dgid), ([0; 16], [0; 16]));
}

#[test]
fn what_is_not_answered_is_assumed_and_reported_so() {
    let wrong = |change: fn(&mut PathRecord)| {
        let mut record = record();
        change(&mut record);
        Some(Answer::Path(record))
    };
    let cases = [
        (Some(None), "does not answer"),
        (
            Some(Some(Answer::Refused(Refusal::NoRecords))),
            "has no such record",
        ),
        (Some(wrong(|record| record.dlid = 0xc001.into())), "LID 49153"),
        (
            Some(wrong(|record| {
                (record.dlid, record.pkey) = (7.into(), 0x8002.into());
            })),
            "partition 0x8002",
        ),
        // The device is the model's, and libibumad finds none of that name.
        (None, "libibumad"),
    ];
    for (answer, reason) in cases {
        let mut pair = pair(answer.map(|answer| MadeUp::answers(answer, 1)));
        works(&mut pair);
        assert_eq!(in_use(&mut pair), [(0, 0, 0), (0, 0, 3)]);
        let found = pair.a.findings(pair.to_b).unwrap();
        assert!(found.contains("assumed"), "{found}");
        assert!(found.contains(reason) || reason == "libibumad", "{found}");
        assert_eq!(pair.a.describe().contains("paths assumed"), reason == "libibumad");
    }
}

#[test]
fn what_the_resolver_gave_comes_first_unless_it_leads_nowhere() {
    let administration = MadeUp::answers(Some(Answer::Path(record())), 1);
    let mut pair = pair(Some(administration.clone()));
    // To the GID of `b`, as its address has it.
    let [a, b, c, d] = model::addresses(&device_of(pair.b()))[0];
    let mut given = record();
    given.dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d];
    (given.qos_and_sl, given.dlid) = (2.into(), lid_of(pair.b()).into());
    pair.a.give_path(&given);
    works(&mut pair);
    assert_eq!(administration.requests(), 0);
    assert_eq!(in_use(&mut pair), [(2, 3, 0), (2, 3, 1)]);
    let described = pair.a.path(pair.to_b).unwrap();
    assert!(described.contains("address service"), "{described}");
    // The peer does not answer over it: the next attempt uses another.
    let (device, to_a, to_b) = (device_of(&pair.a), pair.to_a, pair.to_b);
    let fault = model::Fault {
        after: 0,
        status: numbers::RETRY_EXC_ERR,
        is_carried: false,
    };
    model::fail_request(&device, fault);
    pair.a.send(to_b, b"lost", Body::Empty).unwrap();
    pair.until("it is down", |pair| !pair.a.core.is_up(to_b.0));
    pair.until("it is up again", |pair| {
        pair.a.revive(to_b);
        pair.b().revive(to_a);
        pair.turn();
        pair.a.core.is_up(to_b.0)
    });
    assert_eq!(administration.requests(), 1);
    works(&mut pair);
    // One of another partition is no path of this rail's.
    given.pkey = 0x8002.into();
    pair.a.give_path(&given);
    model::raise_port(&device, numbers::EVENT_SM_CHANGE);
    (0..100).for_each(|_| pair.turn());
    assert_eq!(administration.requests(), 2);
}

#[test]
fn another_manager_or_lid_has_paths_requested_anew() {
    let administration = MadeUp::answers(Some(Answer::Path(record())), 1);
    let mut pair = pair(Some(administration.clone()));
    works(&mut pair);
    let device = device_of(&pair.a);
    for (count, event) in (2..).zip([numbers::EVENT_SM_CHANGE, numbers::EVENT_CLIENT_REREGISTER]) {
        model::raise_port(&device, event);
        (0..100).for_each(|_| pair.turn());
        assert_eq!(administration.requests(), count, "{event}");
        works(&mut pair);
    }
    model::set_lid(&device, 0xb000 + lid_of(&pair.a));
    (0..100).for_each(|_| pair.turn());
    assert_eq!(administration.requests(), 4);
}

#[test]
fn messages_pass_over_infiniband() {
    let mut pair = connect(pair_of(rail(), rail()));
    let to_a = pair.to_a;
    works(&mut pair);
    pair.b().send(to_a, b"back", Body::Empty).unwrap();
    pair.until("it is shown", |pair| pair.at_a.messages.len() == 2);
}
