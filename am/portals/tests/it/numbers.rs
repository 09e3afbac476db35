//! Every operation on every type, with random operands, against plain arithmetic.

use std::cell::{Cell, RefCell};

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    AckReq, Atomic, AtomicKind, Datatype, Entry, EntryOptions, FetchAtomic, Kind, List, Md, MdHandle,
    MdOptions, Memory, NiError, Piece, PtOptions, Put, Target,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::model::{apply, of_double, valid_atomic};
use crate::rig::{RealRig, Rig, Setting, ask};

const ROOM: usize = 512;

/// Two processes: one has the other compute atomics.
struct Desk {
    rig: RealRig,
    setting: Setting,
    ours: Region,
    theirs: Region,
    md: MdHandle,
}

impl Desk {
    fn new() -> Self {
        let setting = Setting::new(Kind::MATCHING_LOGICAL, 2);
        let mut rig = RealRig::new(&setting);
        let (ours, theirs) = (
            Region::new(3 * ROOM).expect("memory"),
            Region::new(ROOM).expect("memory"),
        );
        ask(&mut rig, 1, |ni| {
            ni.pt_alloc(PtOptions::NONE, None, Some(0))
                .expect("a table entry");
            let memory = Memory::One(Landing::Region(theirs.whole()));
            let entry = Entry::open(memory, EntryOptions::OP_PUT | EntryOptions::OP_GET);
            ni.append(0, entry, List::Priority, 0).expect("an entry");
        });
        let memory = Memory::One(Landing::Region(ours.whole()));
        let md = Md {
            memory,
            options: MdOptions::NONE,
            eq: None,
            ct: None,
        };
        let md = ask(&mut rig, 0, |ni| ni.md_bind(md)).expect("a descriptor");
        Self {
            rig,
            setting,
            ours,
            theirs,
            md,
        }
    }

    /// Does it; what is there afterwards, and what a fetch brought.
    fn reckon(
        &mut self,
        kind: AtomicKind,
        datatype: Datatype,
        (old, new): (&[u8], &[u8]),
        operand: [u8; 32],
        fetch: bool,
    ) -> Result<(Vec<u8>, Vec<u8>), NiError> {
        self.theirs.write(0, old);
        self.ours.write(0, new);
        self.ours.write(ROOM, &[0xee; ROOM]);
        let target = Target {
            process: self.setting.name(1),
            pt_index: 0,
            match_bits: 0,
            remote_offset: 0,
        };
        let piece = |offset| Piece { md: self.md, offset };
        let length = new.len() as u64;
        let begun = if fetch {
            let it = FetchAtomic {
                into: piece(ROOM as u64),
                from: piece(0),
                length,
                target,
                user_ptr: 0,
                hdr_data: 0,
                kind,
                datatype,
                operand,
            };
            ask(&mut self.rig, 0, |ni| ni.fetch_atomic(&it))
        } else {
            let put = Put {
                from: piece(0),
                length,
                ack: AckReq::None,
                target,
                user_ptr: 0,
                hdr_data: 0,
            };
            ask(&mut self.rig, 0, |ni| ni.atomic(&Atomic { put, kind, datatype }))
        };
        self.rig.settle().expect("it ends");
        begun?;
        let (mut after, mut fetched) = (vec![0; old.len()], vec![0; old.len()]);
        self.theirs.read(0, &mut after);
        self.ours.read(ROOM, &mut fetched);
        Ok((after, fetched))
    }
}

/// An element of a type; of floating types no value that is no number, of long ones those whose results a
/// double holds.
fn element(datatype: Datatype) -> BoxedStrategy<Vec<u8>> {
    let close = prop_oneof![
        any::<u64>(),
        0..3u64,
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 31)
    ];
    let float = prop_oneof![-8.0..8.0f64, Just(0.0), Just(1e30), Just(-1.5)];
    match datatype {
        Datatype::Float => float.prop_map(|x| (x as f32).to_le_bytes().to_vec()).boxed(),
        Datatype::Double => float.prop_map(|x| x.to_le_bytes().to_vec()).boxed(),
        Datatype::FloatComplex => (element(Datatype::Float), element(Datatype::Float))
            .prop_map(|(re, im)| [re, im].concat())
            .boxed(),
        Datatype::DoubleComplex => (element(Datatype::Double), element(Datatype::Double))
            .prop_map(|(re, im)| [re, im].concat())
            .boxed(),
        Datatype::LongDouble => (-1000..1000i32).prop_map(|x| of_double(x.into())).boxed(),
        Datatype::LongDoubleComplex => (element(Datatype::LongDouble), element(Datatype::LongDouble))
            .prop_map(|(re, im)| [re, im].concat())
            .boxed(),
        _ => close
            .prop_map(move |x| x.to_le_bytes()[..datatype.size()].to_vec())
            .boxed(),
    }
}

/// Two rows of so many elements, and an operand that is often one of the first row.
fn rows(datatype: Datatype, most: usize) -> impl Strategy<Value = (Vec<u8>, Vec<u8>, Vec<u8>)> {
    let row = move |n| proptest::collection::vec(element(datatype), n).prop_map(|row| row.concat());
    (1..=most)
        .prop_flat_map(move |n| (row(n), row(n), element(datatype), any::<bool>()))
        .prop_map(move |(old, new, other, is_equal)| {
            let operand = if is_equal {
                old[..datatype.size()].to_vec()
            } else {
                other
            };
            (old, new, operand)
        })
}

#[test]
fn every_operation_on_every_type() {
    let thread = RefCell::new(Desk::new());
    let reckoned = Cell::new(0);
    for kind in AtomicKind::ALL {
        for datatype in Datatype::ALL {
            for fetch in [false, true] {
                let is_one = kind as u8 > AtomicKind::Swap as u8;
                let most = if is_one { 1 } else { 5 };
                let config = Config {
                    cases: 12,
                    failure_persistence: None,
                    ..Config::default()
                };
                let run = TestRunner::new(config).run(&rows(datatype, most), |(old, new, operand)| {
                    let is_valid = valid_atomic(kind, datatype, new.len() as u64, ROOM as u64, fetch).is_ok();
                    let mut with = [0; 32];
                    with[..operand.len()].copy_from_slice(&operand);
                    let is = thread
                        .borrow_mut()
                        .reckon(kind, datatype, (&old, &new), with, fetch);
                    if !is_valid {
                        prop_assert!(matches!(is, Err(NiError::ArgInvalid(_))), "{:?}", is);
                        return Ok(());
                    }
                    reckoned.set(reckoned.get() + 1);
                    let wanted = apply(None, kind, datatype, &old, &new, &with);
                    let fetched = if fetch { old.clone() } else { vec![0xee; old.len()] };
                    prop_assert_eq!(is, Ok((wanted, fetched)));
                    Ok(())
                });
                run.unwrap_or_else(|why| panic!("{kind:?} {datatype:?}, fetch: {fetch}: {why}"));
            }
        }
    }
    let reckoned = reckoned.get();
    assert!(reckoned > 2000, "{reckoned} were computed");
}

#[test]
fn long_doubles_are_swapped() {
    let mut thread = Desk::new();
    assert_eq!(of_double(1.0)[..10], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    for (a, b) in [(3.0, 4.0), (-7.0, 2.0), (1e6, -1e6), (0.0, 5.0), (1024.0, 0.5)] {
        let (old, new) = (of_double(a), of_double(b));
        for (compared, is) in [(a, b), (a + 1.0, a)] {
            let mut operand = [0; 32];
            operand[..16].copy_from_slice(&of_double(compared));
            let kind = AtomicKind::Cswap;
            let done = thread.reckon(kind, Datatype::LongDouble, (&old, &new), operand, true);
            let (after, fetched) = done.expect("it is one");
            assert_eq!(
                after[..10],
                of_double(is)[..10],
                "{a}, with {b} if it is {compared}"
            );
            assert_eq!(fetched[..10], old[..10]);
        }
        let done = thread.reckon(
            AtomicKind::Swap,
            Datatype::LongDouble,
            (&old, &new),
            [0; 32],
            true,
        );
        assert_eq!(done.expect("it is one").0[..10], new[..10]);
    }
}
