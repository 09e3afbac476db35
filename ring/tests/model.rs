//! Rings and slabs against plain models, by random sequences of operations.
#![cfg(not(loom))]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use doorbell_ring::slab::{Handle, Slab};
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

    /// Any 64 bits make a handle; a slab refuses all that it did not give out.
    #[test]
    fn wild_handles_are_refused(bits in vec(any::<u64>(), 1..50), small in 0..1u64 << 26) {
        let mut slab = Slab::<u8>::new(4).unwrap();
        let real = slab.insert(1).unwrap();
        for handle in bits.into_iter().chain([small]).filter_map(Handle::from_bits) {
            if handle == real { continue }
            prop_assert!(slab.get(handle).is_err() && slab.get_mut(handle).is_err() && slab.remove(handle).is_err());
        }
    }
}
