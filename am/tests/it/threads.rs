//! PAR: other threads send through the thread that owns the conduit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use doorbell_am::AM_INDEX;
use doorbell_am::match_bits::Id;
use doorbell_am::threads::{Args, NotTaken, Outcome, Owned, Ticket, Work, desk};
use doorbell_am::{Destination, Handlers, Remote};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_sim::Change;

use crate::hostile::{long, pass, put_nothing};
use crate::rig::{Setting, World};

fn summing(sum: &Arc<AtomicU64>) -> impl FnMut(u32) -> Handlers {
    let sum = Arc::clone(sum);
    move |_| {
        let mut handlers = Handlers::new();
        let sum = Arc::clone(&sum);
        let handler = move |request: doorbell_am::Request<'_>| {
            let bytes: u64 = request
                .payload()
                .bytes()
                .to_vec()
                .iter()
                .map(|byte| u64::from(*byte))
                .sum();
            let args: u64 = request.args().iter().map(|arg| u64::from(*arg)).sum();
            sum.fetch_add(bytes + args, Ordering::Relaxed);
        };
        handlers.request(1, handler).expect("free");
        handlers
    }
}

/// Steps all ranks and serves the desk of rank 0.
fn turn(world: &mut World, desk: &mut doorbell_am::threads::Desk) {
    let now = world.net.now();
    let ranks = world.job.ranks().len() as u32;
    let mut work = 0;
    for rank in (0..ranks)
        .filter(|rank| !world.dead.contains(rank))
        .collect::<Vec<_>>()
    {
        work += world.am(rank).step(now).expect("it goes on");
    }
    work += desk.serve(world.am(0));
    if work == 0 {
        let next = world.net.next_event().unwrap_or(now + Duration::from_micros(5));
        world.net.advance_to(next);
    }
}

#[test]
fn many_threads_send_and_each_job_ends_once() {
    let sum = Arc::new(AtomicU64::new(0));
    let mut world = World::new(&Setting::new(3), summing(&sum));
    let (client, mut desk) = desk(16).expect("a power of two");
    let left = AtomicU32::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (client, left) = (client.clone(), &left);
            scope.spawn(move || {
                let mut ticket = Ticket::new();
                let memory = Region::new(512).expect("memory").whole();
                memory.write(0, &[thread as u8; 512]);
                let mut landing = None;
                for number in 0..100u32 {
                    let to = number % 3;
                    let args = Args::new(&[number]).expect("few");
                    let place = thread * 1024;
                    let work = match number % 5 {
                        0 => Work::Short { to, handler: 1, args },
                        1 => Work::Medium {
                            to,
                            handler: 1,
                            args,
                            payload: Owned::inline(&[1; 10]).expect("short"),
                        },
                        2 => Work::Long {
                            to,
                            handler: 1,
                            args,
                            payload: Owned::Inline {
                                bytes: [1; 64],
                                length: 64,
                            },
                            place,
                        },
                        3 => Work::Put {
                            to: Remote {
                                rank: 1,
                                offset: 8192 + place,
                            },
                            from: Owned::Memory(Landing::Region(memory.clone())),
                        },
                        _ => {
                            let into = Region::new(512).expect("memory").whole();
                            landing = Some(into.clone());
                            Work::Get {
                                into: Destination::from(into),
                                from: Remote {
                                    rank: 1,
                                    offset: 8192 + place,
                                },
                                length: 512,
                            }
                        }
                    };
                    while client.begin(&mut ticket, work.clone()) == Err(NotTaken::Full) {
                        std::thread::park_timeout(Duration::from_micros(20));
                    }
                    while ticket.outcome() == Outcome::Pending {
                        std::thread::park_timeout(Duration::from_micros(20));
                    }
                    assert_eq!(ticket.outcome(), Outcome::Done, "{number}");
                    if number % 5 == 4 {
                        let got = landing.take().expect("a landing").as_shared().to_vec();
                        assert_eq!(got, vec![thread as u8; 512]);
                    }
                }
                left.fetch_sub(1, Ordering::Release);
            });
        }
        while left.load(Ordering::Acquire) > 0 {
            turn(&mut world, &mut desk);
        }
    });
    drop(client);
    world.settle();
    assert!(desk.is_abandoned());
    let each: u64 = (0..100u64)
        .map(|number| match number % 5 {
            0 => number,
            1 => number + 10,
            2 => number + 64,
            _ => 0,
        })
        .sum();
    assert_eq!(sum.load(Ordering::Relaxed), 3 * each);
    world.assert_clean();
}

#[test]
fn a_ticket_reports_what_went_wrong() {
    let mut world = World::new(&Setting::new(3), |_| Handlers::new());
    let (client, mut desk) = desk(4).expect("a power of two");
    let end = |world: &mut World, desk: &mut doorbell_am::threads::Desk, work: Work| {
        let mut ticket = Ticket::new();
        assert_eq!(client.begin(&mut ticket, work.clone()), Ok(()));
        assert_eq!(client.begin(&mut ticket, work), Err(NotTaken::Busy));
        for _ in 0..10_000 {
            if ticket.outcome() != Outcome::Pending {
                break;
            }
            turn(world, desk);
        }
        ticket.outcome()
    };
    let short = |to| Work::Short {
        to,
        handler: 1,
        args: Args::default(),
    };
    assert_eq!(end(&mut world, &mut desk, short(7)), Outcome::Refused);
    let beyond = Work::Put {
        to: Remote {
            rank: 1,
            offset: u64::MAX,
        },
        from: Owned::inline(b"x").expect("short"),
    };
    assert_eq!(end(&mut world, &mut desk, beyond), Outcome::Refused);
    assert!(Owned::inline(&[0; 65]).is_none() && Args::new(&[0; 17]).is_none());
    world.dead.push(2);
    world.net.change(Change::RankDeath(2));
    let put = Work::Put {
        to: Remote { rank: 2, offset: 0 },
        from: Owned::Segment {
            offset: 0,
            length: 4000,
        },
    };
    assert_eq!(end(&mut world, &mut desk, put), Outcome::Failed);
    assert_eq!(end(&mut world, &mut desk, short(2)), Outcome::Lost);
    let mut ticket = Ticket::new();
    assert_eq!(client.begin(&mut ticket, short(1)), Ok(()));
    world.am(0).exit(0);
    assert_eq!(end(&mut world, &mut desk, short(1)), Outcome::Over);
    assert_eq!(client.begin(&mut Ticket::new(), short(1)), Ok(()));
    let mut left = Ticket::new();
    assert_eq!(client.begin(&mut left, short(1)), Ok(()));
    drop(desk);
    assert_eq!(left.outcome(), Outcome::Over, "it will never be served");
    assert_eq!(client.begin(&mut left, short(1)), Err(NotTaken::Closed));
}

/// What is under way in a conduit that breaks ends as over.
#[test]
fn a_broken_conduit_leaves_no_ticket_open() {
    let mut world = World::new(&Setting::new(2), |_| Handlers::new());
    let (client, mut desk) = desk(4).expect("a power of two");
    let mut ticket = Ticket::new();
    let put = Work::Put {
        to: Remote { rank: 1, offset: 0 },
        from: Owned::inline(b"x").expect("short"),
    };
    assert_eq!(client.begin(&mut ticket, put), Ok(()));
    desk.serve(world.am(0));
    assert_eq!((ticket.outcome(), desk.pending()), (Outcome::Pending, 1));
    // A peer that keeps to nothing: its events are more than the queue of requests holds.
    for lid in 0..400 {
        let (bits, data) = long(Id::RarAm, lid);
        put_nothing(&mut world, AM_INDEX, bits, data, 0);
        world.am(0).poll_safely();
        world.net.advance_to(world.net.now() + Duration::from_micros(10));
    }
    while world.am(0).health().is_ok() {
        pass(&mut world);
    }
    desk.serve(world.am(0));
    assert_eq!((ticket.outcome(), desk.pending()), (Outcome::Over, 0));
}
