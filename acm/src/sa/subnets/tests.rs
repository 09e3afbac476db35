use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::endpoint::Link;
use crate::resolver::tests::endpoint;

/// An administrator whose replies the test gives.
#[derive(Default)]
struct Fake {
    asked: Vec<(u32, Request)>,
    replies: VecDeque<Reply>,
    manager: u16,
    gone: bool,
}

#[derive(Clone)]
struct FakeLine(Rc<RefCell<Fake>>);

impl Line for FakeLine {
    fn ask(&mut self, transaction: u32, request: &Request, _: Duration, _: u32) -> Result<(), String> {
        self.0.borrow_mut().asked.push((transaction, *request));
        Ok(())
    }

    fn next_reply(&mut self) -> Result<Option<Reply>, String> {
        let mut fake = self.0.borrow_mut();
        if fake.gone {
            Err("the device is gone".to_owned())
        } else {
            Ok(fake.replies.pop_front())
        }
    }

    fn manager(&self) -> Result<u16, String> {
        Ok(self.0.borrow().manager)
    }
}

struct Bench {
    fake: Rc<RefCell<Fake>>,
    subnets: Subnets<FakeLine>,
    end: Endpoint,
    now: Time,
}

impl Bench {
    fn new() -> Self {
        let fake = Rc::new(RefCell::new(Fake {
            manager: 1,
            ..Fake::default()
        }));
        let line = FakeLine(Rc::clone(&fake));
        let end = Endpoint {
            link: Link::InfiniBand,
            gid: "fe80::1".parse().unwrap(),
            lid: 3,
            ..endpoint("n", 1)
        };
        Self {
            subnets: Subnets::new(Box::new(move |_, _| Ok(line.clone())), Duration::from_secs(1), 2),
            fake,
            end,
            now: Time::from_nanos(1),
        }
    }

    fn last(&self) -> (u32, Request) {
        *self.fake.borrow().asked.last().expect("a request")
    }

    fn count(&self) -> usize {
        self.fake.borrow().asked.len()
    }

    fn reply(&mut self, transaction: u32, answer: Option<Answer>) -> Vec<SubnetEvent> {
        self.fake
            .borrow_mut()
            .replies
            .push_back(Reply { transaction, answer });
        self.turn(Duration::ZERO)
    }

    fn turn(&mut self, later: Duration) -> Vec<SubnetEvent> {
        self.now += later;
        self.subnets.turn(self.now);
        std::iter::from_fn(|| self.subnets.event()).collect()
    }

    fn path(&mut self, id: u64) {
        let open = Path {
            dgid: "fe80::2".parse().unwrap(),
            ..Path::default()
        };
        let question = super::super::question(&self.end, &open);
        self.subnets.path(self.now, &self.end, QueryId(id), &question);
    }

    fn join(&mut self) -> Gid {
        let group = Group::new(0x8002, Rate::within(10_000), Mtu::MAX).gid();
        self.subnets.join(self.now, EndpointId(1), &self.end, group);
        group
    }
}

fn record(group: Gid, sl: u32) -> MemberRecord {
    let mut record = MemberRecord::new_zeroed();
    (record.group, record.lid) = (group.0, 0xc001.into());
    (record.mtu, record.rate) = (0x84, 0x83);
    record.sl_flow_and_hops = (sl << 28 | 0x12345 << 8 | 7).into();
    record
}

#[test]
fn a_path_with_its_service_level_is_answered_once() {
    let mut bench = Bench::new();
    bench.path(9);
    let (transaction, request) = bench.last();
    let Request::Path(asked, components) = request else {
        panic!("{request:?}")
    };
    // DGID, SGID, SLID, reversible, number of paths, P_Key.
    assert_eq!(
        components.bits(),
        1 << 2 | 1 << 3 | 1 << 5 | 1 << 11 | 1 << 12 | 1 << 13
    );
    let mut told = asked;
    told.qos_and_sl = 5.into();
    let events = bench.reply(transaction, Some(Answer::Path(told)));
    let [
        SubnetEvent::Path {
            id: QueryId(9),
            answer: Ok(path),
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(path.sl, 5);
    assert_eq!(bench.reply(transaction, Some(Answer::Path(told))), []);
    assert_eq!(bench.subnets.next_deadline(), Time::NEVER);
}

#[test]
fn refused_and_silent_ends_have_their_reasons() {
    let mut bench = Bench::new();
    let ended = |id, why| {
        [SubnetEvent::Path {
            id: QueryId(id),
            answer: Err(why),
        }]
    };
    bench.path(1);
    let (transaction, _) = bench.last();
    let refused = Some(Answer::Refused(Refusal::NoRecords));
    assert_eq!(bench.reply(transaction, refused), ended(1, NoPath::Unknown));
    bench.path(2);
    let (transaction, _) = bench.last();
    assert_eq!(bench.reply(transaction, None), ended(2, NoPath::Silent));
    bench.path(3);
    assert_eq!(bench.turn(Duration::from_millis(2999)), []);
    assert_eq!(bench.turn(Duration::from_millis(1)), ended(3, NoPath::Silent));
    bench.path(4);
    bench.fake.borrow_mut().gone = true;
    assert_eq!(bench.turn(Duration::ZERO), ended(4, NoPath::NoAdministrator));
    assert_eq!(bench.subnets.trouble(&bench.end), Some("the device is gone"));
}

#[test]
fn a_busy_administrator_is_asked_again_after_growing_pauses() {
    let mut bench = Bench::new();
    bench.path(1);
    let mut times = Vec::new();
    while bench.count() < 4 {
        let (transaction, _) = bench.last();
        assert_eq!(bench.reply(transaction, Some(Answer::Refused(Refusal::Busy))), []);
        let due = bench.subnets.next_deadline();
        times.push(due.since(bench.now));
        bench.turn(due.since(bench.now));
    }
    assert_eq!(times, [50, 100, 200].map(Duration::from_millis));
    let busy = bench.last();
    bench.reply(busy.0, Some(Answer::Refused(Refusal::Busy)));
    let silent = bench.turn(Duration::from_secs(3));
    assert!(matches!(
        silent[..],
        [SubnetEvent::Path {
            answer: Err(NoPath::Silent),
            ..
        }]
    ));
}

#[test]
fn a_group_is_joined_as_it_is_or_else_created_and_left_once() {
    let mut bench = Bench::new();
    let group = bench.join();
    let (transaction, request) = bench.last();
    let Request::Join(_, components) = request else {
        panic!("{request:?}")
    };
    assert_eq!(components.bits(), 1 | 1 << 1 | 1 << 16);
    assert_eq!(
        bench.reply(transaction, Some(Answer::Refused(Refusal::Insufficient))),
        []
    );
    let (transaction, request) = bench.last();
    let Request::Join(own, components) = request else {
        panic!("{request:?}")
    };
    // All but lifetime, hop limit, proxy and LID.
    assert_eq!(components.bits(), 0x1b3f7);
    assert_eq!(
        (own.qkey.get(), own.pkey.get(), own.mtu, own.rate),
        (QKEY, 0x8002, 0x85, 0x83)
    );
    let events = bench.reply(transaction, Some(Answer::Joined(record(group, 5))));
    let [
        SubnetEvent::Joined {
            lid: 0xc001, like, ..
        },
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(
        (like.sl, like.flow_label, like.hop_limit, like.mtu.bytes()),
        (5, 0x12345, 7, 2048)
    );
    bench.subnets.join(bench.now, EndpointId(2), &bench.end, group);
    bench.subnets.leave(bench.now, EndpointId(1), group);
    assert!(
        matches!(bench.last().1, Request::Join(..)),
        "the port is still needed there"
    );
    bench.subnets.leave_all(bench.now);
    assert!(matches!(bench.last().1, Request::Leave(..)));
}

#[test]
fn a_refused_group_is_tried_again_and_a_new_manager_gets_all() {
    let mut bench = Bench::new();
    let group = bench.join();
    let denied = Some(Answer::Refused(Refusal::Denied));
    let events = bench.reply(bench.last().0, denied);
    assert!(
        matches!(events[..], [SubnetEvent::NotJoined { .. }]),
        "{events:?}"
    );
    bench.turn(REFUSED);
    assert_eq!(bench.count(), 2);
    let (transaction, _) = bench.last();
    assert_eq!(
        bench
            .reply(transaction, Some(Answer::Joined(record(group, 0))))
            .len(),
        1
    );
    bench.turn(WATCH);
    assert_eq!(bench.count(), 2, "the manager is the same");
    bench.fake.borrow_mut().manager = 7;
    bench.turn(WATCH);
    assert_eq!(bench.count(), 3, "joined again");
    bench
        .subnets
        .join_again(bench.now, &bench.end.device.clone(), bench.end.port);
    assert_eq!(bench.count(), 4);
}

#[test]
fn an_answer_about_another_group_is_not_taken() {
    let mut bench = Bench::new();
    bench.join();
    let other = Group::new(0x8003, Rate::MIN, Mtu::MIN).gid();
    let events = bench.reply(bench.last().0, Some(Answer::Joined(record(other, 0))));
    assert!(
        matches!(events[..], [SubnetEvent::NotJoined { .. }]),
        "{events:?}"
    );
    assert!(matches!(bench.last().1, Request::Leave(..)));
}

#[test]
fn a_port_that_cannot_be_opened_is_tried_again_later() {
    let tries = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&tries);
    let open = move |_: &str, _| {
        *counted.borrow_mut() += 1;
        Err::<FakeLine, _>("no rights".to_owned())
    };
    let mut bench = Bench::new();
    bench.subnets = Subnets::new(Box::new(open), Duration::from_secs(1), 2);
    (0..3).for_each(|id| bench.path(id));
    assert_eq!((bench.turn(Duration::ZERO).len(), *tries.borrow()), (3, 1));
    bench.now += CLOSED;
    bench.path(4);
    assert_eq!(*tries.borrow(), 2);
    assert_eq!(bench.subnets.trouble(&bench.end), Some("no rights"));
}
