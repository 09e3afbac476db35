//! The administrator of a subnet that answers anything: paths and memberships that were never requested, of
//! other groups, cut, twice. Every question for a path ends once and by its bound, and a group that is joined
//! is the requested one. What is read of a path would be written the same.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use doorbell_acm::address::Gid;
use doorbell_acm::endpoint::{DEFAULT_PKEY, Endpoint, Link};
use doorbell_acm::mad::Group;
use doorbell_acm::path::{Mtu, Path, PathRecord, Rate};
use doorbell_acm::resolver::EndpointId;
use doorbell_acm::sa::{Line, QueryId, SubnetEvent, Subnets};
use doorbell_fabric::time::Time;
use doorbell_verbs::subnet::{Answer, Reply, Request, read};

use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 300;
/// What a question may take: three attempts.
const BOUND: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Wire {
    asked: Vec<(u32, Request)>,
    replies: VecDeque<Reply>,
    manager: u16,
    fails: bool,
}

#[derive(Clone)]
struct Liar(Rc<RefCell<Wire>>);

impl Line for Liar {
    fn ask(&mut self, transaction: u32, request: &Request, _: Duration, _: u32) -> Result<(), String> {
        let mut wire = self.0.borrow_mut();
        wire.asked.push((transaction, *request));
        if wire.fails {
            Err("refused".to_owned())
        } else {
            Ok(())
        }
    }

    fn next_reply(&mut self) -> Result<Option<Reply>, String> {
        let mut wire = self.0.borrow_mut();
        match wire.replies.pop_front() {
            None if wire.fails => Err("gone".to_owned()),
            reply => Ok(reply),
        }
    }

    fn manager(&self) -> Result<u16, String> {
        Ok(self.0.borrow().manager)
    }
}

fn endpoint() -> Endpoint {
    Endpoint {
        device: "mlx5_0".to_owned(),
        other_names: Vec::new(),
        guid: 1,
        interface: 0,
        port: 1,
        ports: 1,
        pkey: DEFAULT_PKEY,
        link: Link::InfiniBand,
        gid: Gid([0xfe; 16]),
        lid: 1,
        mtu: Mtu::MAX,
        rate: Rate::within(40_000),
        subnet_timeout: 18,
        addresses: Vec::new(),
        networks: Vec::new(),
    }
}

/// Turns bytes into an answer to one of the requests, mostly.
fn reply(script: &mut Script<'_>, asked: &[(u32, Request)]) -> Option<Reply> {
    let choice = script.byte();
    let (transaction, request) = *asked.get(script.below(asked.len().max(1)))?;
    if choice < 20 {
        return Some(Reply {
            transaction,
            answer: None,
        });
    }
    let mut mad = request.bytes(transaction.into());
    mad[3] = if mad[3] == 0x15 { 0x95 } else { 0x81 };
    for _ in 0..script.below(12) {
        let at = script.below(mad.len());
        mad[at] = script.byte();
    }
    if choice > 200 {
        mad[4] = script.byte();
    }
    let (transaction, answer) = read(&mad).ok()?;
    Some(Reply {
        transaction,
        answer: Some(answer),
    })
}

/// Runs a script.
pub fn run(input: &[u8]) {
    if let Ok((_, Answer::Path(record))) = read(input) {
        let path = Path::from(&record);
        assert_eq!(Path::from(&PathRecord::from(&path)), path);
    }
    let wire = Rc::new(RefCell::new(Wire::default()));
    let liar = Liar(Rc::clone(&wire));
    let mut subnets = Subnets::new(Box::new(move |_, _| Ok(liar.clone())), BOUND / 3, 2);
    let (own, mut now) = (endpoint(), Time::ZERO);
    let (mut open, mut wanted) = (BTreeSet::new(), BTreeSet::new());
    let mut script = Script::new(input);
    let mut number = 0;
    let drain = |subnets: &mut Subnets<Liar>, open: &mut BTreeSet<u64>, wanted: &BTreeSet<Gid>| {
        while let Some(event) = subnets.event() {
            match event {
                SubnetEvent::Path { id, .. } => assert!(open.remove(&id.0), "{id:?} was not open"),
                SubnetEvent::Joined { group, .. } => assert!(wanted.contains(&group)),
                SubnetEvent::NotJoined { .. } => {}
            }
        }
    };
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        let group = |script: &mut Script<'_>| {
            let mtu = Mtu::of(script.byte() % 6).unwrap_or(Mtu::MIN);
            Group::new(u16::from(script.byte() & 3) + 1, Rate::MIN, mtu).gid()
        };
        match script.byte() {
            0..60 => {
                number += 1;
                open.insert(number);
                let path = Path {
                    dgid: Gid([script.byte(); 16]),
                    ..Path::default()
                };
                subnets.path(now, &own, QueryId(number), &path);
            }
            60..80 => {
                let group = group(&mut script);
                wanted.insert(group);
                subnets.join(now, EndpointId(u32::from(script.byte() & 1)), &own, group);
            }
            80..90 => subnets.leave(now, EndpointId(u32::from(script.byte() & 1)), group(&mut script)),
            90..100 => subnets.join_again(now, "mlx5_0", 1),
            100..110 => wire.borrow_mut().manager = u16::from(script.byte() & 3),
            110..120 => wire.borrow_mut().fails = script.byte() & 1 == 1,
            120..200 => {
                let mut wire = wire.borrow_mut();
                let reply = reply(&mut script, &wire.asked);
                wire.replies.extend(reply);
            }
            choice => now += Duration::from_micros(1 << (choice % 20)),
        }
        subnets.turn(now);
        drain(&mut subnets, &mut open, &wanted);
    }
    subnets.leave_all(now);
    wire.borrow_mut().replies.clear();
    for _ in 0..4 {
        now += BOUND;
        subnets.turn(now);
    }
    drain(&mut subnets, &mut open, &wanted);
    assert!(open.is_empty(), "{open:?} never ended");
    assert!(!subnets.is_waiting());
}
