//! After a warm-up, no message costs an allocation: counted by the allocator itself.

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::caps::Features;
use doorbell_fabric::memory::{ConstLoan, MutLoan, Region};
use doorbell_pml::{
    AtomicArgs, GetArgs, MultiArgs, Payload, Pml, Protocol, PutArgs, Rank, RecvArgs, RemotePiece, SendArgs,
    SendMode, Sent, Source, Target, WindowAccess, WindowArgs, WindowMemory,
};
use doorbell_testing::alloc::{self, Counting};

#[path = "it/pair.rs"]
mod pair;

use pair::Pair;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn features(get: bool, put: bool) -> Features {
    Features {
        get,
        put,
        atomics: false,
        gather: true,
        reclaim: true,
        within_host: false,
        checksum: false,
        port: 0,
    }
}

fn finish<M: doorbell_fabric::message::Message>(pml: &mut Pml<M>, sent: Sent) {
    if let Sent::Pending(id) = sent {
        pml.test(id).expect("it has ended").expect("it succeeded");
    }
}

/// The longest message.
const LONG: usize = 100_000;

/// Memory to receive into, for as long as the process lives.
fn room() -> MutLoan {
    MutLoan::of_static(vec![0; LONG].leak())
}

#[test]
fn eager_messages_allocate_nothing() {
    let room = room();
    let out = ConstLoan::of_static(&[7; LONG]);
    for length in [0, 8, 64, 4000] {
        let mut pair = Pair::new(features(false, false), |_| ());
        alloc::steady("expected eager", 300, || {
            let request = pair
                .b
                .recv_loan(Rank(0).into(), 0, 1, 0, room.part(0, length))
                .unwrap();
            let sent = pair.a.send_loan(Rank(1), 0, 1, out.part(0, length)).unwrap();
            pair.settle();
            finish(&mut pair.a, sent);
            pair.b.test(request).unwrap().unwrap();
        });
        alloc::steady("unexpected eager, any source, with an ignore mask", 300, || {
            for tag in 0..4 {
                finish(&mut pair.a, Sent::Done);
                let _ = pair.a.send_loan(Rank(1), 0, tag, out.part(0, length)).unwrap();
            }
            pair.settle();
            for _ in 0..4 {
                let request = pair.b.recv_loan(Source::Any, 0, 0, 3, room).unwrap();
                pair.b.test(request).unwrap().unwrap();
            }
        });
        alloc::steady("expected eager, with a notice and an ignore mask", 300, || {
            let request = pair
                .b
                .recv_loan_notified(Source::Any, 0, 1, 0xff00, room)
                .unwrap();
            let sent = pair.a.send_loan(Rank(1), 0, 0x0101, out.part(0, length)).unwrap();
            pair.settle();
            finish(&mut pair.a, sent);
            assert_eq!(pair.b.next_completion(), Some(request));
            pair.b.test(request).unwrap().unwrap();
        });
        alloc::steady("injected and to ourselves", 300, || {
            pair.a.inject(Rank(0), 0, 9, &[7; 32]).unwrap();
            let request = pair.a.recv_loan(Source::Any, 0, 9, 0, room).unwrap();
            pair.a.test(request).unwrap().unwrap();
        });
    }
}

#[test]
fn long_messages_allocate_nothing_by_any_protocol() {
    let room = room();
    let out = ConstLoan::of_static(&[7; LONG]);
    for (protocol, get, put) in [
        (Protocol::Fragments, false, false),
        (Protocol::Get, true, false),
        (Protocol::Put, false, true),
    ] {
        let mut pair = Pair::new(features(get, put), |config| config.protocol = protocol);
        for expected in [true, false] {
            alloc::steady("long", 300, || {
                let args = || SendArgs {
                    to: Rank(1),
                    context: 0,
                    tag: 1,
                    payload: Payload::Loan(out),
                    mode: SendMode::Synchronous,
                    notify: true,
                };
                let receive = |pair: &mut Pair| {
                    let args = RecvArgs {
                        from: Rank(0).into(),
                        context: 0,
                        tag: 1,
                        ignore: 0,
                        target: Target::Loan(room),
                        notify: true,
                    };
                    pair.b.recv(args).unwrap()
                };
                if expected {
                    receive(&mut pair);
                }
                let _ = pair.a.send(args()).unwrap();
                pair.settle();
                if !expected {
                    receive(&mut pair);
                    pair.settle();
                }
                for pml in [&mut pair.a, &mut pair.b] {
                    let id = pml.next_completion().expect("it has ended");
                    pml.test(id).unwrap().unwrap();
                }
            });
        }
    }
}

/// Out of regions and into regions, whose slices go along: short, long by fragments, long by a get.
#[test]
fn messages_of_regions_allocate_nothing() {
    let into = Region::new(LONG).unwrap();
    let out = ConstLoan::of_static(&[7; LONG]);
    for (length, get) in [(64, false), (LONG, false), (LONG, true)] {
        let mut pair = Pair::new(features(get, false), |_| ());
        alloc::steady("regions", 300, || {
            let args = RecvArgs {
                from: Rank(0).into(),
                context: 0,
                tag: 1,
                ignore: 0,
                target: Target::Region(into.whole()),
                notify: false,
            };
            let request = pair.b.recv(args).unwrap();
            let payload = match get {
                true => Payload::Loan(out),
                false => Payload::Region(into.slice(0, length).unwrap()),
            };
            let args = SendArgs {
                to: Rank(1),
                context: 0,
                tag: 1,
                payload,
                mode: SendMode::Standard,
                notify: false,
            };
            let sent = pair.a.send(args).unwrap();
            pair.settle();
            finish(&mut pair.a, sent);
            pair.b.test(request).unwrap().unwrap();
        });
    }
}

#[test]
fn a_receive_of_many_messages_allocates_nothing() {
    let room = room();
    let mut pair = Pair::new(features(false, false), |config| config.window = 8 << 10);
    alloc::steady("a multi-receive of short messages under credit", 300, || {
        let args = MultiArgs {
            from: Source::Any,
            context: 0,
            tag: 1,
            ignore: 0,
            target: Target::Loan(room.part(0, 1000)),
            min_free: 1,
            notify: false,
        };
        let request = pair.b.recv_multi(args).unwrap();
        for _ in 0..10 {
            pair.a.inject(Rank(1), 0, 1, &[3; 100]).unwrap();
        }
        pair.settle();
        while pair.b.next_delivery().is_some() {}
        pair.b.test(request).unwrap().unwrap();
    });
}

#[test]
fn operations_on_windows_allocate_nothing() {
    for (get, put) in [(false, false), (true, false), (false, true)] {
        let mut pair = Pair::new(features(get, put), |_| ());
        let (window, into) = (room(), room());
        let out = ConstLoan::of_static(&[7; LONG]);
        let open = WindowArgs {
            key: 5,
            base: 0,
            memory: WindowMemory::Loans(vec![window]),
            access: WindowAccess::ALL,
        };
        pair.b.open_window(open).unwrap();
        let piece = |length: usize| RemotePiece {
            key: 5,
            address: 8,
            length: length as u64,
        };
        let end = |pair: &mut Pair, id| {
            pair.settle();
            pair.a.test(id).expect("it has ended").expect("it succeeded");
        };
        for length in [0, 8, 64, 4000, 90_000] {
            alloc::steady("puts", 300, || {
                let id = pair
                    .a
                    .put_loan(Rank(1), 0, piece(length), out.part(0, length), false)
                    .unwrap();
                end(&mut pair, id);
            });
            alloc::steady("puts with a notice", 300, || {
                let args = PutArgs {
                    to: Rank(1),
                    context: 0,
                    at: piece(length).into(),
                    payload: Payload::Loan(out.part(0, length)),
                    notice: true,
                    data: Some(9),
                    buffered: false,
                    notify: true,
                };
                let id = pair.a.put(args).unwrap();
                pair.settle();
                assert_eq!(pair.a.next_completion(), Some(id));
                pair.b.next_notice().expect("it is to be notified");
                end(&mut pair, id);
            });
            alloc::steady("gets", 300, || {
                let args = GetArgs {
                    from: Rank(1),
                    context: 0,
                    at: piece(length).into(),
                    target: Target::Loan(into.part(0, length)),
                    notify: false,
                };
                let id = pair.a.get(args).unwrap();
                end(&mut pair, id);
            });
        }
        for length in [8, 512] {
            alloc::steady("fetching atomics", 300, || {
                let args = AtomicArgs {
                    to: Rank(1),
                    context: 0,
                    at: piece(length).into(),
                    arithmetic: Arithmetic::Sum,
                    element: Element::Uint64,
                    operands: Payload::Loan(out.part(0, length)),
                    compare: Payload::Loan(ConstLoan::EMPTY),
                    fetch: Some(Target::Loan(into.part(0, length))),
                    buffered: false,
                    notify: false,
                };
                let id = pair.a.atomic(args).unwrap();
                end(&mut pair, id);
            });
        }
        alloc::steady("a put to ourselves that is refused", 300, || {
            let id = pair
                .a
                .put_loan(Rank(0), 0, piece(8), out.part(0, 8), false)
                .unwrap();
            pair.a.test(id).unwrap().unwrap_err();
        });
    }
}
