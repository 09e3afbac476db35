//! Random programs, a call at a time: after each, everything that it leads to has happened, and the interface
//! has posted, counted and moved what the model has.

use doorbell_fabric::ni::{Kind, NiError, NiLimits};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::compare::streams;
use crate::config;
use crate::model::Wrong;
use crate::program::{Step, programs};
use crate::rig::{ModelRig, RealRig, Rig, Setting};
use crate::steps::{Cast, Ended};

/// Limits that programs reach.
fn limits() -> NiLimits {
    NiLimits {
        max_entries: 24,
        max_unexpected_headers: 3,
        max_list_size: 6,
        max_triggered_ops: 4,
        max_pt_index: 3,
        ..NiLimits::default()
    }
}

pub(crate) fn setting(kind: u32, ranks: usize, seed: u64) -> Setting {
    let mut setting = Setting::new(Kind::of_number(kind), ranks);
    (setting.limits, setting.seed) = (limits(), seed);
    for (number, who) in setting.processes.iter_mut().enumerate() {
        who.uid = 1 + (number as u32 & 1);
    }
    setting
}

/// The outcome of a call, as far as the reference defines it. An entry that was unlinked and waits for its
/// headers is gone, or in use.
fn ending(ended: &Ended) -> &'static str {
    match ended {
        Ok(()) => "ok",
        Err(NiError::InUse | NiError::ArgInvalid(_)) => "no such entry, or in use",
        Err(NiError::NoSpace(_)) => "no space",
        Err(NiError::ListTooLong) => "list too long",
        Err(NiError::Full) => "full",
        Err(_) => "another error",
    }
}

/// Plays a program on the model and on another job, and compares after each step.
fn play(setting: &Setting, real: &mut dyn Rig, program: &[Step]) -> Result<(), TestCaseError> {
    let mut model = ModelRig::new(setting, None);
    let (mut model, mut real) = (Cast::new(&mut model, setting), Cast::new(real, setting));
    for (number, step) in program.iter().enumerate() {
        let wanted = model.play(number as u64 + 1, step);
        let is = real.play(number as u64 + 1, step);
        prop_assert_eq!(
            ending(&is),
            ending(&wanted),
            "step {}: {:?}: {:?}",
            number + 1,
            step,
            is
        );
        for cast in [&mut model, &mut real] {
            let settled = cast.rig.settle();
            prop_assert!(settled.is_ok(), "step {}: {:?}", number + 1, settled);
        }
        compare(number + 1, step, &mut model, &mut real)?;
    }
    for rank in 0..setting.processes.len() {
        let (is, wanted) = (real.bytes(rank), model.bytes(rank));
        let first = (is != wanted)
            .then(|| (0..is.len()).find(|at| is[*at] != wanted[*at]))
            .flatten();
        prop_assert_eq!(
            first,
            None::<usize>,
            "memory of process {} is different there",
            rank
        );
    }
    Ok(())
}

fn compare(
    number: usize,
    step: &Step,
    model: &mut Cast<'_>,
    real: &mut Cast<'_>,
) -> Result<(), TestCaseError> {
    for rank in 0..model.hands.len() {
        for queue in 0..2 {
            let bases = [&model.hands[rank], &real.hands[rank]].map(|hands| hands.memory.whole().address());
            let wanted = streams(&model.events(rank, queue), bases[0], false);
            let is = streams(&real.events(rank, queue), bases[1], false);
            prop_assert_eq!(is, wanted, "step {}: {:?}: process {}", number, step, rank);
        }
        let (is, wanted) = (real.counts(rank), model.counts(rank));
        prop_assert_eq!(
            is,
            wanted,
            "step {}: {:?}: counts of process {}",
            number,
            step,
            rank
        );
        let (is, wanted) = (real.registers(rank), model.registers(rank));
        prop_assert_eq!(
            is,
            wanted,
            "step {}: {:?}: registers of process {}",
            number,
            step,
            rank
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn random_programs_do_what_the_model_does(
        kind in 0..4u32,
        ranks in 2..4usize,
        seed in any::<u64>(),
        program in programs(100),
    ) {
        let setting = setting(kind, ranks, seed);
        play(&setting, &mut RealRig::new(&setting), &program)?;
    }

    /// Over a network that carries messages only, and short ones.
    #[test]
    fn random_programs_do_so_in_fragments(
        ranks in 2..4usize,
        seed in any::<u64>(),
        program in programs(40),
    ) {
        let mut setting = setting(0, ranks, seed);
        let can = &mut setting.sim.capabilities;
        (can.features.get, can.features.put, can.features.atomics) = (false, false, false);
        (can.limits.message, can.limits.eager, can.limits.fragment) = (2048, 1024, 1024);
        play(&setting, &mut RealRig::new(&setting), &program)?;
    }
}

/// Wrong rules that these programs cannot reveal: their queues are never full, their interfaces have maps,
/// their searches are allowed, their calls come one at a time, and where no byte goes is not compared.
const UNSEEN: &[Wrong] = &[
    Wrong::QueueLosesNewest,
    Wrong::DroppedAgainAndAgain,
    Wrong::FullQueueOverwrites,
    Wrong::FullQueueSparesOthers,
    Wrong::MapIsOptional,
    Wrong::NoOrder,
    Wrong::FreeForgetsHeaders,
    Wrong::ManagedMovesByRequest,
    Wrong::SearchCounts,
];

/// Random programs are worth something: they reveal a model that follows a rule read wrongly.
#[test]
fn random_programs_notice_a_wrong_reading() {
    let mut runner = TestRunner::deterministic();
    let program = programs(100);
    let mut draw = |_| program.new_tree(&mut runner).expect("a program").current();
    let all: Vec<Vec<Step>> = (0..PROGRAMS).map(&mut draw).collect();
    let mut unnoticed = Vec::new();
    for (wrong, name) in Wrong::ALL.iter().filter(|(wrong, _)| !UNSEEN.contains(wrong)) {
        let notices = |program: &Vec<Step>| {
            let setting = setting(0, 2, 1);
            play(&setting, &mut ModelRig::new(&setting, Some(*wrong)), program).is_err()
        };
        if !all.iter().any(notices) {
            unnoticed.push(*name);
        }
    }
    assert!(unnoticed.is_empty(), "nothing notices {unnoticed:?}");
}

const PROGRAMS: usize = 1000;
