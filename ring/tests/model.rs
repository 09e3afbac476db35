//! Every ring and slab against a plain model, by random sequences of operations.
#![cfg(not(loom))]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use doorbell_ring::desc::{Bit, Layout, device};
use doorbell_ring::shared::{self, Geometry};
use doorbell_ring::slab::{Buffers, Handle, SharedBuffers, Slab};
use doorbell_ring::storage::Area;
use doorbell_ring::{Full, RingError, mpsc, spsc};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    One(bool),
    Slice(bool, usize),
    Reserve {
        asked: usize,
        filled: usize,
        commit: bool,
    },
    Release {
        asked: usize,
        released: usize,
    },
    Drain {
        asked: usize,
        taken: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<bool>().prop_map(Step::One),
        (any::<bool>(), 0..12usize).prop_map(|(push, n)| Step::Slice(push, n)),
        (0..12usize, 0..12usize, any::<bool>()).prop_map(|(asked, filled, commit)| Step::Reserve {
            asked,
            filled,
            commit
        }),
        (0..12usize, 0..12usize).prop_map(|(asked, released)| Step::Release { asked, released }),
        (0..12usize, 0..12usize).prop_map(|(asked, taken)| Step::Drain { asked, taken }),
    ]
}

fn steps() -> impl Strategy<Value = (u32, Vec<Step>)> {
    (0..5u32, vec(step(), 0..200))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn spsc_is_a_queue((log, steps) in steps()) {
        let capacity = 1usize << log;
        let (mut p, mut q) = spsc::ring::<u32>(capacity).unwrap();
        let mut model = VecDeque::new();
        let mut next = 0u32;
        for step in steps {
            let room = capacity - model.len();
            match step {
                Step::One(true) => {
                    let expected = if room == 0 { Err(Full(next)) } else { Ok(()) };
                    prop_assert_eq!(p.push(next), expected);
                    if expected.is_ok() { model.push_back(next); }
                    next += 1;
                }
                Step::One(false) => {
                    prop_assert_eq!(q.peek(), model.front());
                    prop_assert_eq!(q.pop(), model.pop_front());
                }
                Step::Slice(true, n) => {
                    let values: Vec<u32> = (next..next + n as u32).collect();
                    let pushed = p.push_slice(&values);
                    prop_assert_eq!(pushed, n.min(room));
                    model.extend(&values[..pushed]);
                    next += n as u32;
                }
                Step::Slice(false, n) => {
                    let mut out = vec![0; n];
                    let popped = q.pop_slice(&mut out);
                    prop_assert_eq!(popped, n.min(model.len()));
                    let expected: Vec<u32> = model.drain(..popped).collect();
                    prop_assert_eq!(&out[..popped], &expected[..]);
                }
                Step::Reserve { asked, filled, commit } => {
                    let mut reserved = p.reserve(asked);
                    let got = asked.min(room);
                    prop_assert_eq!(reserved.room(), got);
                    // Half by iterator, half one by one.
                    let first = reserved.fill(next..next + (filled / 2) as u32);
                    let mut written = first;
                    for value in next + first as u32..next + filled as u32 {
                        if reserved.push(value).is_err() { break }
                        written += 1;
                    }
                    prop_assert_eq!(written, filled.min(got));
                    if commit {
                        prop_assert_eq!(reserved.commit(), written);
                        model.extend(next..next + written as u32);
                    }
                    next += filled as u32;
                }
                Step::Release { asked, released } => {
                    let chunk = q.read(asked);
                    let got = asked.min(model.len());
                    let (a, b) = chunk.as_slices();
                    let seen: Vec<u32> = a.iter().chain(b).copied().collect();
                    let expected: Vec<u32> = model.iter().take(got).copied().collect();
                    prop_assert_eq!(seen, expected);
                    prop_assert_eq!(chunk.release(released), released.min(got));
                    model.drain(..released.min(got));
                }
                Step::Drain { asked, taken } => {
                    let got: Vec<u32> = q.read(asked).drain().take(taken).collect();
                    let n = asked.min(taken).min(model.len());
                    let expected: Vec<u32> = model.drain(..n).collect();
                    prop_assert_eq!(got, expected);
                }
            }
            prop_assert_eq!(q.ready(), model.len());
            prop_assert_eq!(p.free(), capacity - model.len());
        }
    }

    /// However a value leaves the ring, and if it never does, it is dropped exactly once.
    #[test]
    fn spsc_drops_each_value_once((log, steps) in steps()) {
        let counted = Arc::new(());
        let capacity = 1usize << log;
        let (mut p, mut q) = spsc::ring::<Arc<()>>(capacity).unwrap();
        for step in steps {
            match step {
                Step::One(true) => drop(p.push(counted.clone())),
                Step::One(false) => drop(q.pop()),
                Step::Reserve { asked, filled, commit } => {
                    let mut reserved = p.reserve(asked);
                    reserved.fill(std::iter::repeat_n(counted.clone(), filled));
                    if commit { reserved.commit(); }
                }
                Step::Release { asked, released } => { q.read(asked).release(released); }
                Step::Drain { asked, taken } => { q.read(asked).drain().take(taken).count(); }
                Step::Slice(..) => {}
            }
            prop_assert_eq!(Arc::strong_count(&counted), 1 + q.ready());
        }
        drop((p, q));
        prop_assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn shared_is_a_queue((log, steps) in steps(), payload in 1..5usize) {
        let geometry = Geometry::new(1 << log, payload * 8).unwrap();
        let (mut p, mut q) = shared::pair(geometry).unwrap();
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        let mut next = 0u8;
        let mut message = |n: usize| { next = next.wrapping_add(1); vec![next; n % (payload * 8 + 1)] };
        for step in steps {
            let room = geometry.slots() - model.len();
            match step {
                Step::One(true) | Step::Slice(true, _) => {
                    let bytes = message(usize::from(model.len() as u8) * 7 + 3);
                    prop_assert_eq!(p.push(&bytes), Ok(room > 0));
                    if room > 0 { model.push_back(bytes); }
                }
                Step::One(false) | Step::Slice(false, _) => {
                    let mut out = vec![0; payload * 8];
                    let got = q.pop(&mut out).unwrap().map(|n| out[..n].to_vec());
                    prop_assert_eq!(got, model.pop_front());
                }
                Step::Reserve { asked, filled, commit } => {
                    let mut reserved = p.reserve(asked).unwrap();
                    prop_assert_eq!(reserved.room(), asked.min(room));
                    let mut written = Vec::new();
                    for n in 0..filled {
                        let bytes = message(n * 5);
                        let Some(mut slot) = reserved.next_slot(bytes.len()) else { break };
                        prop_assert_eq!(slot.copy_from(&bytes), bytes.len());
                        written.push(bytes);
                    }
                    prop_assert_eq!(written.len(), filled.min(asked).min(room));
                    if commit {
                        prop_assert_eq!(reserved.commit(), written.len());
                        model.extend(written);
                    }
                }
                Step::Release { asked, released: looked } | Step::Drain { asked, taken: looked } => {
                    let mut chunk = q.read(asked).unwrap();
                    prop_assert_eq!(chunk.left(), asked.min(model.len()));
                    let mut seen = 0;
                    while seen < looked {
                        let Some(bytes) = chunk.next_slot().unwrap() else { break };
                        prop_assert_eq!(&bytes.to_vec(), &model[seen]);
                        seen += 1;
                    }
                    prop_assert_eq!(chunk.release(), seen);
                    model.drain(..seen);
                }
            }
            prop_assert_eq!(q.ready(), Ok(model.len()));
            prop_assert_eq!(p.free(), Ok(geometry.slots() - model.len()));
        }
    }

    #[test]
    fn mailbox_is_a_queue(log in 1..5u32, sends in vec(any::<bool>(), 0..200)) {
        let (sender, mut receiver) = mpsc::mailbox::<Arc<usize>>(1 << log).unwrap();
        let mut model = VecDeque::new();
        for (n, send) in sends.into_iter().enumerate() {
            if send {
                let value = Arc::new(n);
                match sender.send(value.clone()) {
                    Ok(()) => model.push_back(value),
                    Err(mpsc::Refused::Full(back)) => {
                        prop_assert!(Arc::ptr_eq(&back, &value));
                        prop_assert_eq!(model.len(), 1 << log);
                    }
                    Err(mpsc::Refused::Closed(_)) => prop_assert!(false, "the receiver is here"),
                }
            } else {
                prop_assert_eq!(receiver.recv(), model.pop_front());
            }
            prop_assert_eq!(receiver.is_empty(), model.is_empty());
        }
        drop(receiver);
        for value in &model {
            prop_assert_eq!(Arc::strong_count(value), 1, "dropped with the receiver");
        }
        prop_assert!(sender.is_closed());
    }

    #[test]
    fn slab_is_a_map(capacity in 1..20usize, steps in vec((0..3u8, any::<prop::sample::Index>()), 0..300)) {
        let mut slab = Slab::<usize>::new(capacity).unwrap();
        let mut model: HashMap<Handle, usize> = HashMap::new();
        let mut stale: Vec<Handle> = Vec::new();
        for (n, (what, which)) in steps.into_iter().enumerate() {
            let live: Vec<Handle> = model.keys().copied().collect();
            match what {
                0 => match slab.insert(n) {
                    Ok(handle) => {
                        prop_assert!(!stale.contains(&handle));
                        prop_assert_eq!(model.insert(handle, n), None);
                    }
                    Err(Full(value)) => {
                        prop_assert_eq!(value, n);
                        prop_assert_eq!(model.len(), capacity);
                    }
                },
                1 if !live.is_empty() => {
                    let handle = live[which.index(live.len())];
                    prop_assert_eq!(slab.remove(handle), Ok(model.remove(&handle).unwrap()));
                    stale.push(handle);
                }
                _ if !stale.is_empty() => {
                    let handle = stale[which.index(stale.len())];
                    let refused = matches!(slab.get(handle), Err(RingError::Stale { .. }));
                    prop_assert!(refused && slab.get_mut(handle).is_err() && slab.remove(handle).is_err());
                }
                _ => {}
            }
            prop_assert_eq!(slab.len(), model.len());
        }
        let all: HashMap<Handle, usize> = slab.iter().map(|(handle, value)| (handle, *value)).collect();
        prop_assert_eq!(all, model);
    }

    /// Any 64 bits make a handle; the slabs refuse all that they did not give out.
    #[test]
    fn wild_handles_are_refused(bits in vec(any::<u64>(), 1..50), small in 0..1u64 << 26) {
        let mut slab = Slab::<u8>::new(4).unwrap();
        let mut buffers = Buffers::new(4, 16).unwrap();
        let mut shared = SharedBuffers::new(Area::heap(64).unwrap(), 16).unwrap();
        let real = [slab.insert(1).unwrap(), buffers.take().unwrap(), shared.take().unwrap()];
        for handle in bits.into_iter().chain([small]).filter_map(Handle::from_bits) {
            if real.contains(&handle) { continue }
            prop_assert!(slab.get(handle).is_err() && slab.get_mut(handle).is_err() && slab.remove(handle).is_err());
            prop_assert!(buffers.get(handle).is_err() && buffers.give_back(handle).is_err());
            prop_assert!(shared.get(handle).is_err() && shared.offset(handle).is_err());
        }
    }

    #[test]
    fn buffers_are_apart(count in 1..16usize, size in 1..80usize, gone in vec(any::<bool>(), 16)) {
        let mut private = Buffers::new(count, size).unwrap();
        // A remainder that makes no whole buffer stays unused.
        let mut shared = SharedBuffers::new(Area::heap(count * size + size - 1).unwrap(), size).unwrap();
        prop_assert_eq!((private.left(), shared.left(), shared.count()), (count, count, count));
        let handles: Vec<_> = (0..count).map(|_| (private.take().unwrap(), shared.take().unwrap())).collect();
        prop_assert_eq!((private.take(), shared.take()), (None, None));
        for (n, (mine, theirs)) in handles.iter().enumerate() {
            private.get_mut(*mine).unwrap().fill(n as u8);
            shared.get_mut(*theirs).unwrap().copy_from(&vec![n as u8; size]);
            prop_assert_eq!(shared.offset(*theirs).unwrap() % size, 0);
        }
        for (n, (mine, theirs)) in handles.iter().enumerate() {
            prop_assert_eq!(private.get(*mine).unwrap(), &vec![n as u8; size][..]);
            prop_assert_eq!(shared.get(*theirs).unwrap().to_vec(), vec![n as u8; size]);
            if gone[n] {
                prop_assert_eq!((private.give_back(*mine), shared.give_back(*theirs)), (Ok(()), Ok(())));
                prop_assert!(private.get(*mine).is_err() && shared.get_mut(*theirs).is_err());
            }
        }
        let back = gone[..count].iter().filter(|gone| **gone).count();
        prop_assert_eq!((private.left(), shared.left()), (back, back));
    }

    /// Posting against a device that fetches and completes in order, a few at a time.
    #[test]
    fn posts_reach_the_device_in_order(log in 1..5u32, steps in vec((0..3u8, 1..9u32), 0..200)) {
        let count = 1usize << log;
        let (mut posts, mut device) =
            device::posts::<Entry, 24>(Area::heap(count * 24).unwrap(), count).unwrap();
        let (mut register, mut next) = (0, 0u8);
        let (mut posted, mut fetched): (VecDeque<(u32, u8)>, VecDeque<u32>) = Default::default();
        for (what, n) in steps {
            match what {
                0 => for _ in 0..n {
                    next = next.wrapping_add(1);
                    let free = posts.free();
                    match posts.post([next; 24]) {
                        Ok(slot) => {
                            prop_assert!(free > 0);
                            prop_assert_eq!(posts.shadow(slot).map(|shadow| shadow[0]), Some(next));
                            posted.push_back((slot, next));
                        }
                        Err(Full(back)) => prop_assert_eq!((free, back), (0, [next; 24])),
                    }
                },
                1 => {
                    let unannounced = posts.unannounced();
                    match posts.doorbell() {
                        Some(doorbell) => {
                            prop_assert_eq!(doorbell.posted, unannounced);
                            register = doorbell.index;
                        }
                        None => prop_assert_eq!(unannounced, 0),
                    }
                    while let Some((slot, descriptor)) = device.fetch(register) {
                        prop_assert_eq!(Some((slot, descriptor[0])), posted.pop_front());
                        fetched.push_back(slot);
                    }
                }
                _ => {
                    let n = (n as usize).min(fetched.len());
                    if let Some(last) = fetched.drain(..n).next_back() {
                        prop_assert_eq!(posts.complete(last), Ok(n as u32));
                        prop_assert!(posts.complete(last).is_err(), "completed twice");
                    }
                }
            }
            prop_assert_eq!(posts.outstanding() as usize, posted.len() + fetched.len());
        }
    }

    /// Completions over many laps, the reader never more than a lap behind.
    #[test]
    fn completions_arrive_in_order(log in 1..5u32, batches in vec((0..17usize, 0..17usize), 0..100)) {
        let count = 1usize << log;
        let (mut queue, mut device) =
            device::completions::<Entry, 24>(Area::heap(count * 24).unwrap(), count).unwrap();
        let (mut waiting, mut next) = (VecDeque::new(), 0u8);
        for (write, read) in batches {
            for _ in 0..write.min(count - waiting.len()) {
                next = next.wrapping_add(1);
                device.complete([next; 24]);
                waiting.push_back(next);
            }
            let mut out = vec![[0; 24]; read];
            let n = queue.poll_into(&mut out);
            prop_assert_eq!(n, read.min(waiting.len()));
            for (entry, expected) in out.iter().zip(waiting.drain(..n)) {
                prop_assert_eq!((entry[0], entry[23]), (expected, expected));
            }
        }
        let left = waiting.len();
        prop_assert_eq!(queue.poll_into(&mut vec![[0; 24]; count + 1]), left);
    }
}

enum Entry {}

impl Layout for Entry {
    const NAME: &'static str = "model";
    const COLOUR: Option<Bit> = Some(Bit::new(10, 3));
}
