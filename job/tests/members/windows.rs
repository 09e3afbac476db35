//! Puts, gets and atomics over shared memory: in this process, and on the windows of another one.

use std::time::Instant;

use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::{ConstLoan, Region};
use doorbell_pml::{
    AtomicArgs, GetArgs, OperationError, Payload, PmlError, PutArgs, Rank, RemotePiece, RequestId, Status,
    Target, WindowAccess, WindowArgs, WindowMemory,
};

use super::node::{GUARD, Node, Other};

/// Bytes of a window.
pub(crate) const WINDOW: usize = 2 << 20;
const KEY: u64 = 0x600d_cafe;
const LENGTHS: [usize; 7] = [0, 8, 100, 4000, 20_000, 300_000, 1 << 20];

/// Opens a window of a node, as a started process does, too.
pub(crate) fn open(node: &mut Node) -> Region {
    let region = Region::new(WINDOW).unwrap();
    let window = WindowArgs {
        key: KEY,
        base: 0,
        memory: WindowMemory::Region(region.whole()),
        access: WindowAccess::ALL,
    };
    node.member.pml().open_window(window).unwrap();
    region
}

fn piece(address: usize, length: usize) -> RemotePiece {
    RemotePiece {
        key: KEY,
        address: address as u64,
        length: length as u64,
    }
}

fn wait(here: &mut Node, id: RequestId, also: &mut dyn FnMut()) -> Result<Status, PmlError> {
    let start = Instant::now();
    loop {
        if let Some(ended) = here.member.pml().test(id) {
            return ended;
        }
        assert!(start.elapsed() < GUARD, "{:?}", here.member.pml().explain(id));
        here.turn();
        also();
    }
}

fn put(here: &mut Node, to: Rank, at: RemotePiece, from: &Region) -> RequestId {
    let args = PutArgs {
        to,
        context: 0,
        at: at.into(),
        payload: Payload::Region(from.slice(0, at.length as usize).unwrap()),
        notice: false,
        data: None,
        buffered: false,
        notify: false,
    };
    here.member.pml().put(args).unwrap()
}

fn get(here: &mut Node, from: Rank, at: RemotePiece, into: &Region) -> RequestId {
    let args = GetArgs {
        from,
        context: 0,
        at: at.into(),
        target: Target::Region(into.slice(0, at.length as usize).unwrap()),
        notify: false,
    };
    here.member.pml().get(args).unwrap()
}

fn fetch_add(here: &mut Node, to: Rank, address: usize, into: &Region) -> RequestId {
    let args = AtomicArgs {
        to,
        context: 0,
        at: piece(address, 8).into(),
        arithmetic: Arithmetic::Sum,
        element: Element::Uint64,
        operands: Payload::Loan(ConstLoan::of_static(&[3, 0, 0, 0, 0, 0, 0, 0])),
        compare: Payload::Loan(ConstLoan::EMPTY),
        fetch: Some(Target::Region(into.slice(0, 8).unwrap())),
        buffered: false,
        notify: false,
    };
    here.member.pml().atomic(args).unwrap()
}

fn bytes(region: &Region, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read(0, &mut bytes);
    bytes
}

/// Operates on a window of a peer, which is open, and reads everything back.
fn operate(here: &mut Node, to: Rank, also: &mut dyn FnMut()) {
    let (from, into) = (Region::new(WINDOW).unwrap(), Region::new(WINDOW).unwrap());
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let sent: Vec<u8> = (0..length).map(|at| (at * 7 + round + at / 251) as u8).collect();
        from.write(0, &sent);
        into.write(0, &vec![0xee; length]);
        let at = piece(64 + round, length);
        let id = put(here, to, at, &from);
        wait(here, id, also).unwrap();
        let id = get(here, to, at, &into);
        wait(here, id, also).unwrap();
        assert!(bytes(&into, length) == sent, "{length} bytes");
    }
    for count in 0..100u64 {
        let id = fetch_add(here, to, 8, &into);
        wait(here, id, also).unwrap();
        assert_eq!(bytes(&into, 8), (3 * count).to_le_bytes());
    }
    let id = put(here, to, piece(WINDOW - 7, 8), &from);
    let outside = wait(here, id, also);
    assert!(
        matches!(
            outside,
            Err(PmlError::Operation {
                reason: OperationError::Range,
                ..
            })
        ),
        "{outside:?}"
    );
}

#[test]
fn windows_of_this_process_are_operated_on() {
    let (mut one, mut two) = (Node::enter(), Node::enter());
    let window = open(&mut two);
    // The first operation makes the two meet.
    let to = one.member.resolve(&two.address()).unwrap();
    operate(&mut one, to, &mut || two.go_on());
    let mut word = [0; 8];
    window.read(8, &mut word);
    assert_eq!(u64::from_le_bytes(word), 300);
}

#[test]
fn windows_of_another_process_are_operated_on_until_it_ends() {
    let (mut here, mut other) = (Node::enter(), Other::start());
    other.tell("window");
    other.until("window is open");
    let to = here.member.resolve(&other.address()).unwrap();
    operate(&mut here, to, &mut || ());
    other.tell("word 8");
    assert_eq!(other.until("word"), "word 300");
    // What it does not answer any more ends with it.
    let into = Region::new(WINDOW).unwrap();
    other.kill();
    let start = Instant::now();
    loop {
        let args = GetArgs {
            from: to,
            context: 0,
            at: piece(0, 8).into(),
            target: Target::Region(into.slice(0, 8).unwrap()),
            notify: false,
        };
        match here.member.pml().get(args) {
            Ok(id) => match wait(&mut here, id, &mut || ()) {
                // It was there still.
                Ok(_) => {}
                Err(PmlError::PeerLost { .. }) => return,
                Err(other) => panic!("{other}"),
            },
            Err(PmlError::PeerLost { .. }) => return,
            Err(other) => panic!("{other}"),
        }
        assert!(start.elapsed() < GUARD);
    }
}
